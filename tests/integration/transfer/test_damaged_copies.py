"""What keeps a copy from being read as its original is a difference, and mended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient
from support.transfers import compared, moved_copy

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import Policies, Problem, StoreSource, move

OWNER = {"app_name": "app", "user_id": "user"}
KEY = {**OWNER, "session_id": "s"}
SESSION = {"_id.session_id": "s"}
ASKED = {**SESSION, "_id.revision": 2}
CALL = {"call_id": "x", "name": "x", "author": "x", "since": 1.0, "revision": 1}

Damage = Callable[[Any], object]


def on(collection: str, where: dict[str, Any], **fields: Any) -> Damage:
    """Set fields of a document, or remove those that are None."""
    kept = {name: value for name, value in fields.items() if value is not None}
    gone = {name: "" for name in fields if name not in kept}
    change = {"$set": kept} if kept else {}
    change |= {"$unset": gone} if gone else {}
    return lambda at: at[f"copy_{collection}"].update_one(where, change)


def add_event(at: Any) -> object:
    """Store an event behind the last revision of a session."""
    event = at.copy_events.find_one(ASKED)
    event["_id"]["revision"] = 6
    event["event"]["id"] = "behind"
    return at.copy_events.insert_one(event)


DAMAGES: dict[str, Damage] = {
    "no origin": on("sessions", {"_id.session_id": "fork"}, forked_from=None),
    "another origin": on(
        "sessions", {"_id.session_id": "fork"}, **{"forked_from.0.session_id": "x"}
    ),
    "an origin": on(
        "sessions",
        SESSION,
        forked_from=[{"session_id": "x", "create_time": 1.0, "revision": 1}],
    ),
    "nothing waits": on("sessions", SESSION, waiting=None),
    "another call waits": on("sessions", SESSION, waiting=[CALL]),
    "more calls wait": on("sessions", SESSION, waiting_more=1),
    "a call waits": on("sessions", {"_id.session_id": "fork"}, waiting=[CALL]),
    "what waits is damaged": on("sessions", SESSION, waiting=[1]),
    "session needs": on("sessions", SESSION, needs=["x"]),
    "event is hooked": on("events", ASKED, hooked=True),
    "event needs": on("events", ASKED, needs=["x"]),
    "what an event has of waiting calls is damaged": on("events", ASKED, waiting=[1]),
    "an event has another waiting call": on("events", ASKED, waiting=[CALL]),
    "an event has no waiting call": on("events", ASKED, waiting=[]),
    "event behind the last revision": add_event,
}


@pytest.fixture
async def filled(service: MongoSessionService) -> None:
    """A session that waits for a person, and a fork of it that does not."""
    session = await service.create_session(**KEY)
    for number in range(1, 4):
        event = Event(id=f"e{number}", author="agent", timestamp=1000.0 + number)
        if number == 2:
            call = types.FunctionCall(id="c", name="ask", args={})
            parts = [types.Part(function_call=call)]
            event.content = types.Content(role="model", parts=parts)
            event.long_running_tool_ids = {"c"}
        await service.append_event(session, event)
    await service.fork_session(**KEY, at_revision=1, new_session_id="fork")


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damage_is_found_and_mended_or_named(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    damage: str,
) -> None:
    """After the next import there is no difference, or it has named the session."""
    async with moved_copy(service, mongodb_uri, database) as copy:
        assert await compared(service, copy) == []

        DAMAGES[damage](admin[database])

        assert await compared(service, copy) != []
        problems: list[Problem] = []
        async with StoreSource(service) as source:
            result = await move(
                source, copy, policies=Policies("skip"), on_problem=problems.append
            )
        assert problems or result.ahead or await compared(service, copy) == []
