"""Reads of sessions that were read before: the same, with only what is new built."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from enum import Enum
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pydantic import BaseModel
from pymongo import AsyncMongoClient, MongoClient, monitoring
from support.command_log import QuietListener
from support.event_fields import ACTIONS, EVENT
from support.long_sessions import event, store_long_session

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.testing import Limits

COUNT = 20
KEY = SessionKey("app", "ada", "long")


class EventsReceived(QuietListener):
    """Counts the events in replies."""

    def __init__(self) -> None:
        self.count = 0

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        batch = event.reply.get("cursor", {}).get("firstBatch", ())
        self.count += sum("event" in each for each in batch)


LIMITS = Limits(block_events=4)
"""Blocks of four events, so that few make a long session."""


@pytest.fixture
def received() -> EventsReceived:
    """What the client of the service receives."""
    return EventsReceived()


@pytest.fixture
async def client(
    mongodb_uri: str, received: EventsReceived
) -> AsyncIterator[AsyncMongoClient[Any]]:
    async with AsyncMongoClient[Any](mongodb_uri, event_listeners=[received]) as client:
        yield client


@pytest.fixture
async def service(
    client: AsyncMongoClient[Any], database: str, admin: MongoClient[Any]
) -> MongoSessionService:
    """One with a session of many events, which it has read."""
    service = MongoSessionService(client=client, database=database, _limits=LIMITS)
    await store_long_session(service, admin, database, KEY, COUNT)
    await read(service)
    return service


async def read(service: MongoSessionService) -> Session:
    session = await service.get_session(**KEY.id)
    assert session is not None
    return session


async def fresh(service: MongoSessionService, client: AsyncMongoClient[Any]) -> Session:
    """The session as a service reads it that has read nothing before."""
    return await read(
        MongoSessionService(client=client, database=service.database_name)
    )


async def test_only_new_events_are_read_again(
    service: MongoSessionService,
    client: AsyncMongoClient[Any],
    received: EventsReceived,
) -> None:
    """Beside the last one that is known, and less than a block."""
    received.count = 0
    session = await read(service)
    await service.append_event(session, Event(author="user", id="new"))
    again = await read(service)

    assert received.count == 1 + 2
    assert again == await fresh(service, client)
    assert [each.id for each in again.events][-2:] == [f"e{COUNT}", "new"]


def spoil(value: Any, seen: set[int]) -> None:
    """Change everything that can be reached from a value."""
    if id(value) in seen or isinstance(value, Enum):
        return
    seen.add(id(value))
    if isinstance(value, BaseModel):
        for each in [*value.__dict__.values()]:
            spoil(each, seen)
        value.__dict__.update(dict.fromkeys(value.__dict__, "spoilt"))
        value.model_fields_set.clear()
    elif isinstance(value, dict):
        for each in [*value.values()]:
            spoil(each, seen)
        value.clear()
    elif isinstance(value, list | set):
        for each in [*value]:
            spoil(each, seen)
        value.clear()


async def test_changes_to_a_session_in_hand_reach_no_other_read(
    service: MongoSessionService, client: AsyncMongoClient[Any]
) -> None:
    """Whatever can be reached from a session, read first or again."""
    events = [Event(**{"author": "a", name: value}) for name, value in EVENT.items()]
    events += [
        Event(author="a", actions=EventActions(**{name: value}))
        for name, value in ACTIONS.items()
    ]
    session = await read(service)
    for each in events:
        await service.append_event(session, each)
    expected = (await fresh(service, client)).model_dump()

    for _ in range(3):
        session = await read(service)
        assert session.model_dump() == expected
        spoil(session, set())


Change = Callable[[Any], object]


def _renumber(database: Any) -> None:
    events = [*database.events.find()]
    database.events.delete_many({})
    database.events.insert_many(
        {**each, "_id": KEY.event_id(each["_id"]["revision"] + 3)} for each in events
    )


OTHER_LOGS: dict[str, Change] = {
    "another last event": lambda database: database.events.update_one(
        {"_id": KEY.event_id(COUNT)}, {"$set": {"event.author": "bob"}}
    ),
    "a shorter log": lambda database: database.events.delete_many(
        {"_id.revision": {"$gt": COUNT // 2}}
    ),
    "a log that begins later": lambda database: database.events.delete_many(
        {"_id.revision": {"$lt": COUNT // 2}}
    ),
    "another session": lambda database: (
        database.sessions.update_one({}, {"$set": {"create_time": 1.0}}),
        database.events.update_one(
            {"_id": KEY.event_id(1)}, {"$set": {"event.author": "bob"}}
        ),
    ),
    "other revisions": _renumber,
    "no events": lambda database: database.events.delete_many({}),
}


@pytest.mark.parametrize("change", OTHER_LOGS.values(), ids=OTHER_LOGS)
async def test_a_changed_log_is_read_whole(
    service: MongoSessionService,
    client: AsyncMongoClient[Any],
    admin: MongoClient[Any],
    change: Change,
) -> None:
    """As after an import of an edited export, a restored backup or a trim."""
    change(admin[service.database_name])

    assert await read(service) == await fresh(service, client)


async def delete_elsewhere(service: MongoSessionService, admin: MongoClient) -> None:
    admin[service.database_name].sessions.delete_many({})
    await service.get_session(**KEY.id)


DELETES: dict[str, Callable[..., Any]] = {
    "the session": lambda service, _: service.delete_session(**KEY.id),
    "the user": lambda service, _: service.delete_user(app_name="app", user_id="ada"),
    "the app": lambda service, _: service.delete_app(app_name="app"),
    "by another service": delete_elsewhere,
}


@pytest.mark.parametrize("delete", DELETES.values(), ids=DELETES)
async def test_a_deleted_session_leaves_the_cache(
    service: MongoSessionService,
    admin: MongoClient[Any],
    received: EventsReceived,
    delete: Callable[..., Any],
) -> None:
    """Its events are in no memory, and are read whole if they come back."""
    database = admin[service.database_name]
    session = database.sessions.find_one({})
    await delete(service, admin)
    database.events.delete_many({})
    database.sessions.replace_one({"_id": KEY.id}, session, upsert=True)
    database.events.insert_many(event(KEY, number) for number in range(1, COUNT + 1))
    received.count = 0

    assert len((await read(service)).events) == COUNT

    assert received.count == COUNT


async def test_the_cache_can_be_turned_off(
    client: AsyncMongoClient[Any],
    service: MongoSessionService,
    received: EventsReceived,
) -> None:
    """Then every read is of all events."""
    name = service.database_name
    uncached = MongoSessionService(client=client, database=name, read_cache_bytes=0)
    await read(uncached)
    received.count = 0

    await read(uncached)

    assert received.count == COUNT


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "64 MB", None])
def test_a_limit_that_is_no_number_of_bytes_is_refused(wrong: Any) -> None:
    """It is an error of configuration."""
    with pytest.raises(ConfigurationError, match="read_cache_bytes must be a number"):
        MongoSessionService("mongodb://127.0.0.1/adk", read_cache_bytes=wrong)
