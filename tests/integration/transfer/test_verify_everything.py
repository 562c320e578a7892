"""Verification finds a change of any field of any stored document."""

from __future__ import annotations

import copy as copying
import datetime as dt
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from google.adk.events import Event, EventActions
from google.genai import types
from pymongo import MongoClient
from support.encryption_hooks import KEY, SEALED, STATE, canary_event
from support.transfers import compared, exported, moved_copy

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import StoreSource, move

COLLECTIONS = ("sessions", "events", "app_states", "user_states")
OWNER = {"app_name": "app", "user_id": "user"}
DATE = dt.datetime(2025, 1, 2, tzinfo=dt.UTC)
LARGE = "x" * 5_000
"""Initial state that is stored apart."""


async def filled(service: MongoSessionService) -> None:
    """Two sessions that use every kind of field."""
    state = {
        "n": 1,
        "flag": True,
        "deep": {"list": [1.5, "x"]},
        "app:a": 1,
        "user:u": 2,
    }
    session = await service.create_session(
        **OWNER, session_id="s", state=state, title="t", labels={"k": "v"}, ttl=3600
    )
    part = types.Part(text="hello", thought_signature=b"ab")
    actions = EventActions(state_delta={"n": 2, "%odd": {"$x": 1}, "app:a": 3})
    content = types.Content(role="model", parts=[part])
    event = Event(
        id="e",
        invocation_id="i",
        author="agent",
        timestamp=1000.0,
        content=content,
        actions=actions,
    )
    await service.append_event(session, event)
    await service.create_session(**OWNER, session_id="large", state={"x": LARGE})


@pytest.fixture
async def copy(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """A service that has what the other has, moved there."""
    await filled(service)
    async with moved_copy(service, mongodb_uri, database) as copy:
        yield copy


def others(value: Any) -> Iterator[Any]:
    """Values that are not this one, though some are easily taken for it."""
    match value:
        case bool():
            yield from (not value, int(value))
        case int():
            yield from (value + 1, float(value), str(value), DATE, ObjectId())
        case float():
            yield from (value + 1, str(value))
            if value.is_integer():
                yield int(value)
        case str():
            yield from (value[:50] + "x", value.encode()[:50])
        case bytes():
            yield from (value + b"x", value.hex())
        case None:
            yield from (0, "")
        case dict():
            yield DATE
        case list():
            yield from ([*value, value[0]], ObjectId())


def changed(document: Any, *, is_whole: bool = True) -> Iterator[tuple[str, Any]]:
    """The document with one change, for each change of each part; and what it is."""
    parts: Any = ()
    if isinstance(document, dict):
        parts = document.items()
    elif isinstance(document, list):
        parts = enumerate(document)
    for name, part in parts:
        if name == "copied_by":  # how it came here, which differs from the source's
            continue
        for other in others(part):
            yield f".{name} = {other!r:.60}", _with(document, name, other)
        for what, other in changed(part, is_whole=False):
            yield f".{name}{what}", _with(document, name, other)
        if isinstance(document, dict) and not (is_whole and name == "_id"):
            gone = {each: value for each, value in document.items() if each != name}
            yield f".{name} is gone", gone


def _with(document: Any, name: Any, value: Any) -> Any:
    different = copying.copy(document)
    different[name] = value
    return different


@pytest.mark.long
async def test_every_change_of_a_field_is_found(
    service: MongoSessionService,
    copy: MongoSessionService,
    admin: MongoClient,
    database: str,
    tmp_path: Path,
) -> None:
    """Each field of sessions, events and state: other values, other types, or gone.

    But for a number of another type, say, which an export has as it was.
    """
    unseen = []
    path = tmp_path / "all.jsonl"
    same = await exported(copy, path)
    for name in COLLECTIONS:
        collection = admin[database][f"copy_{name}"]
        for document in list(collection.find()):
            for what, other in changed(document):
                collection.delete_one({"_id": document["_id"]})
                try:
                    collection.insert_one(other)
                    is_seen = bool(await compared(service, copy))
                    if not is_seen and await exported(copy, path) != same:
                        unseen.append(f"{name}: {what}")
                finally:
                    collection.delete_one({"_id": other["_id"]})
                    collection.insert_one(document)

    assert await compared(service, copy) == []
    assert unseen == []


async def test_a_microsecond_is_no_difference(
    service: MongoSessionService,
    copy: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Not every store keeps it."""
    rounded = {"$inc": {"update_time": 1e-6, "create_time": 1e-6}}
    admin[database].copy_sessions.update_one({"_id.session_id": "s"}, rounded)

    assert await compared(service, copy) == []


async def test_sealed_values_are_compared_decrypted(
    mongodb_uri: str, database: str
) -> None:
    """No two seals are alike, and neither they nor odd values are a difference."""
    place: dict[str, Any] = {"database": database, **SEALED}
    async with (
        MongoSessionService(mongodb_uri, **place) as service,
        MongoSessionService(mongodb_uri, collection_prefix="copy_", **place) as copy,
    ):
        session = await service.create_session(**KEY, state=STATE)
        await service.append_event(session, canary_event())
        async with StoreSource(service) as source:
            await move(source, copy)

        assert await compared(service, copy) == []
