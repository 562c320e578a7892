"""Sessions that expire under who watches a user, an app or everything."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import MongoClient
from support.fake_clock import Clock
from support.subscriptions import (
    APP,
    ID,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    new_event,
)

from mongo_session_service import MongoSessionService
from mongo_session_service.feed import expiry, reader, subscription


async def test_who_watches_many_is_told_of_each_end(
    service: MongoSessionService, clock: Clock
) -> None:
    """Each session that expires is told to be deleted once: then, not when removed."""
    mine = Clock.set()
    await service.create_session(**SESSION, ttl=10)  # before anybody watches
    async with AsyncExitStack() as stack:
        followers = [
            await stack.enter_async_context(Follower(service.watch(*scope)))
            for scope in ((APP, USER), (APP,), ())
        ]

        async def all_told(*names: str) -> None:
            mine.now = clock.now
            for each in followers:
                await each.until(lambda each=each: set(names) <= set(each.gone))

        clock.now += 10
        await all_told(ID)  # though nothing is written
        session = await service.create_session(**IDS, session_id="created", ttl=20)
        await service.append_event(session, new_event())
        await service.create_session(**IDS, session_id="changed", ttl=1000)
        await service.update_session(**IDS, session_id="changed", ttl=10)
        clock.now += 20
        await all_told("created", "changed")

        assert (await service.prune()).sessions == 3
        await service.create_session(**IDS, session_id="created")
        await service.delete_session(**IDS, session_id="created")
        await service.create_session(**IDS, session_id="last", ttl=10)
        clock.now += 10
        await all_told("last")

    for each in followers:
        names = each.gone
        assert names == [ID, "changed", "created", "created", "last"]
        of_created = [told.kind for told in each.told if told.session_id == "created"]
        assert of_created == ["created", "appended", "deleted"] + ["created", "deleted"]


async def test_what_is_renewed_has_not_ended(
    service: MongoSessionService, clock: Clock
) -> None:
    """Nothing is told at a time that was put off by an append, or taken back."""
    mine = Clock.set()
    async with Follower(service.watch(APP)) as follower:
        session = await service.create_session(**SESSION, ttl=10)
        await service.create_session(**IDS, session_id="kept", ttl=10)
        mine.now += 9
        await service.append_event(session, new_event())
        await service.update_session(**IDS, session_id="kept", ttl=None)
        clock.now += 18
        await service.create_session(**IDS, session_id="later", ttl=1)
        await follower.until(lambda: "later" in follower.gone)
        clock.now += 1
        await follower.until(lambda: ID in follower.gone)

    assert follower.gone == ["later", ID]


async def test_many_ends_at_once_drop_nobody(
    service: MongoSessionService,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sessions may expire together, more than a subscription has room for."""
    monkeypatch.setattr(subscription, "CAPACITY", 64)
    monkeypatch.setattr(reader, "_BATCH", 16)
    Clock.set()
    await asyncio.gather(*(service.create_session(**IDS, ttl=10) for _ in range(500)))
    async with Follower(service.watch(APP)) as follower:
        clock.now += 10
        await follower.until(lambda: len(follower.told) == 500)

    assert follower.kinds == ["deleted"] * 500


async def test_more_ends_than_one_look_finds(
    service: MongoSessionService,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next look finds more; too many at one moment are told when removed."""
    monkeypatch.setattr(expiry, "_MOST", 8)
    Clock.set()
    for number in range(50):
        await service.create_session(**IDS, session_id=str(number), ttl=5 + number // 4)
    async with Follower(service.watch(APP)) as follower:
        clock.now += 40
        await follower.until(lambda: len(follower.told) == 50)
        assert not caplog.records
        await asyncio.gather(*(service.create_session(**IDS, ttl=50) for _ in range(9)))
        clock.now += 50
        await follower.until(lambda: len(follower.told) == 67)
        Clock.set().now += 100
        await service.prune()
        await follower.until(lambda: len(follower.told) == 68)

    assert "at the same moment" in caplog.text
    assert len(set(follower.gone)) == 59 == len(follower.gone)


async def test_what_expires_as_soon_as_it_is_watched_is_told(
    service: MongoSessionService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told from when the subscription is open, though the feed looks later."""
    scan = expiry.ExpiryScanner.scan
    has_expired = threading.Event()

    async def late(*arguments: Any, **named: Any) -> None:
        assert await asyncio.to_thread(has_expired.wait, PATIENCE)
        await scan(*arguments, **named)

    monkeypatch.setattr(expiry.ExpiryScanner, "scan", late)
    Clock.set()
    await service.create_session(**SESSION, ttl=10)
    await service.create_session(**IDS)  # the feed may see the latest write
    async with Follower(service.watch(APP)) as follower:
        clock.now += 10
        has_expired.set()
        await follower.until(lambda: follower.told)

    assert follower.gone == [ID]


async def test_an_end_that_was_set_late_is_told(
    service: MongoSessionService, clock: Clock
) -> None:
    """It may be over by the watcher's clock when it is known, as all before it are."""
    Clock.set()
    await service.create_session(**SESSION)
    async with Follower(service.watch(APP)) as follower:
        await service.create_session(**IDS, session_id="other", ttl=10)
        clock.now += 20
        await follower.until(lambda: "other" in follower.gone)
        await service.update_session(**SESSION, ttl=1)
        await follower.until(lambda: ID in follower.gone)


async def test_a_session_of_a_slow_clock_is_told(
    service: MongoSessionService, clock: Clock
) -> None:
    """What has ended by the watcher's clock when it is created is over for everyone.

    A writer whose clock is behind cannot append to it, but create it again.
    """
    mine = Clock.set()
    mine.now = clock.now - 1000
    async with Follower(service.watch(APP)) as follower:
        session = await service.create_session(**SESSION, ttl=10)
        await follower.until(lambda: len(follower.told) == 2)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, new_event())
        await service.delete_session(**SESSION)
        await service.create_session(**SESSION)
        await follower.until(lambda: len(follower.told) == 3)

    assert follower.kinds == ["created", "deleted", "created"]


async def test_strange_documents_stop_no_watcher(
    service: MongoSessionService,
    clock: Clock,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """What another tool has stored is not told when it expires, nor in the way."""
    mine = Clock.set()
    strange: list[Any] = [1, {"app_name": 1, "user_id": USER, "session_id": ID}]
    admin[database].sessions.insert_many(
        {"_id": each, "revision": 0, "expire_time": mine.now + 5} for each in strange
    )
    await service.create_session(**SESSION, ttl=10)
    async with Follower(service.watch(APP)) as follower:
        clock.now += 10
        await follower.until(lambda: follower.told)

    assert [(each.kind, each.session_id) for each in follower.told] == [("deleted", ID)]
