"""Moving between an old service and ours, for tests of what comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions.session import Session
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import (
    EVERYTHING,
    JsonLinesSource,
    Moved,
    Policies,
    Problem,
    Selection,
    ServiceSource,
    StoreSource,
    export,
    export_file,
    move,
    verify,
)
from mongo_session_service.transfer.sources import SessionHeader
from support.sample_data import APPS

IDS = {"app_name": "weather", "user_id": "ada", "session_id": "s1"}
NAMED = "session {!r} of user {!r} in app 'weather'"
LATER = 1735789600.5
FAIL = Policies()
SKIP = Policies(on_conflict="skip")


@asynccontextmanager
async def moved_copy(
    service: MongoSessionService, uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """A service beside another, with all that was moved from there."""
    async with MongoSessionService(
        uri, database=database, collection_prefix="copy_"
    ) as copy:
        async with StoreSource(service) as source:
            await move(source, copy)
        yield copy


async def moved(
    old: Any, service: MongoSessionService, policies: Policies = FAIL
) -> tuple[Moved, list[str]]:
    """Move everything, and what was said of it."""
    problems: list[Problem] = []
    async with ServiceSource(old, APPS) as source:
        result = await move(
            source, service, policies=policies, on_problem=problems.append
        )
    return result, [str(each) for each in problems]


async def differences(old: Any, service: MongoSessionService) -> list[str]:
    found: list[Problem] = []
    async with ServiceSource(old, APPS) as source, StoreSource(service) as target:
        await verify(source, target, is_exact=True, on_difference=found.append)
    return [str(each) for each in found]


async def exported(
    service: MongoSessionService, path: Path, selection: Selection = EVERYTHING
) -> bytes:
    """Export everything, or a selection, and what the file holds."""
    async with StoreSource(service) as source:
        await export(source, path, selection)
    return path.read_bytes()


async def imported(
    path: Path, service: MongoSessionService, policies: Policies = FAIL
) -> Moved:
    async with JsonLinesSource(path) as source:
        return await move(source, service, policies=policies)


async def compared(one: MongoSessionService, other: MongoSessionService) -> list[str]:
    """What is different in two of our own stores."""
    found: list[Problem] = []
    async with StoreSource(one) as source, StoreSource(other) as target:
        await verify(source, target, is_exact=True, on_difference=found.append)
    return [str(each) for each in found]


async def say(service: Any, words: str, at: float = LATER, **delta: Any) -> Session:
    """Append to a session, in whichever service."""
    session = await service.get_session(**IDS)
    actions = EventActions(state_delta=delta)
    event = Event(id=words, author="user", timestamp=at, actions=actions)
    await service.append_event(session, event)
    return session


def export_text(*items: SessionHeader | Event) -> str:
    """The content of an export file that holds these items."""
    sessions = sum(isinstance(each, SessionHeader) for each in items)
    end = export_file.encode_end(sessions, len(items) - sessions)
    lines = [export_file.HEADER, *map(export_file.encode_item, items), end]
    return "\n".join([*lines, ""])


def everything(admin: MongoClient, database: str) -> dict[str, list[dict[str, Any]]]:
    names = ("sessions", "events", "app_states", "user_states", "imports")
    return {name: list(admin[database][name].find().sort("_id")) for name in names}
