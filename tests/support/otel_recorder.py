"""What OpenTelemetry's SDK records in this process, told apart by database."""

from __future__ import annotations

from functools import cache
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Recording:
    """The process's one SDK: a provider can be set only once."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def spans(self, database: str) -> list[ReadableSpan]:
        """The finished spans of a database's service, in the order they ended."""
        return [each for each in self.all_spans() if _is_of(each.attributes, database)]

    def all_spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def forget_spans(self) -> None:
        """Keep none: those of all tests were a sixth of all objects."""
        self._exporter.clear()

    def points(self, database: str) -> dict[str, list[Any]]:
        """The data points of a database's service, by metric."""
        found: dict[str, list[Any]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    of_database = [
                        point
                        for point in metric.data.data_points
                        if _is_of(point.attributes, database)
                    ]
                    if of_database:
                        found[f"{metric.name} {metric.unit}"] = of_database
        return found

    def labels(self) -> list[dict[str, Any]]:
        """The attributes of everyone's data points."""
        data = self._reader.get_metrics_data()
        return [
            dict(point.attributes or {})
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]

    def count(self, database: str, metric: str) -> float:
        """The sum of a counter, 0 if it has counted nothing."""
        points: list[NumberDataPoint] = self.points(database).get(metric, [])
        return sum(each.value for each in points)


def _is_of(attributes: Any, database: str) -> bool:
    return (attributes or {}).get("db.namespace") == database


@cache
def recording() -> Recording:
    """Record from the first call on."""
    return Recording()
