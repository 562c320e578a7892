"""The page on the data model is all that an outside reader needs."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson.int64 import Int64
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.doc_blocks import blocks_of
from support.strategies import identical, nested

from mongo_session_service import MongoSessionService

PAGE = Path(__file__).parents[3] / "docs" / "data-model.md"
APP, USER = "my.app", "ädä"
OWN = {"app_name": APP, "user_id": USER}

VALUES: dict[str, Any] = {
    "": "empty key",
    "a.b": 2**70,
    "$set": {"a.b": {"$inc": 1}, "": None},
    "%2E": -(2**63) - 1,
    "%": ["\ud800", {"k": 2**64}],
    "nul\0": "a\0b",
    "half \ud800": {"\udfff": 1, "\ud83d\ude00": 2},
    "%json": {"%json": "text"},
    "$ref": {"$ref": "sessions", "$id": 1},
    "deep": nested(70, 2**65),
    "plain": {"list": [1, 1.0, True, None, -0.0, 2**53 + 1, math.inf]},
    "gone": None,
}
"""Every line of the page's tables, and what is native beside it."""

STATE = {
    prefix + key: it for prefix in ("", "app:", "user:") for key, it in VALUES.items()
}


@pytest.fixture
def reader(tmp_path: Path) -> Any:
    (block,) = (each for each in blocks_of(PAGE) if each.title == "rebuild.py")
    path = tmp_path / block.title
    names: dict[str, Any] = {}
    exec(compile(block.text, path, "exec"), names)  # noqa: S102  as a reader would
    return SimpleNamespace(**names)


def python(value: Any) -> Any:
    """What a driver has read, in Python's own types."""
    if isinstance(value, Int64):
        return int(value)
    if isinstance(value, list):
        return list(map(python, value))
    if isinstance(value, dict):
        return {key: python(each) for key, each in value.items()}
    return value


def different(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The keys whose values are not type for type the same, with both."""
    pairs = {key: (python(one.get(key)), other.get(key)) for key in [*one, *other]}
    return {key: pair for key, pair in pairs.items() if not identical(*pair)}


async def append(service: MongoSessionService, session: Session, delta: Any) -> None:
    actions = EventActions(state_delta=delta)
    await service.append_event(session, Event(author="x", actions=actions))


async def live(service: MongoSessionService) -> None:
    """All that writes state, with what is awkward in each place."""
    first = await service.create_session(**OWN, session_id="first", state=STATE)
    await append(service, first, {"many": {"a.b": 1, "same": [1, 2]}})
    await append(service, first, STATE | {"plain": {"list": []}, "user:gone": 1})
    many: dict[str, Any] = {
        f"{scope}k{n}": n for n in range(600) for scope in ("", "app:")
    }
    await append(service, first, many | {"many": {"a.b": 2, "same": [1]}})
    for key, value in VALUES.items():
        await append(service, first, {key: value, f"user:{key}": [value]})
    fork = await service.fork_session(
        **OWN, session_id="first", new_session_id="fork", at_revision=2
    )
    await append(service, fork, {"app:plain": "fork"})
    await service.update_session(**OWN, session_id="fork", title="A fork")
    removed = await service.create_session(**OWN, session_id="removed", state=STATE)
    await append(service, removed, {"user:late": 1})
    await service.delete_session(**OWN, session_id="removed")
    await service.create_session(app_name=APP, user_id="other", state={"user:x": 1})


async def test_a_change_stream_and_the_page_rebuild_all_state(
    service: MongoSessionService, database: str, admin: MongoClient, reader: Any
) -> None:
    """Of every session, app and user, type for type; nothing else is needed."""
    db = admin[database]
    states: dict[Any, Any] = {}
    with db.watch(full_document="updateLookup") as stream:
        await live(service)
        db.end.insert_one({"_id": 1})
        for change in stream:
            if change["ns"]["coll"] == "end":
                break
            reader.apply(change, states)

    keys = [place[1:] for place in states if place[0] == "sessions"]
    for key in keys:
        names = dict(zip(("app_name", "user_id", "session_id"), key, strict=True))
        found = await service.get_session(**names)
        assert found is not None
        found.state.pop("__session_metadata__", None)  # the title's place in a read
        assert different(reader.shown(states, *key), found.state) == {}
    assert len(keys) == 3
    assert {place for place in states if place[0] != "sessions"} == {
        ("app_states", APP),
        ("user_states", APP, USER),
        ("user_states", APP, "other"),
    }


async def test_the_log_and_the_initial_state_rebuild_a_session(
    service: MongoSessionService, database: str, admin: MongoClient, reader: Any
) -> None:
    """Deltas add up to a session's own state, from the state it began with."""
    db = admin[database]
    with db.watch() as stream:
        await live(service)
        db.end.insert_one({"_id": 1})
        own: dict[str, Any] = {}
        for change in stream:
            if change["ns"]["coll"] == "end":
                break
            id_ = change["documentKey"]["_id"]
            if isinstance(id_, str) or id_.get("session_id") != "first":
                continue
            if (
                change["ns"]["coll"] == "sessions"
                and change["operationType"] == "insert"
            ):
                own = reader.state(change["fullDocument"])
            if change["ns"]["coll"] == "events" and id_["revision"]:
                delta = reader.delta(change["fullDocument"])
                own |= {k: v for k, v in delta.items() if ":" not in k}

    found = await service.get_session(**OWN, session_id="first")
    assert found is not None
    assert different(own, {k: v for k, v in found.state.items() if ":" not in k}) == {}
