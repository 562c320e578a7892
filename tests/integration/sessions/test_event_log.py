"""Long logs, read page by page: what that costs, and what it leaves behind."""

from __future__ import annotations

from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from support.command_log import QuietListener
from support.long_sessions import store_long_session

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.testing import Limits

KEY = SessionKey("app", "ada", "s")


class Reads(QuietListener):
    """Counts the commands that read."""

    def __init__(self) -> None:
        self.count = 0

    def started(self, event: Any) -> None:
        self.count += event.command_name in {"find", "aggregate", "getMore"}


def cursors(admin: MongoClient, database: str) -> list[Any]:
    """What reads the server has open for a database."""
    stages = [{"$currentOp": {"allUsers": True, "idleCursors": True}}]
    return [
        each
        for each in admin.admin.aggregate(stages)
        if each.get("ns", "").startswith(database) and each.get("cursor")
    ]


async def test_a_long_log_is_read_whole_and_leaves_nothing(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Thousands of events come in order; who stops early leaves no cursor open."""
    await store_long_session(service, admin, database, KEY, 3000)

    told = [each async for each in service.iter_events(**KEY.id)]

    assert [revision for revision, _ in told] == list(range(1, 3001))
    assert {event.id for _, event in told} == {f"e{n}" for n in range(1, 3001)}
    for reading in (
        service.iter_events(**KEY.id, newest_first=True),
        service.iter_user_events(app_name="app", user_id="ada"),
    ):
        await anext(reading)
        assert cursors(admin, database) == []
        await reading.aclose()


async def test_reads_grow_with_events_not_with_sessions(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """All events of two hundred sessions take as many reads as they fill pages."""
    listener = Reads()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[listener]) as client:
        service = MongoSessionService(client=client, database=database)
        await service.setup()
        template = {"state": {}, "revision": 2, "create_time": 1.0, "update_time": 1.0}
        keys = [KEY._replace(session_id=f"s{number:03}") for number in range(200)]
        admin[database].sessions.insert_many(
            [{"_id": key.id, **template} for key in keys]
        )
        event = {"id": "e", "author": "x", "invocation_id": "i", "timestamp": 1.0}
        admin[database].events.insert_many(
            [
                {
                    "_id": key.event_id(revision),
                    "event": {**event, "id": str(revision), "actions": {}},
                }
                for key in keys
                for revision in (1, 2)
            ]
        )
        listener.count = 0

        told = [
            each
            async for each in service.iter_user_events(app_name="app", user_id="ada")
        ]

    assert [(each.session_id, each.revision) for each in told] == [
        (key.session_id, revision) for key in keys for revision in (1, 2)
    ]
    assert listener.count == 2 * (1 + 400 // Limits().page_events)
