"""States that have grown to the last byte that MongoDB takes are moved."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.transfers import IDS, compared

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import (
    Policies,
    Problem,
    ServiceSource,
    StoreSource,
    move,
)

MOST = 16 * 2**20


@pytest.mark.parametrize("collection", ["sessions", "user_states", "app_states"])
async def test_a_full_state_is_moved(
    service: MongoSessionService,
    copy: MongoSessionService,
    admin: MongoClient,
    database: str,
    collection: str,
) -> None:
    """What appends may fill, an import stores, and it is the same."""
    await service.create_session(**IDS, state={"user:u": 1, "app:a": 1, "s": 1})
    stored = admin[database][collection]
    (document,) = stored.find()
    document["state"]["big"] = ""
    document["state"]["big"] = "x" * (MOST - len(bson.encode(document)))
    stored.replace_one({"_id": document["_id"]}, document)

    async with StoreSource(service) as source:
        await move(source, copy)

    assert await compared(service, copy) == []


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
async def test_more_than_mongodb_takes_is_a_problem(
    service: MongoSessionService, prefix: str
) -> None:
    """The state is named, and all else is moved."""
    other: dict[str, Any] = {**IDS, "session_id": "other", "user_id": "other"}
    old = InMemorySessionService()
    await old.create_session(**IDS, state={f"{prefix}big": "x" * (MOST - 30)})
    await old.create_session(**other)
    problems: list[Problem] = []

    async with ServiceSource(old, ["weather"]) as source:
        skipping = Policies(on_error="skip")
        await move(source, service, policies=skipping, on_problem=problems.append)

    assert {"its largest state key is 'big'" in str(each) for each in problems} == {
        True
    }
    assert await service.get_session(**other)
