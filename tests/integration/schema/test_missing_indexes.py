"""Indexes that a user may not create, or that were dropped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.failpoints import failing, victim_uri
from support.subscriptions import PATIENCE, SESSION

from mongo_session_service import MongoSessionService, NotAuthorizedError
from mongo_session_service.admin import Status, examine
from mongo_session_service.schema.indexes import INDEXES
from mongo_session_service.testing import Limits


async def test_a_user_who_may_not_create_uses_what_is_there(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """What is missing is one error, which names ``grants``; nothing is stored."""
    service = MongoSessionService(victim_uri(mongodb_uri), database=database)
    with failing(admin, "create", "createIndexes", errorCode=13):
        with pytest.raises(NotAuthorizedError, match="mongo-session-service grants"):
            await service.create_session(**SESSION)
        assert database not in admin.list_database_names()
        async with MongoSessionService(mongodb_uri, database=database):
            pass  # an administrator's
        await service.create_session(**SESSION)
    await service.close()


async def test_indexes_that_a_user_may_not_build_are_named(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a large collection, for which no call waits."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        await service.create_session(**SESSION)
    admin[database].sessions.drop_index("by_title")
    logged: asyncio.Future[str] = asyncio.Future()
    monkeypatch.setattr(
        logging.getLogger("mongo_session_service.backend"),
        "warning",
        lambda text, error: logged.set_result(text % error),
    )
    service = MongoSessionService(
        victim_uri(mongodb_uri),
        database=database,
        _limits=Limits(unindexed_documents=0),
    )
    with failing(admin, "createIndexes", errorCode=13):
        await service.append(**SESSION, event=Event(author="x"))
        async with asyncio.timeout(PATIENCE):
            warning = await logged
    await service.close()

    assert warning.startswith("Indexes are missing. MongoDB refused a command: ")


async def test_dropped_indexes_are_reported_and_created_by_setup(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """The doctor names each, and ``setup()`` creates them once more."""
    await service.setup()
    db: Any = admin[database]
    collections = {each.collection for each in INDEXES}
    for each in collections:
        db[each].drop_indexes()

    findings = {each.check: each async for each in examine(service)}
    assert findings["indexes"].status is Status.WARNING
    assert [it.name for it in INDEXES if it.name not in findings["indexes"].says] == []

    await service.setup()
    there = {name for each in collections for name in db[each].index_information()}
    assert {each.name for each in INDEXES} <= there
