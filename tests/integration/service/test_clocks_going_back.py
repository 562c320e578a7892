"""A clock that is set back: what is first is told by revisions, not by time."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from support.consumers import begun, take
from support.fake_clock import Clock
from support.one_session import authors, read
from support.subscriptions import APP, ID, IDS, SESSION, USER, Follower

from mongo_session_service import MongoSessionService

HOUR = 3600.0
TTL = 10 * HOUR


def without_marker(session: Session) -> Session:
    """A copy that went over the wire."""
    return Session.model_validate_json(session.model_dump_json())


async def test_a_clock_that_goes_back(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Events stay in the order of their appends, for whoever reads or follows them."""
    clock = Clock.set()
    session = await service.create_session(**SESSION, ttl=TTL)
    async with (
        service.consumer("c", start="now") as consumer,
        Follower(service.watch(APP, USER, ID)) as follower,
        MongoSessionService(mongodb_uri, database=database) as other,
    ):
        consuming = asyncio.create_task(take(consumer, 5))
        await begun(service)
        for author in ("first", "second", "third"):
            await service.append_event(session, Event(author=author))
            clock.now -= HOUR
        theirs = await read(other)
        assert theirs == session
        await other.append_event(theirs, Event(author="theirs"))
        clock.now -= HOUR
        for stale in (session, without_marker(session)):
            with pytest.raises(StaleSessionError):
                await service.append_event(stale, Event(author="stale"))
        session = without_marker(theirs)
        await service.append_event(session, Event(author="last"))
        order = ["first", "second", "third", "theirs", "last"]

        assert authors(session) == order
        assert session.last_update_time == clock.now
        assert await read(other) == session
        (listed,) = (await other.list_sessions(**IDS)).sessions
        assert listed.last_update_time == session.last_update_time
        config = GetSessionConfig(num_recent_events=2)
        recent = await other.get_session(**SESSION, config=config)
        assert recent is not None
        assert authors(recent) == order[-2:]

        await follower.reached(5)
        assert follower.revisions == {f"{APP}/{USER}/{ID}": [1, 2, 3, 4, 5]}
        for changes in (await consuming, follower.told[-5:]):
            events = [each.event for each in changes if each.event is not None]
            assert [event.author for event in events] == order
            assert [each.revision for each in changes] == [1, 2, 3, 4, 5]

        # No append that is dated back shortens the time to live.
        clock.now += 4 * HOUR + TTL - 1
        assert authors(await read(other)) == order
        clock.now += 1
        assert await other.get_session(**SESSION) is None
