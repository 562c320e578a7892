"""Sessions that expire: who is told, and what is left of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from support.fake_clock import Clock
from support.limits import NO_SWEEP
from support.subscriptions import (
    APP,
    ID,
    IDS,
    SESSION,
    USER,
    Follower,
    new_event,
)

from mongo_session_service import MongoSessionService, Pruned
from mongo_session_service.sessions import append
from mongo_session_service.testing import Limits


@pytest.fixture
async def follower(service: MongoSessionService) -> AsyncIterator[Follower]:
    """A subscriber to the whole app."""
    async with Follower(service.watch(APP)) as follower:
        yield follower


async def test_a_watched_session_expires(service: MongoSessionService) -> None:
    """Its subscription receives all of its events, then ``deleted``, and ends."""
    session = await service.create_session(**SESSION, ttl=1)
    async with Follower(service.watch(APP, USER, ID)) as follower:
        for revision in (1, 2):
            await service.append_event(session, new_event())
            await follower.reached(revision)
        appended_at = time.time()
        assert await follower.ended() is None

    assert follower.kinds == ["snapshot", "appended", "appended", "deleted"]
    late = time.time() - appended_at - 1
    assert late + 0.05 >= 0
    assert late < 3
    with pytest.raises(SessionNotFoundError):
        await service.wait_for(**SESSION, revision=5)


async def test_a_watched_session_lives_longer(
    service: MongoSessionService, follower: Follower
) -> None:
    """A session that is renewed, or never to expire any more, stays."""
    ends = {"ttl": 1}
    session = await service.create_session(**SESSION, **ends)
    await service.create_session(**IDS, session_id="renewed", **ends)
    await service.create_session(**IDS, session_id="expires", **ends)
    await service.update_session(**SESSION, ttl=None)
    await service.update_session(**IDS, session_id="renewed", ttl=1000)
    await follower.until(lambda: follower.gone)
    await service.append_event(session, new_event())
    assert follower.gone == ["expires"]

    await service.update_session(**SESSION, ttl=0.1)
    await follower.until(lambda: len(follower.gone) > 1)

    assert follower.gone == ["expires", ID]


async def test_a_new_subscriber_receives_deletions_of_expired_sessions(
    mongodb_uri: str, database: str
) -> None:
    """It receives ``deleted`` for sessions that nothing has removed yet."""
    Clock.behind(100)
    where = {"database": database}
    async with MongoSessionService(mongodb_uri, **where, _limits=NO_SWEEP) as other:
        for number in range(500):  # more than an inbox has room for
            await other.create_session(**IDS, session_id=str(number), ttl=10)

    small = Limits(inbox_changes=64)
    async with (
        MongoSessionService(mongodb_uri, **where, _limits=small) as service,
        Follower(service.watch(APP)) as follower,
        Follower(service.watch(APP, USER)) as second,
    ):
        for each in (follower, second):
            await each.until(lambda each=each: len(each.told) == 500)

    for each in (follower, second):
        assert each.kinds == ["deleted"] * 500
        assert len(set(each.gone)) == 500


async def test_each_expiry_is_delivered_once(
    service: MongoSessionService, follower: Follower
) -> None:
    """A session that takes the id of an expired one has a life of its own."""
    await service.create_session(**SESSION, ttl=0.2)
    await follower.until(lambda: follower.gone == [ID])
    await service.create_session(**SESSION)
    await service.delete_session(**SESSION)
    await service.create_session(**SESSION, ttl=0.2)
    await follower.until(lambda: len(follower.gone) == 3)

    assert await service.prune() == Pruned()
    assert follower.kinds == ["created", "deleted"] * 3


async def test_an_expiry_by_the_servers_clock_is_delivered(
    service: MongoSessionService, follower: Follower
) -> None:
    """A subscriber with a slow clock receives it as well.

    A writer whose clock is behind cannot append to it, but create it again.
    """
    Clock.behind(1000)
    session = await service.create_session(**SESSION, ttl=10)
    await follower.until(lambda: follower.kinds == ["created", "deleted"])
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, new_event())
    await service.create_session(**SESSION)
    await follower.until(lambda: follower.kinds == ["created", "deleted", "created"])


async def test_expired_sessions_are_not_shown(service: MongoSessionService) -> None:
    """Neither a subscription nor a wait knows an expired session."""
    clock = Clock.set()
    await service.create_session(**SESSION, ttl=10)
    clock.now += 10

    with pytest.raises(SessionNotFoundError):
        async with service.watch(APP, USER, ID):
            pass
    with pytest.raises(SessionNotFoundError):
        await service.wait_for(**SESSION, revision=0)


async def test_a_time_to_live_that_changes_back_makes_no_append_stale(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that is refused for it is tried again, even if all looks well then."""
    session = await service.create_session(**SESSION)
    await service.update_session(**SESSION, ttl=10)
    read_writable = append.read_writable

    async def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(append, "read_writable", read_writable)
        await service.update_session(**SESSION, ttl=None)
        return await read_writable(*arguments)

    monkeypatch.setattr(append, "read_writable", overtaken)
    await service.append_event(session, new_event())

    found = await service.get_session(**SESSION)
    assert found is not None
    assert found.events == session.events
    assert len(found.events) == 1
