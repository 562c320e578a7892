"""A session's past: read as it was, and gone on from."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session

from mongo_session_service import InvalidInputError, MongoSessionService

KEY = {"app_name": "my_app", "user_id": "user-1", "session_id": "s"}
INITIAL = {"a": 0, "b": "initial", "user:u": 0, "a.$%": None}
DELTAS: list[dict[str, Any]] = [
    {"a": 1, "temp:t": 1},
    {},
    {"c": {"$ref": "x", "$id": 1}, "user:u": 3, "app:p": 3},
    {"a": None, "": 2**70},
]
STATES = [
    {"a": 0, "b": "initial", "a.$%": None},
    {"a": 1, "b": "initial", "a.$%": None},
    {"a": 1, "b": "initial", "a.$%": None},
    {"a": 1, "b": "initial", "a.$%": None, "c": {"$ref": "x", "$id": 1}},
    {"a": None, "b": "initial", "a.$%": None, "c": {"$ref": "x", "$id": 1}, "": 2**70},
]
SHARED = {"user:u": 3, "app:p": 3}


async def fill(ours: MongoSessionService, **state: Any) -> Session:
    session = await ours.create_session(**KEY, state={**INITIAL, **state})
    for number, delta in enumerate(DELTAS):
        actions = EventActions(state_delta={**delta})
        event = Event(id=f"e{number}", author="x", timestamp=number, actions=actions)
        await ours.append_event(session, event)
    return session


@pytest.mark.parametrize("padding", [{}, {"large": "x" * 10_000}])
async def test_a_session_is_read_as_it_was(
    ours: MongoSessionService, padding: dict[str, Any]
) -> None:
    """At each revision: its first events, its own state then, and shared state now."""
    session = await fill(ours, **padding)

    for revision, state in enumerate(STATES):
        found = await ours.get_session_at(**KEY, revision=revision)
        assert found is not None
        assert found.state == {**state, **SHARED, **padding}
        assert found.events == session.events[:revision]
    assert found == await ours.get_session(**KEY)
    with pytest.raises(InvalidInputError):
        await ours.get_session_at(**KEY, revision=5)
    other = {**KEY, "session_id": "other"}
    assert await ours.get_session_at(**other, revision=0) is None


async def test_the_past_is_not_appended_to(ours: MongoSessionService) -> None:
    """A session that has gone on is not appended to from where it was."""
    await fill(ours)
    past = await ours.get_session_at(**KEY, revision=2)
    latest = await ours.get_session_at(**KEY, revision=4)
    assert past
    assert latest

    with pytest.raises(StaleSessionError):
        await ours.append_event(past, Event(author="x"))
    await ours.append_event(latest, Event(author="x"))


@pytest.mark.parametrize("padding", [{}, {"large": "x" * 10_000}])
async def test_a_fork_goes_on_by_itself(
    ours: MongoSessionService, padding: dict[str, Any]
) -> None:
    """A fork has the log so far, its state and its past, and no part in the source."""
    source = await fill(ours, **padding)
    before = await ours.get_session(**KEY)
    forks = []

    for revision in (0, 3, None):
        name = f"f{revision}"
        fork = await ours.fork_session(
            **KEY, at_revision=revision, new_session_id=f" {name} "
        )

        count = len(DELTAS) if revision is None else revision
        assert (fork.app_name, fork.user_id, fork.id) == ("my_app", "user-1", name)
        assert fork.events == source.events[:count]
        assert fork.state == {**STATES[count], **SHARED, **padding}
        actions = EventActions(state_delta={"a": "forked"})
        await ours.append_event(fork, Event(author="x", actions=actions))
        key = {**KEY, "session_id": name}
        for earlier in range(count + 1):
            found = await ours.get_session_at(**key, revision=earlier)
            assert found is not None
            assert found.state == {**STATES[earlier], **SHARED, **padding}
        forks.append(fork)
    assert await ours.get_session(**KEY) == before
    await ours.delete_session(**KEY)
    for fork in forks:
        key = {**KEY, "session_id": fork.id}
        assert await ours.get_session(**key) == fork


async def test_a_fork_keeps_the_details(ours: MongoSessionService) -> None:
    """Title, labels and time to live are the source's."""
    await ours.create_session(**KEY, title="t", labels={"l": "v"}, ttl=1000)

    fork = await ours.fork_session(**KEY, new_session_id="f")

    changed = await ours.update_session(**{**KEY, "session_id": fork.id}, title="u")
    assert changed.labels == {"l": "v"}
    assert changed.expire_time is not None


async def test_impossible_forks_are_refused(ours: MongoSessionService) -> None:
    """Without a source, beyond its log, or onto another session there is no fork."""
    with pytest.raises(SessionNotFoundError):
        await ours.fork_session(**KEY)
    session = await fill(ours)
    with pytest.raises(InvalidInputError):
        await ours.fork_session(**KEY, at_revision=5)
    with pytest.raises(InvalidInputError):
        await ours.fork_session(**KEY, at_revision=-1)
    with pytest.raises(AlreadyExistsError):
        await ours.fork_session(**KEY, new_session_id="s")

    sessions = await ours.list_sessions(app_name="my_app")
    assert [each.id for each in sessions.sessions] == ["s"]
    assert await ours.get_session(**KEY) is not None
    assert len(session.events) == 4
