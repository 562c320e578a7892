"""Turns of a session: one caller at a time, in order of arrival."""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event

from mongo_session_service import (
    InvalidInputError,
    LeaseLostError,
    MongoSessionService,
    MongoSessionServiceError,
)

IDS = {"app_name": "my_app", "user_id": "user-1", "session_id": "s"}


@pytest.fixture(autouse=True)
async def _one_session(ours: MongoSessionService) -> None:
    await ours.create_session(**IDS)


async def answer(service: MongoSessionService, name: str) -> list[str]:
    """A turn of two events; what its Session shows then."""
    async with service.turn(**IDS) as session:
        await service.append_event(session, Event(author=f"{name}?"))
        await service.append_event(session, Event(author=f"{name}!"))
    return [event.author for event in session.events]


async def test_parallel_requests_follow_each_other(ours: MongoSessionService) -> None:
    """Each begins with what those before it have stored, in order of arrival."""
    shown = await asyncio.gather(*(answer(ours, name) for name in "abcdef"))

    log = [f"{name}{mark}" for name in "abcdef" for mark in "?!"]
    assert shown == [log[: 2 * count] for count in range(1, 7)]


async def test_a_turn_makes_no_append_stale(
    ours: MongoSessionService,
) -> None:
    """A turn changes neither revision nor update time, and holds up no append."""
    before = await ours.get_session(**IDS)
    assert before is not None
    async with ours.turn(**IDS) as session:
        assert session == before

    await ours.append_event(before, Event(author="other"))
    assert (await ours.get_session(**IDS)) == before


async def test_a_caller_that_gives_up_waiting_gets_the_holders_name(
    ours: MongoSessionService,
) -> None:
    """The error names process and time; the caller has left the queue."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with ours.turn(**IDS):
            entered.set()
            await leave.wait()

    holder = asyncio.create_task(hold())
    await entered.wait()
    for wait in (0, 0.05):
        with pytest.raises(TimeoutError, match=rf"process {os.getpid()} .* since 2"):
            async with ours.turn(**IDS, wait=wait):
                pass
    leave.set()
    await holder
    async with ours.turn(**IDS, wait=0):
        pass


async def test_a_turn_within_itself_is_refused_at_once(
    ours: MongoSessionService,
) -> None:
    """It would wait for itself; turns of other sessions may be held beside."""
    await ours.create_session(**{**IDS, "session_id": "other"})
    async with ours.turn(**IDS), ours.turn(**{**IDS, "session_id": "other"}):
        with pytest.raises(MongoSessionServiceError, match="held here already"):
            async with ours.turn(**IDS):
                pass
    async with ours.turn(**IDS):
        pass


async def test_bad_arguments_of_turns(ours: MongoSessionService) -> None:
    """A wait is a number of seconds from zero, and the session has to be stored."""
    bad: list[Any] = [-1, -0.5, math.nan, "1", True]
    for wait in bad:
        with pytest.raises(InvalidInputError, match="wait"):
            ours.turn(**IDS, wait=wait)
    for wait in (0, 30):
        with pytest.raises(SessionNotFoundError):
            async with ours.turn(**{**IDS, "session_id": "unknown"}, wait=wait):
                pass


@pytest.mark.limits(lease_seconds=0.1, lease_renewal_seconds=3600)
async def test_a_body_that_lost_its_turn_appends_nothing(
    ours: MongoSessionService,
) -> None:
    """Through whichever Session; and its end does not end the turn of the next."""
    entered, lost = asyncio.Event(), asyncio.Event()

    async def lose() -> None:
        async with ours.turn(**IDS) as session:
            entered.set()
            await lost.wait()
            for each in (session, await ours.get_session(**IDS)):
                assert each is not None
                with pytest.raises(LeaseLostError):
                    await ours.append_event(each, Event(author="late"))

    loser = asyncio.create_task(lose())
    await entered.wait()
    async with ours.turn(**IDS) as session:
        lost.set()
        await loser
        await ours.append_event(session, Event(author="next"))

    stored = await ours.get_session(**IDS)
    assert stored is not None
    assert [event.author for event in stored.events] == ["next"]
