"""Every source, on a real store that its own service filled."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions.session import Session
from support.foreign_stores import (
    STORES,
    Place,
    adk_1_18,
    adk_mongodb,
    sql_postgresql,
    sql_sqlite,
    sqlite,
)
from support.sample_data import EMPTY, KEYS, STARTED

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import (
    Selection,
    SqlSource,
    StoreSource,
    move,
    verify,
)


def events_of(session: Session) -> list[dict[str, Any]]:
    """Everything of a session's events that reads the same in every release of ADK."""
    events = [
        each.model_dump(mode="json", exclude_none=True) for each in session.events
    ]
    for event in events:
        event["actions"].pop("requested_auth_configs")
        event["actions"]["state_delta"].pop("temp:draft", None)
        event["long_running_tool_ids"] = sorted(event.get("long_running_tool_ids", []))
    return events


@pytest.mark.parametrize("make", STORES, ids=lambda make: make.__name__)
async def test_a_store_moves_as_its_own_service_shows_it(
    make: Any, place: Place, service: MongoSessionService
) -> None:
    """Ids, times, order, events and state are the source's; a second move is none."""
    store = await make(place)

    async with store.source as source, StoreSource(service) as target:
        moved = await move(source, service)
        verified = await verify(source, target, is_exact=True)
        again = await move(source, service)

    assert (moved.new, moved.events, moved.is_complete) == (5, 24, True)
    assert (again.unchanged, again.events, again.states) == (5, 0, 0)
    assert (again.new, again.caught_up, again.is_complete) == (0, 0, True)
    assert (verified.sessions, verified.events) == (5, 24)
    assert verified.is_equal
    for key in [*KEYS, EMPTY]:
        shown = await store.shown(key)
        app_name, user_id, session_id = key
        ours = await service.get_session(
            app_name=app_name, user_id=user_id, session_id=session_id
        )
        assert ours is not None
        assert ours.last_update_time == shown.last_update_time, key
        assert events_of(ours) == events_of(shown), key
        if key != EMPTY:  # what third-party services show there is per session
            state = {k: v for k, v in shown.state.items() if k != "temp:draft"}
            assert ours.state == state, key


@pytest.mark.parametrize("make", [sql_sqlite, sql_postgresql, sqlite])
async def test_sessions_with_much_state_are_read_in_short_pages(
    make: Any,
    place: Place,
    service: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page ends where its state gets too much, and the next begins right after it."""
    module = "mongo_session_service.transfer.adk_sources"
    monkeypatch.setattr(f"{module}.STATE_TOGETHER", 100)
    store = await make(place)

    async with store.source as source, StoreSource(service) as target:
        moved = await move(source, service)
        verified = await verify(source, target, is_exact=True)

    assert (moved.new, moved.events, verified.is_equal) == (5, 24, True)


@pytest.mark.parametrize("make", [sql_sqlite, sql_postgresql, sqlite, adk_mongodb])
async def test_events_of_the_same_time_keep_their_order(
    make: Any,
    place: Place,
    service: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where times are equal, the order is the one that the source's service shows."""
    module = "mongo_session_service.transfer.adk_sources"
    monkeypatch.setattr(f"{module}._ROWS_TOGETHER", 3)
    store = await make(place)
    key = ("weather", "ada", "same")
    ids = {"app_name": key[0], "user_id": key[1]}
    session = await store.service.create_session(**ids, session_id=key[2])
    for id_ in ("c", "a", "d", "b"):
        event = Event(id=id_, author="x", timestamp=STARTED)
        await store.service.append_event(session, event)

    async with store.source as source:
        await move(source, service)
        again = await move(source, service)

    shown = await store.shown(key)
    ours = await service.get_session(**ids, session_id=key[2])
    assert ours is not None
    assert [each.id for each in ours.events] == [each.id for each in shown.events]
    assert again.unchanged == 6


@pytest.mark.parametrize("make", STORES, ids=lambda make: make.__name__)
async def test_a_part_of_a_store_moves_alone(
    make: Any, place: Place, service: MongoSessionService
) -> None:
    """Apps and users that were not chosen stay behind, their state as well."""
    store = await make(place)
    chosen = Selection(apps=frozenset({"weather"}), users=frozenset({"ada"}))

    async with store.source as source, StoreSource(service) as target:
        moved = await move(source, service, chosen)
        verified = await verify(source, target, chosen, is_exact=True)

    assert (moved.new, moved.events, verified.is_equal) == (2, 12, True)
    assert await service.get_user_state(app_name="weather", user_id="bob/x") == {}
    assert not (await service.list_sessions(app_name="bank")).sessions


@pytest.mark.parametrize("make", STORES, ids=lambda make: make.__name__)
async def test_sessions_updated_since_move_alone(
    make: Any, place: Place, service: MongoSessionService
) -> None:
    """A move since a moment takes the sessions updated then or later, whole."""
    store = await make(place)
    times = sorted([(await store.shown(key)).last_update_time for key in KEYS])
    since = Selection(since=times[-1])
    shown = [await store.shown(key) for key in [*KEYS, EMPTY]]
    expected = [each for each in shown if each.last_update_time >= times[-1]]

    async with store.source as source, StoreSource(service) as target:
        moved = await move(source, service, since)
        verified = await verify(source, target, since)

    assert (moved.new, verified.is_equal) == (len(expected), True)
    assert moved.events == sum(len(each.events) for each in expected)


async def test_a_database_that_adk_has_converted_is_imported(
    tmp_path: Path, service: MongoSessionService
) -> None:
    """The command that a refused database of google-adk 1.x names makes one to read."""
    old, new = adk_1_18(tmp_path), tmp_path / "new.db"
    urls = ["--source_db_url", f"sqlite:///{old}", "--dest_db_url", f"sqlite:///{new}"]
    command = [sys.executable, "-m", "google.adk.cli", "migrate", "session", *urls]
    zone = os.environ | {"TZ": "Europe/Rome"}  # where google-adk 1.18 ran
    await asyncio.to_thread(
        subprocess.run, command, env=zone, check=True, capture_output=True
    )

    async with SqlSource(f"sqlite:///{new}") as source:
        moved = await move(source, service)

    assert (moved.new, moved.events, moved.is_complete) == (5, 24, True)
    app_name, user_id, session_id = KEYS[0]
    session = await service.get_session(
        app_name=app_name, user_id=user_id, session_id=session_id
    )
    assert session is not None
    assert session.events[0].timestamp == STARTED + 100
    assert session.state["topic"] == "turn 2"
