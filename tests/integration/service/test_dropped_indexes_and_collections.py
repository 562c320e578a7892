"""Indexes and collections that are taken away under a running service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.sessions import Session
from pymongo import MongoClient
from pymongo.database import Database
from support.failpoints import failing, victim_uri
from support.subscriptions import PATIENCE, SESSION

from mongo_session_service import MongoSessionService, SchemaVersionError
from mongo_session_service.model.limits import Limits
from mongo_session_service.schema.indexes import INDEXES

WARNING = "Indexes are gone"


@pytest.fixture
async def watchful(
    mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """A service that looks with each call whether its setup was undone."""
    uri = victim_uri(mongodb_uri)
    async with MongoSessionService(
        uri, database=database, _limits=Limits(look_seconds=0.0)
    ) as service:
        yield service


def drop_indexes(db: Database[Any]) -> None:
    db.events.drop_indexes()
    db.sessions.drop_indexes()


def rename(db: Database[Any]) -> None:
    db.events.rename("kept")


def restore(db: Database[Any]) -> None:
    """As ``mongorestore --drop --noIndexRestore`` does."""
    stored = list(db.events.find())
    db.events.drop()
    db.events.insert_many(stored)


async def noticed(service: MongoSessionService, is_noticed: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_noticed():
            await service.list_sessions(app_name="app")


async def append_twice(service: MongoSessionService, session: Session) -> None:
    """Append what is stored already, and something else under the same id."""
    stored = await service.append_event(session, Event(author="x"))
    await service.append_event(session, stored.model_copy(deep=True))
    with pytest.raises(AlreadyExistsError):
        await service.append_event(session, Event(id=stored.id, author="other"))


@pytest.mark.parametrize(
    "undo",
    [
        drop_indexes,
        rename,
        restore,
        lambda db: db.events.drop(),
        lambda db: db.client.drop_database(db.name),
    ],
    ids=["dropIndexes", "rename", "restore", "drop", "dropDatabase"],
)
async def test_what_was_undone_is_done_again(
    watchful: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
    undo: Callable[[Database[Any]], None],
) -> None:
    """The service warns, creates the indexes again, and stores each event once."""
    session = await watchful.create_session(**SESSION)
    await append_twice(watchful, session)
    collections = {each.collection for each in INDEXES}

    def is_set_up() -> bool:
        found = {
            name
            for each in collections
            for name in admin[database][each].index_information()
        }
        return {each.name for each in INDEXES} <= found

    undo(admin[database])
    assert not is_set_up()
    await noticed(watchful, is_set_up)

    assert WARNING in caplog.text
    new = await watchful.create_session(app_name="app", user_id="user")
    await append_twice(watchful, new)
    found = {"_id.session_id": new.id, "event": {"$exists": True}}
    assert admin[database].events.count_documents(found) == 1


async def test_without_the_index_each_append_is_checked(
    watchful: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who may not create the index again has it said once, and stores nothing twice."""
    session = await watchful.create_session(**SESSION)
    with failing(admin, "createIndexes", errorCode=13):
        admin[database].events.drop_indexes()
        await noticed(watchful, lambda: "Not all could be created" in caplog.text)
        await append_twice(watchful, session)
        for _ in range(10):
            await watchful.list_sessions(app_name="app")

    assert admin[database].events.count_documents({}) == 1
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2


async def test_newer_data_is_refused_as_at_the_start(
    watchful: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A newer release's backup that is restored is not written to."""
    await watchful.create_session(**SESSION)
    admin[database].metadata.update_many({}, {"$set": {"version": 999}})

    with pytest.raises(SchemaVersionError, match="999"):
        await noticed(watchful, lambda: False)


async def test_a_look_does_not_come_with_each_append(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Within the interval no index is asked for."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        session = await service.create_session(**SESSION)
        before = admin.admin.command("serverStatus")["metrics"]["commands"]
        for _ in range(5):
            await service.append_event(session, Event(author="x"))
        after = admin.admin.command("serverStatus")["metrics"]["commands"]

    asked = "listIndexes"
    assert after[asked]["total"] - before[asked]["total"] == 0
