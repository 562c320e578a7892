"""The way out: other services take over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from support.sample_data import APPS, fill
from support.transfers import IDS, LATER, say

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.transfer import (
    Problem,
    Selection,
    ServiceSource,
    StoreSource,
    hand_over,
    verify,
)


def database_service(folder: Path) -> DatabaseSessionService:
    return DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/out.db")


def sqlite_service(folder: Path) -> SqliteSessionService:
    return SqliteSessionService(str(folder / "out.db"))


def in_memory_service(_: Path) -> InMemorySessionService:
    return InMemorySessionService()


@pytest.mark.parametrize("make", [database_service, sqlite_service, in_memory_service])
async def test_any_service_can_take_over(
    service: MongoSessionService, tmp_path: Path, make: Any
) -> None:
    """Sessions, events and state of all scopes go to another service, and once only."""
    await fill(service)
    other = make(tmp_path)

    async with StoreSource(service) as source:
        given = await hand_over(source, other)
        again = await hand_over(source, other)
        found: list[Problem] = []
        await verify(
            source,
            ServiceSource(other, APPS),
            is_exact=True,
            on_difference=found.append,
        )

    if isinstance(other, DatabaseSessionService):
        await other.close()
    assert (given.sessions, given.events) == (5, 24)
    assert (again.sessions, again.events, again.known) == (0, 0, 5)
    # Public methods cannot set when a session without events was created.
    assert [str(each) for each in found if "'empty'" not in str(each)] == []


async def test_different_events_in_a_service_are_a_conflict(
    service: MongoSessionService,
) -> None:
    """A session that is another one there is a conflict, or left alone."""
    await fill(service)
    other = InMemorySessionService()
    await other.create_session(**IDS)
    await say(other, "something else")

    async with StoreSource(service) as source:
        with pytest.raises(ConflictError, match="'s1' of user 'ada'"):
            await hand_over(source, other)
        given = await hand_over(source, other, on_conflict="skip")

    session = await other.get_session(**IDS)
    assert session is not None
    assert [given.skipped, len(session.events)] == [1, 1]


async def test_different_sessions_in_a_service_can_be_replaced(
    service: MongoSessionService,
) -> None:
    """Sessions that differ are replaced if asked for, whichever event differs first."""
    await fill(service)
    other = InMemorySessionService()
    async with StoreSource(service) as source:
        await hand_over(source, other)
        await other.delete_session(app_name="bank", user_id="ada", session_id="s1")
        await other.create_session(app_name="bank", user_id="ada", session_id="s1")
        await say(other, "something else")
        bank = await other.get_session(**{**IDS, "app_name": "bank"})
        assert bank is not None
        await other.append_event(bank, Event(author="user", timestamp=LATER))
        await say(service, "and more")

        given = await hand_over(source, other, on_conflict="replace")
        again = await hand_over(source, other)
        verified = await verify(
            source, ServiceSource(other, APPS), Selection(apps=frozenset({"bank"}))
        )

    assert (given.replaced, given.sessions, given.skipped) == (2, 0, 0)
    assert (again.replaced, again.events, again.known) == (0, 0, 5)
    assert verified.is_equal
    session = await other.get_session(**IDS)
    assert session is not None
    assert session.events[-1].id == "and more"
