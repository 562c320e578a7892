"""What the application's hooks are given, and what comes of their failures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.genai import types
from pymongo import MongoClient
from support.encryption_hooks import CANARY, KEY, STATE, canary_event, seal, unseal

from mongo_session_service import (
    ConfigurationError,
    InvalidInputError,
    MongoSessionService,
    StorageError,
    Subject,
)
from mongo_session_service.transfer import Problem, StoreSource, TransferError, export

APP, USER = KEY["app_name"], KEY["user_id"]


async def test_hooks_receive_the_owner_of_each_value(
    mongodb_uri: str, database: str
) -> None:
    """Each value comes once, named by its key, and an event without its delta."""
    seen: list[tuple[Any, Subject]] = []

    def note(value: Any, subject: Subject) -> Any:
        seen.append((value, subject))
        return value

    async with MongoSessionService(
        mongodb_uri, database=database, before_store=note
    ) as service:
        session = await service.create_session(**KEY, state={"own": 1, "app:a": None})
        delta = {"own": 2, "user:u": b"bytes", "app:a": float("nan"), "temp:t": 3}
        event = Event(author="x", actions=EventActions(state_delta=delta))
        content = types.Part.from_bytes(data=b"\xff", mime_type="image/png")
        event.content = types.Content(parts=[content])
        await service.append_event(session, event)

    *values, (fields, subject) = seen
    assert values == [
        (1, Subject(APP, USER, "own")),
        (2, Subject(APP, USER, "own")),
        ("bytes", Subject(APP, USER, "user:u")),
        ({"%float": "nan"}, Subject(APP, None, "app:a")),
    ]
    assert subject == Subject(APP, USER, None)
    image = {"data": {"%bytes": "/w=="}, "mime_type": "image/png"}
    assert fields == {
        "author": "x",
        "content": {"parts": [{"inline_data": image}]},
        "invocation_id": "",
    }


async def test_redaction(
    mongodb_uri: str, database: str, service: MongoSessionService
) -> None:
    """What is masked is not stored; the caller's own objects keep it."""

    def mask(value: Any, _: Subject) -> Any:
        if isinstance(value, dict):
            return {key: mask(each, _) for key, each in value.items()}
        if isinstance(value, list):
            return [mask(each, _) for each in value]
        return re.sub(r"\S+@\S+", "<mail>", value) if isinstance(value, str) else value

    async with MongoSessionService(
        mongodb_uri, database=database, before_store=mask
    ) as masking:
        session = await masking.create_session(**KEY)
        content = types.UserContent("I am ada@example.org")
        delta = {"mail": "ada@example.org", "age": 36}
        event = Event(author="user", content=content)
        event.actions.state_delta = delta
        await masking.append_event(session, event)
        await masking.append_event(session, event)

    assert session.state == delta
    assert session.events == [event]
    assert "ada@" in event.model_dump_json()
    plain = await service.get_session(**KEY)
    assert plain is not None
    assert plain.state == {"mail": "<mail>", "age": 36}
    (found,) = plain.events
    assert found.content is not None
    assert found.content.parts == [types.Part(text="I am <mail>")]
    assert found.actions.state_delta == plain.state


async def test_hooks_can_be_given_later(
    mongodb_uri: str, database: str, service: MongoSessionService
) -> None:
    """Hooks that pass on what they did not make read what was stored before them."""
    session = await service.create_session(**KEY, state=STATE)
    await service.append_event(session, canary_event())

    def unseal_if_sealed(value: Any, subject: Subject) -> Any:
        return unseal(value, subject) if "sealed" in value else value

    async with MongoSessionService(
        mongodb_uri, database=database, before_store=seal, after_load=unseal_if_sealed
    ) as sealing:
        found = await sealing.get_session(**KEY)
        assert found == session
        await sealing.append_event(found, canary_event(**{"app:motto": "new"}))
        assert await sealing.get_session(**KEY) == found


def _boom(value: Any, _: Subject) -> Any:
    raise RuntimeError(value)


async def _late(value: Any, _: Subject) -> Any:
    return value


@pytest.mark.parametrize(
    "hook",
    [
        _boom,
        lambda value, _: [value, b"bytes"],
        lambda value, _: {1: value},
        _late,
        lambda *_: {"%bytes": "not base64"},
        lambda: None,
    ],
)
async def test_a_failing_hook_stores_nothing(
    mongodb_uri: str, database: str, admin: MongoClient, hook: Any
) -> None:
    """The call fails without a word of the value, and everything is as it was."""
    async with MongoSessionService(
        mongodb_uri,
        database=database,
        before_store=lambda value, subject: (
            hook(value, subject) if CANARY in str(value) else value
        ),
    ) as service:
        session = await service.create_session(**KEY, state={"own": 1})
        before = session.model_copy(deep=True)
        for event in (
            Event(author=CANARY),
            Event(author="x", actions=EventActions(state_delta={"own": CANARY})),
        ):
            with pytest.raises(InvalidInputError, match="^before_store ") as caught:
                await service.append_event(session, event)
            assert CANARY not in str(caught.value)
            assert caught.value.__context__ is None
        with pytest.raises(InvalidInputError, match="'user:k'"):
            await service.create_session(
                app_name=APP, user_id=USER, state={"user:k": CANARY}
            )
        assert session == before == await service.get_session(**KEY)

    assert admin[database].sessions.count_documents({}) == 1
    assert admin[database].events.count_documents({}) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: [1], "an object for an event"),
        (lambda _: "text", "an object for an event"),
        (lambda _: None, "an object for an event"),
        (lambda _: {"actions": 1}, "an object for an event"),
        (lambda fields: fields | {"content": CANARY}, "an event that ADK can"),
        (lambda fields: fields | {CANARY: 1}, "an event that ADK can"),
        (
            lambda fields: fields | {"timestamp": "x", "author": 1},
            "an event that ADK can",
        ),
    ],
)
async def test_a_hook_must_leave_a_readable_event(
    mongodb_uri: str, database: str, admin: MongoClient, change: Any, says: str
) -> None:
    """What could never be read again is refused, unless it will be changed back."""
    async with MongoSessionService(
        mongodb_uri, database=database, before_store=lambda value, _: change(value)
    ) as service:
        session = await service.create_session(app_name=APP, user_id=USER)
        with pytest.raises(InvalidInputError, match=says) as caught:
            await service.append_event(session, Event(author="x"))
        assert CANARY not in str(caught.value)
    assert admin[database].events.count_documents({}) == 0


async def test_shared_state_is_loaded_once(mongodb_uri: str, database: str) -> None:
    """A list asks the hook once for what its sessions share, and shares no value."""
    loaded: list[str | None] = []

    def note(value: Any, subject: Subject) -> Any:
        loaded.append(subject.state_key)
        return unseal(value, subject)

    async with MongoSessionService(
        mongodb_uri, database=database, before_store=seal, after_load=note
    ) as service:
        for number in range(5):
            state = {"own": number, "user:u": [1], "app:a": [2]}
            await service.create_session(app_name=APP, user_id=USER, state=state)
        loaded.clear()
        first, *others = (await service.list_sessions(app_name=APP)).sessions

    first.state["app:a"].append("mine alone")
    first.state["user:u"].append("mine alone")
    assert [each.state["app:a"] for each in others] == [[2]] * 4
    assert [each.state["user:u"] for each in others] == [[1]] * 4
    assert sorted(map(str, loaded)) == ["app:a", *["own"] * 5, "user:u"]


async def test_events_are_not_read_without_their_hook(
    sealed: MongoSessionService, service: MongoSessionService, tmp_path: Path
) -> None:
    """Without after_load a read is an error, rather than what is left of an event."""
    session = await sealed.create_session(**KEY)
    await sealed.append_event(session, canary_event())

    with pytest.raises(StorageError, match="was changed by before_store"):
        await service.get_session(**KEY)
    async with StoreSource(service) as source:
        with pytest.raises(TransferError, match="Nothing was exported: session"):
            await export(source, tmp_path / "sessions.jsonl")
        left_out: list[Problem] = []
        await export(source, tmp_path / "rest.jsonl", on_problem=left_out.append)
    assert "was changed by before_store" in left_out[0].reason


async def test_a_hook_that_fails_to_load_is_an_error(
    sealed: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """The error names the value or event, and not what it holds."""
    session = await sealed.create_session(**KEY, state={"own": CANARY})
    other = {**KEY, "session_id": "t"}
    await sealed.append_event(await sealed.create_session(**other), Event(author="x"))
    async with MongoSessionService(
        mongodb_uri, database=database, before_store=seal, after_load=_boom
    ) as service:
        with pytest.raises(StorageError, match="RuntimeError for state key 'own'"):
            await service.get_session(**KEY)
        with pytest.raises(StorageError, match="RuntimeError for an event") as caught:
            await service.get_session(**other)
        assert caught.value.__context__ is None
        with pytest.raises(StorageError, match="after_load failed"):
            async with service.watch(**KEY):
                pass
    assert await sealed.get_session(**KEY) == session


@pytest.mark.parametrize("name", ["before_store", "after_load"])
@pytest.mark.parametrize("hook", ["seal", 1, _late])
def test_hooks_are_plain_functions(name: str, hook: Any) -> None:
    """What cannot be called, or has to be awaited, is refused at once."""
    with pytest.raises(ConfigurationError, match=f"{name} must be a plain function"):
        MongoSessionService("mongodb://localhost", **{name: hook})
