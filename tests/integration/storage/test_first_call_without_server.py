"""A connection that was opened before its member was ready is not kept for good."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from support.early_connections import Early, early
from support.subscriptions import IDS, SESSION, Follower

from mongo_session_service import UnknownOutcomeError


@pytest.fixture
async def early_one() -> AsyncIterator[Early]:
    async with early() as one:
        yield one


async def test_a_read_does_not_wait_for_the_dead_server(early_one: Early) -> None:
    """It goes another way, and the next ones by another connection."""
    service, session = early_one
    for _ in range(2):
        assert await service.get_session(**SESSION) == session


async def test_an_append_does_not_wait_for_the_dead_server(early_one: Early) -> None:
    """Its transaction is begun anew, and the first one keeps nobody waiting."""
    service, session = early_one
    event = await service.append_event(session, Event(author="x"))

    assert session.events == [event]


async def test_a_new_session_waits_for_the_dead_server_once_at_most(
    early_one: Early,
) -> None:
    """If its outcome is unknown, the next call succeeds."""
    another = {**IDS, "session_id": "another"}
    unknown = 0
    for _ in range(3):
        try:
            with suppress(AlreadyExistsError):
                await early_one.service.create_session(**another)
        except UnknownOutcomeError:
            unknown += 1

    assert unknown <= 1
    assert await early_one.service.get_session(**another)


async def test_a_watch_does_not_wait_for_the_dead_server(early_one: Early) -> None:
    """Its stream opens by another connection, long before it is given up."""
    service, session = early_one
    async with Follower(service.watch(**SESSION)) as follower:
        await service.append_event(session, Event(author="x"))
        await follower.reached(1)
