"""An append happens as a whole or not at all, and the caller is told which."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.failpoints import failing, open_transactions
from support.one_session import IDS, read

from mongo_session_service import (
    MongoSessionService,
    StorageError,
)

ALL_SCOPES = {"k": 1, "app:k": 1, "user:k": 1, "temp:k": 1}
NETWORK_ERROR = {"closeConnection": True}
TRANSIENT = {"errorCode": 251, "errorLabels": ["TransientTransactionError"]}
PERMANENT = {"errorCode": 2}


def new_event(**delta: Any) -> Event:
    return Event(author="x", actions=EventActions(state_delta=delta or ALL_SCOPES))


def everything(admin: MongoClient, database: str) -> dict[str, list[dict[str, Any]]]:
    names = ("sessions", "events", "app_states", "user_states")
    return {name: list(admin[database][name].find()) for name in names}


@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
@pytest.mark.parametrize("how", [TRANSIENT, NETWORK_ERROR], ids=["label", "network"])
async def test_passing_faults_are_retried(
    victim: MongoSessionService, admin: MongoClient, command: str, how: dict[str, Any]
) -> None:
    """A transient error at any statement is retried: the event is stored once."""
    session = await victim.create_session(**IDS)

    with failing(admin, command, times=1, **how):
        await victim.append_event(session, new_event())

    assert session.state == ALL_SCOPES
    session.state.pop("temp:k")
    assert await read(victim) == session
    assert len(session.events) == 1
    assert open_transactions(admin) == 0


@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
async def test_a_failed_append_leaves_no_trace(
    victim: MongoSessionService, admin: MongoClient, database: str, command: str
) -> None:
    """After an error, storage and the caller's objects are as before, and usable."""
    session = await victim.create_session(**IDS, state={"k": 0})
    await victim.append_event(session, new_event())
    event = new_event(k=2, **{"app:k": 2, "user:k": 2, "temp:k": 2})
    session_before = session.model_copy(deep=True)
    event_before = event.model_copy(deep=True)
    stored_before = everything(admin, database)

    with failing(admin, command, **PERMANENT), pytest.raises(StorageError):
        await victim.append_event(session, event)

    assert session == session_before
    assert event == event_before
    assert everything(admin, database) == stored_before
    assert open_transactions(admin) == 0
    await victim.append_event(session, event)
    assert session.state == {"k": 2, "app:k": 2, "user:k": 2, "temp:k": 2}
    assert len((await read(victim)).events) == 2


@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
async def test_a_failed_create_leaves_no_trace(
    victim: MongoSessionService, admin: MongoClient, database: str, command: str
) -> None:
    """App and user state are never written when the session was not."""
    with failing(admin, command, **PERMANENT), pytest.raises(StorageError):
        await victim.create_session(**IDS, state=ALL_SCOPES)

    assert not any(everything(admin, database).values())
    created = await victim.create_session(**IDS, state=ALL_SCOPES)
    assert created.state == {"k": 1, "app:k": 1, "user:k": 1}


async def test_a_stale_session_is_refused(service: MongoSessionService) -> None:
    """Of two copies, the one that lags behind is refused and stays as it was."""
    session = await service.create_session(**IDS)
    stale = session.model_copy(deep=True)
    await service.append_event(session, new_event(k="first"))
    before = stale.model_copy(deep=True)

    for _ in range(2):
        with pytest.raises(StaleSessionError, match="modified in storage") as it:
            await service.append_event(stale, new_event(k="second"))
        assert f"Session {session.id!r}" in str(it.value)
        assert "from revision 0 to 1" in str(it.value)
        assert "Runner" in str(it.value)
        assert "on_conflict='rebase'" in str(it.value)

    assert stale == before
    assert (await read(service)).state == {"k": "first"}
    await service.append_event(await read(service), new_event(k="third"))
    assert (await read(service)).state == {"k": "third"}


async def test_a_session_without_marker_is_judged_by_its_content(
    service: MongoSessionService,
) -> None:
    """A session rebuilt from JSON may append if it is current, and is stale if not."""
    session = await service.create_session(**IDS)
    await service.append_event(session, Event(author="1", timestamp=9e9))
    current = Session.model_validate_json(session.model_dump_json())
    await service.append_event(current, Event(author="2", timestamp=9e9 + 1))

    outdated = Session.model_validate_json(session.model_dump_json())
    outdated.last_update_time = 9e9 + 99
    with pytest.raises(StaleSessionError):
        await service.append_event(outdated, Event(author="3"))

    assert [event.author for event in (await read(service)).events] == ["1", "2"]
