"""Sessions with many events, stored without waiting for as many appends."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey


async def store_long_session(
    service: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
    key: SessionKey,
    events: int,
) -> None:
    """Create a session as if events ``e1``, ``e2`` … had been appended to it.

    Each has set ``n`` in its state to its number.
    """
    await service.create_session(**key.id, state={"n": 0, "kept": "yes"})
    for first in range(1, events + 1, 10_000):
        numbers = range(first, min(first + 10_000, events + 1))
        admin[database].events.insert_many(event(key, number) for number in numbers)
    now = {"state.n": events, "revision": events, "update_time": float(events)}
    admin[database].sessions.update_one({"_id": key.id}, {"$set": now})


def event(key: SessionKey, number: int) -> dict[str, Any]:
    """An event as it is stored."""
    stored = {
        "id": f"e{number}",
        "author": "user",
        "invocation_id": f"i{number}",
        "timestamp": float(number),
        "actions": {"state_delta": {"n": number}},
    }
    return {"_id": key.event_id(number), "event": stored}


def left_in(admin: MongoClient[Any], database: str) -> dict[str, int]:
    """How many sessions and events are stored, whether or not anyone is shown them."""
    names = ("sessions", "events")
    return {name: admin[database][name].count_documents({}) for name in names}
