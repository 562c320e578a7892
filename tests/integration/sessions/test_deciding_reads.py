"""Reads since a compaction: what decides, found by MongoDB or by a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.genai import types
from pymongo import MongoClient

from mongo_session_service import MongoSessionService, SinceCompaction

OF_SESSION = {"app_name": "app", "user_id": "ada", "session_id": "s"}


def called(id_: str, **fields: Any) -> Event:
    """A call of a tool."""
    call = types.Part(function_call=types.FunctionCall(id=id_, name="f"))
    return Event(author="a", content=types.Content(parts=[call]), **fields)


def answered(id_: str) -> Event:
    """A response to it."""
    response = types.Part(function_response=types.FunctionResponse(id=id_, name="f"))
    return Event(author="a", content=types.Content(parts=[response]))


def said(**fields: Any) -> Event:
    """An event of text."""
    return Event(author="a", content=types.UserContent("hello"), **fields)


def summed_up(end: int) -> Event:
    """A summary up to a time."""
    compaction = EventCompaction(
        start_timestamp=0.0,
        end_timestamp=float(end),
        compacted_content=types.UserContent("summary"),
    )
    return Event(author="user", actions=EventActions(compaction=compaction))


def rewound(invocation_id: str) -> Event:
    """What undoes all since an invocation."""
    actions = EventActions(rewind_before_invocation_id=invocation_id)
    return Event(author="user", actions=actions)


ODD = "\ud800"
"""Stored as what JSON has for it."""

LOG = [
    *(said(), called("plain"), answered("plain"), said(), said()),
    *(said(branch="root"), said(isolation_scope="late"), called("")),
    *(called("late", long_running_tool_ids={"late"}), said(), called("open"), said()),
    *(called("odd", invocation_id=ODD), said(), said(invocation_id=ODD), said()),
    *(said(long_running_tool_ids={"none"}), said(), summed_up(17), said(), said()),
    *(said(), rewound("i21"), said(), answered("late"), summed_up(20)),
    *(said(branch="f@plain"), said()),
]


@pytest.fixture
async def service(
    mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """One with a session of events of every kind, two in an invocation."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        session = await service.create_session(**OF_SESSION)
        for number, event in enumerate(LOG):
            invocation_id = event.invocation_id or f"i{number // 2 * 2 + 1}"
            changes = {"invocation_id": invocation_id, "timestamp": float(number)}
            await service.append_event(session, event.model_copy(update=changes))
        yield service


@pytest.mark.parametrize("begins", [0, 8])
async def test_mongodb_finds_what_a_client_finds(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
    begins: int,
) -> None:
    """In a whole log, and in one whose first events a trim is about to remove."""
    admin[database].sessions.update_one({}, {"$set": {"log_begins": begins}})
    others = {"transactions": False, "database": database}

    async with MongoSessionService(mongodb_uri, **others) as client:
        for overlap in range(3):
            config = SinceCompaction(overlap_size=overlap)
            found, expected = [
                await each.get_session(**OF_SESSION, config=config)
                for each in (service, client)
            ]

            assert found == expected
            assert 0 < len(found.events) < len(LOG) - begins
            assert all(event.timestamp >= begins for event in found.events)
