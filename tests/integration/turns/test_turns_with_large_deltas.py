"""Appends of hundreds of keys, which MongoDB is given in another form."""

from __future__ import annotations

import time

import pytest
from google.adk.events import Event, EventActions
from pymongo import MongoClient

from mongo_session_service import MongoSessionService

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}
LIFE = 1000.0


@pytest.mark.parametrize("keys", [1, 600])
async def test_the_first_revision_stays_and_a_life_grows(
    service: MongoSessionService, database: str, admin: MongoClient, keys: int
) -> None:
    """A turn began with its first event, and a clock set back shortens no life."""
    await service.create_session(**IDS, ttl=LIFE)
    sessions = admin[database].sessions
    async with service.turn(**IDS) as session:
        for before in (LIFE / 2, LIFE * 2):
            ends = time.time() + before
            sessions.update_one({}, {"$set": {"expire_time": ends}})
            began = time.time()
            delta = {f"k{number}": before for number in range(keys)}
            event = Event(author="agent", actions=EventActions(state_delta=delta))
            await service.append_event(session, event)

            (stored,) = sessions.find({})
            assert stored["turn"]["first_revision"] == 1
            assert stored["state"] == delta
            if before > LIFE:
                assert stored["expire_time"] == ends
            else:
                assert stored["expire_time"] >= began + LIFE - 1
