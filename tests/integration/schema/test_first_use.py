"""What the first call of a service costs, on a new database and on a known one."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from pymongo import AsyncMongoClient, MongoClient
from support.command_log import CommandsSent
from support.failpoints import held_index_builds
from support.subscriptions import PATIENCE, SESSION

from mongo_session_service import MongoSessionService
from mongo_session_service.schema.indexes import EVENT_ONCE
from mongo_session_service.testing import Limits

LOOK = {"hello": 1, "aggregate": 1, "listCollections": 1, "listIndexes": 4}
"""After the greeting, none of them waits for another's answer."""


async def setup_commands(uri: str, database: str) -> Counter[str]:
    sent = CommandsSent()
    async with (
        AsyncMongoClient(uri, event_listeners=[sent]) as client,
        MongoSessionService(client=client, database=database),
    ):
        pass
    return Counter(sent.names) - Counter({"endSessions": 1})


async def test_a_known_database_is_looked_at_once(
    mongodb_uri: str, database: str
) -> None:
    """Its version, collections and indexes are asked for together; nothing more."""
    await setup_commands(mongodb_uri, database)
    assert await setup_commands(mongodb_uri, database) == LOOK


async def test_a_read_creates_nothing(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """It checks the server and the version once, and a write does the rest."""
    sent = CommandsSent()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[sent]) as client:
        service = MongoSessionService(client=client, database=database)
        for _ in range(2):
            assert await service.get_session(**SESSION) is None
        assert await service.find_turns() == []
        assert (await service.list_sessions(app_name="app")).sessions == []
        await service.delete_session(**SESSION)
        assert sent.names.count("hello") == 1
        assert {"create", "createIndexes", "listIndexes"}.isdisjoint(sent.names)
        assert database not in admin.list_database_names()

        await service.create_session(**SESSION)
        assert sent.names.count("createIndexes") == 4
        await service.close()


async def test_a_new_database_takes_one_command_for_each_collection(
    mongodb_uri: str, database: str
) -> None:
    """A collection is created with all of its indexes, but for the compressed one.

    The version comes last.
    """
    sent = await setup_commands(mongodb_uri, database)
    assert sent == Counter(LOOK) + Counter(create=7, createIndexes=4, update=1)


async def test_a_long_index_build_keeps_no_call_waiting(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
) -> None:
    """Calls are answered during the build; ``setup()`` ends when the index exists."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        await service.create_session(**SESSION)
    admin[database].sessions.drop_index("by_title")

    limits = Limits(unindexed_documents=0)
    service = MongoSessionService(mongodb_uri, database=database, _limits=limits)
    with held_index_builds(admin) as until_held:
        async with asyncio.timeout(PATIENCE):
            await service.append(**SESSION, event=Event(author="x"))
        await asyncio.to_thread(until_held)
    await service.setup()
    await service.close()

    assert "by_title" in admin[database].sessions.index_information()


async def test_events_are_stored_once_during_the_build_of_their_index(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
) -> None:
    """Until the unique index exists, each append looks whether its event is stored."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        session = await service.create_session(**SESSION)
        stored = await service.append_event(session, Event(author="x"))
    admin[database].events.drop_index(EVENT_ONCE.name)

    limits = Limits(unindexed_documents=0)
    service = MongoSessionService(mongodb_uri, database=database, _limits=limits)
    with held_index_builds(admin):
        found = await service.get_session(**SESSION)
        await service.append_event(found, stored.model_copy(deep=True))
        with pytest.raises(AlreadyExistsError):
            await service.append_event(found, Event(id=stored.id, author="y"))
    await service.setup()
    await service.close()

    assert admin[database].events.count_documents({"event": {"$exists": True}}) == 1
