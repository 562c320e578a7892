"""Turns whose process has died, without a process."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from support.one_session import IDS


async def abandon_turn(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    event: Event | None = None,
    ids: dict[str, str] = IDS,
    **fields: Any,
) -> None:
    """Leave the session as a process does that dies in a tool, or after an event.

    ``fields`` are more of the turn's, such as ``resumed``.
    """
    sessions = admin[database].sessions
    where = {f"_id.{name}": value for name, value in ids.items()}
    async with service.turn(**ids) as session:
        calling = types.FunctionCall(id="open", name="tool", args={})
        content = types.Content(parts=[types.Part(function_call=calling)])
        called = Event(author="agent", invocation_id="died", content=content)
        await service.append_event(session, event or called)
        held = sessions.find_one(where)["turn"]  # type: ignore[index]
    dead = {name: held[name] for name in ("holder", "since", "first_revision")}
    dead["renewed_at"] = held["renewed_at"].replace(year=2000)
    dead = {f"turn.{name}": value for name, value in (dead | fields).items()}
    sessions.update_one(where, {"$set": dead, "$unset": {"turn.ended": ""}})
