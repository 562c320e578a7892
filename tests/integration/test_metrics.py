"""The feed's figures as OpenTelemetry metrics."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, os, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from google.adk.events import Event
from mongo_session_service import MongoSessionService

reader = InMemoryMetricReader()

async def main(uri, database):
    async with MongoSessionService(uri, database=database) as service:
        metrics.set_meter_provider(MeterProvider([reader]))
        session = await service.create_session(app_name="a", user_id="u")
        async with (
            service.watch("a") as changes, service.consumer("billing") as consumer
        ):
            await service.append_event(session, Event(author="x"))
            await anext(changes)
            await anext(consumer)
            for resource in reader.get_metrics_data().resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        for point in metric.data.data_points:
                            print(metric.name, point.value, dict(point.attributes))

asyncio.run(main(*sys.argv[1:]))
"""


def test_figures_are_metrics(mongodb_uri: str, database: str) -> None:
    """A provider set at any time gets every figure, labelled by database."""
    program = [sys.executable, "-c", PROGRAM, mongodb_uri, database]
    output = subprocess.run(program, capture_output=True, text=True, check=True).stdout

    values = {
        line.split(" ", 2)[0].removeprefix("mongo_session_service."): line.split(" ", 2)
        for line in output.splitlines()
    }
    assert set(values) == {
        "feed.lag",
        "feed.oplog_window",
        "feed.queue_depth",
        "feed.subscriptions",
        "feed.delivered",
        "feed.reconnects",
        "feed.resyncs",
        "feed.drops",
        "consumer.checkpoint_age",
    }
    assert values["feed.subscriptions"][1] == "1"
    assert values["feed.delivered"][1] in {"1", "2"}
    assert database in values["feed.lag"][2]
    assert "billing" in values["consumer.checkpoint_age"][2]
