"""The feed's figures as OpenTelemetry metrics."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from google.adk.events import Event
from support.otel_recorder import recording

from mongo_session_service import MongoSessionService


@pytest.fixture
def database(new_database: str) -> str:
    """A database of which nothing was told before."""
    return new_database


async def test_figures_are_metrics(service: MongoSessionService, database: str) -> None:
    """A provider set at any time gets every figure, labelled by database."""
    recorded = recording()
    session = await service.create_session(app_name="a", user_id="u")
    async with service.watch("a") as changes, service.consumer("billing") as consumer:
        await service.append_event(session, Event(author="x"))
        await anext(changes)
        await anext(consumer)
        points = recorded.points(database)

    prefix = "mongo_session_service."
    values = {
        name.split()[0].removeprefix(prefix): (each.value, dict(each.attributes))
        for name, (each, *_) in points.items()
        if name.startswith((f"{prefix}feed.", f"{prefix}consumer."))
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
    assert values["feed.subscriptions"][0] == 1
    assert values["feed.delivered"][0] in {1, 2}
    assert values["feed.lag"][1] == {"db.namespace": database}
    _, labels = values["consumer.checkpoint_age"]
    assert labels["messaging.consumer.group.name"] == "billing"


async def test_figures_are_read_while_services_and_consumers_are_made(
    service: MongoSessionService, database: str
) -> None:
    """The exporter's thread reads them; no step of it may be disturbed by others."""
    recorded = recording()
    made: list[object] = []

    def make_another(frame: FrameType, *_: object) -> Any:
        if "opentelemetry" not in frame.f_code.co_filename and len(made) < 200:
            name = f"c{len(made)}"
            made.extend((service.consumer(name), MongoSessionService("mongodb://x")))
        return make_another

    before = sys.gettrace()
    sys.settrace(make_another)
    try:
        points = recorded.points(database)
        service.feed_stats()
    finally:
        sys.settrace(before)

    figures = {name.split()[0] for name in points}
    assert {"lag", "delivered"} <= {it.rpartition(".")[2] for it in figures}
    assert len(made) == 200
