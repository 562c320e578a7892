"""The feed's statistics as OpenTelemetry metrics, for all services of a process.

They cost nothing until the application sets a meter provider, which may be long after
this package is imported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from opentelemetry.metrics import CallbackOptions, Observation

from mongo_session_service.telemetry import DATABASE, NAME, meter

from .stats import FeedStats

_PREFIX: Final = f"{NAME}.feed"
_CONSUMER: Final = "messaging.consumer.group.name"


class Observed(Protocol):
    """A service whose feed is observed."""

    @property
    def database_name(self) -> str:
        """What its figures are labelled with."""

    def feed_stats(self) -> FeedStats:
        """Its figures."""


_observed: weakref.WeakSet[Any] = weakref.WeakSet()


def observe(service: Observed) -> None:
    """Report a service's figures for as long as it lives."""
    _observed.add(service)


def _reporting(
    figure: Callable[[FeedStats], float | None],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def report(_: CallbackOptions) -> Iterable[Observation]:
        for service in list(_observed):
            value = figure(service.feed_stats())
            if value is not None:
                yield Observation(value, {DATABASE: service.database_name})

    return report


def _report_checkpoints(_: CallbackOptions) -> Iterable[Observation]:
    for service in list(_observed):
        for name, age in service.feed_stats().checkpoint_ages.items():
            labels = {DATABASE: service.database_name, _CONSUMER: name}
            yield Observation(age, labels)


for _name, _unit, _figure, _description in (
    ("lag", "s", lambda it: it.lag_seconds, "Age of the latest change when read"),
    (
        "oplog_window",
        "s",
        lambda it: it.oplog_window_seconds,
        "How far the oplog reaches back behind the feed",
    ),
    ("queue_depth", "{change}", lambda it: it.queue_depth, "Changes not yet read"),
    (
        "subscriptions",
        "{subscription}",
        lambda it: it.subscriptions,
        "Live subscriptions",
    ),
):
    meter.create_observable_gauge(
        f"{_PREFIX}.{_name}", [_reporting(_figure)], _unit, _description
    )

for _name, _unit, _figure, _description in (
    ("delivered", "{change}", lambda it: it.delivered, "Changes read off the stream"),
    ("reconnects", "{reconnect}", lambda it: it.reconnects, "Streams opened again"),
    ("resyncs", "{resync}", lambda it: it.resyncs, "Streams begun anew after a gap"),
    ("drops", "{subscription}", lambda it: it.drops, "Subscriptions read too slowly"),
):
    meter.create_observable_counter(
        f"{_PREFIX}.{_name}", [_reporting(_figure)], _unit, _description
    )

meter.create_observable_gauge(
    f"{NAME}.consumer.checkpoint_age",
    [_report_checkpoints],
    "s",
    "Time since the consumer's checkpoint was saved",
)
