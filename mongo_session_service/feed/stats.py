"""Feed statistics, and their OpenTelemetry metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Observation

from mongo_session_service._public import public
from mongo_session_service.telemetry import DATABASE, NAME, Living, meter


@public
@dataclass(frozen=True, slots=True)
class FeedStats:
    """Statistics of a service's change feed; counts are since it was built."""

    is_running: bool
    """Whether a change stream is open, as it is while there are subscriptions."""
    subscriptions: int
    queue_depth: int
    """Changes that wait for the slowest subscriber."""
    lag_seconds: float
    """How old the latest change was when it was read, or how long MongoDB has not
    answered; 0 when there is nothing to read. It includes the clocks' difference."""
    oplog_window_seconds: float | None
    """How far MongoDB's oplog reaches back, as of a minute ago. None if nothing was
    watched here, where ``doctor`` shows it, or if the user may not read it, which takes
    the role ``read`` on ``local``."""
    delivered: int
    """Changes read from the stream."""
    reconnects: int
    """How often the stream failed and was resumed."""
    resyncs: int
    """How often it could not be resumed, and sessions were read from storage."""
    drops: int
    """Subscriptions ended because they were read too slowly."""
    checkpoint_ages: dict[str, float] = field(default_factory=dict)
    """Seconds since the checkpoint was saved, by the name of each consumer that reads
    through this service."""


@dataclass(slots=True)
class Counters:
    """What a service counts of its feeds."""

    delivered: int = 0
    reconnects: int = 0
    resyncs: int = 0
    drops: int = 0
    oplog_window_seconds: float | None = None


_PREFIX: Final = f"{NAME}.feed"
_CONSUMER: Final = "messaging.consumer.group.name"


_observed = Living[Any]()


def observe(service: Any) -> None:
    """Report a service's feed statistics as metrics for as long as it lives."""
    _observed.add(service)


def _observations_of(figure: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def report(_: CallbackOptions) -> Iterable[Observation]:
        for service in _observed:
            value = getattr(service.feed_stats(), figure)
            if value is not None:
                yield Observation(value, {DATABASE: service.database_name})

    return report


def _report_checkpoints(_: CallbackOptions) -> Iterable[Observation]:
    for service in _observed:
        for name, age in service.feed_stats().checkpoint_ages.items():
            labels = {DATABASE: service.database_name, _CONSUMER: name}
            yield Observation(age, labels)


_GAUGE: Final = meter.create_observable_gauge
_COUNTER: Final = meter.create_observable_counter

for _create, _name, _unit, _description in (
    (_GAUGE, "lag", "s", "Age of the latest change when read"),
    (_GAUGE, "oplog_window", "s", "How far the oplog reaches back behind the feed"),
    (_GAUGE, "queue_depth", "{change}", "Changes not yet read"),
    (_GAUGE, "subscriptions", "{subscription}", "Live subscriptions"),
    (_COUNTER, "delivered", "{change}", "Changes read from the stream"),
    (_COUNTER, "reconnects", "{reconnect}", "Streams resumed"),
    (_COUNTER, "resyncs", "{resync}", "Streams restarted after a gap"),
    (_COUNTER, "drops", "{subscription}", "Subscriptions read too slowly"),
):
    _report = _observations_of(f"{_name}_seconds" if _unit == "s" else _name)
    _create(f"{_PREFIX}.{_name}", [_report], _unit, _description)

_GAUGE(
    f"{NAME}.consumer.checkpoint_age",
    [_report_checkpoints],
    "s",
    "Time since the consumer's checkpoint was saved",
)
