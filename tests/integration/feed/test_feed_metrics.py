"""The feed's figures as OpenTelemetry metrics."""

from __future__ import annotations

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
