"""Indexes that a user may not create, or that were dropped."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from pymongo import MongoClient
from support.failpoints import failing, victim_uri
from support.subscriptions import SESSION

from mongo_session_service import MongoSessionService
from mongo_session_service.admin import Status, examine
from mongo_session_service.schema.indexes import INDEXES


async def test_without_the_index_each_append_is_checked(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A user who may not create it is warned once, and stores nothing twice."""
    with failing(admin, "createIndexes", errorCode=13):
        async with MongoSessionService(
            victim_uri(mongodb_uri), database=database
        ) as service:
            session = await service.create_session(**SESSION)
            stored = await service.append_event(session, Event(author="x"))
            await service.append_event(session, stored.model_copy(deep=True))
            with pytest.raises(AlreadyExistsError):
                await service.append_event(session, Event(id=stored.id, author="other"))

    assert admin[database].events.count_documents({}) == 1
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "Not all could be created" in warning.message


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
