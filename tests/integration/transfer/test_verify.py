"""Verification finds whatever is other in the target, however small it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pymongo import MongoClient
from support.long_sessions import store_long_session
from support.sample_data import STARTED, fill
from support.transfers import IDS, NAMED, compared, moved_copy

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey

UPDATED = STARTED + 600.5
LATER = UPDATED + 0.001


@pytest.fixture
async def copy(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """A service that has what the other has, moved there."""
    await fill(service)
    async with moved_copy(service, mongodb_uri, database) as copy:
        yield copy


async def test_every_difference_is_reported(
    service: MongoSessionService,
    copy: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Order, times, and state of each scope; 9 is not 9.0, and no value is shown."""
    stored = admin[database]
    swapped = [{**IDS, "revision": each} for each in (2, 3)]
    pair = list(stored.copy_events.find({"_id": {"$in": swapped}}).sort("_id"))
    stored.copy_events.delete_many({"_id": {"$in": swapped}})
    stored.copy_events.insert_many(
        {**one, "event": other["event"]}
        for one, other in zip(pair, reversed(pair), strict=True)
    )
    for collection, where, change in (
        ("sessions", {"_id.session_id": "s2"}, {"$set": {"update_time": LATER}}),
        ("sessions", {"_id.session_id": "s/3"}, {"$set": {"create_time": 0.5}}),
        (
            "sessions",
            {"_id.session_id": "empty"},
            {"$set": {"initial_state.only": "other"}},
        ),
        (
            "user_states",
            {"_id.app_name": "weather", "_id.user_id": "ada"},
            {"$set": {"state.city": "Rome", "state.more": 1}},
        ),
        ("app_states", {"_id": "weather"}, {"$set": {"state.count": 9.0}}),
    ):
        changed = stored[f"copy_{collection}"].update_one(where, change)
        assert changed.modified_count == 1

    found = await compared(service, copy)

    ada = "state of user 'ada' in app 'weather'"
    assert found == [
        "state of app 'weather': it differs",
        f"{ada}: it differs",
        f"{NAMED.format('s1', 'ada')}: event 2 ('s1-0-agent') differs",
        f"{NAMED.format('s2', 'ada')}: update_time differs",
        f"{NAMED.format('s/3', 'bob/x')}: create_time differs",
        f"{NAMED.format('empty', 'carl')}: initial_state differs",
    ]


async def test_a_microsecond_is_no_difference(
    service: MongoSessionService,
    copy: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Not every store keeps it."""
    rounded = {"$inc": {"update_time": 1e-6, "create_time": 1e-6}}
    admin[database].copy_sessions.update_many({}, rounded)

    assert await compared(service, copy) == []


async def test_a_difference_in_a_long_session_is_found(
    service: MongoSessionService,
    admin: MongoClient,
    mongodb_uri: str,
    database: str,
) -> None:
    """A session of several parts is compared to its end."""
    key = SessionKey(**IDS)
    await store_long_session(service, admin, database, key, 2_500)
    async with moved_copy(service, mongodb_uri, database) as copy:
        assert await compared(service, copy) == []
        for revision in (1_200, 2_400):
            changed = {"$set": {"event.author": "changed"}}
            admin[database].copy_events.update_one(
                {"_id": key.event_id(revision)}, changed
            )

        found = await compared(service, copy)

    (first, second) = found
    assert ": event 1200 (" in first
    assert ": event 2400 (" in second
    assert all(each.endswith(" differs") for each in found)
