"""Sessions that expire while somebody writes to them, or the feed cannot follow."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from bson.decimal128 import Decimal128
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as platform_time
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

from mongo_session_service import HistoryLostError, MongoSessionService
from mongo_session_service.changes import stream
from mongo_session_service.feed import expiry, reader, subscription
from mongo_session_service.sessions import deletion


async def test_an_append_that_meets_the_look_keeps_the_session(
    service: MongoSessionService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is renewed right after it was read as over is not told to be deleted."""
    mine = Clock.set()
    session = await service.create_session(**SESSION, ttl=10)
    loop = asyncio.get_running_loop()
    is_renewed = threading.Event()

    async def renew() -> None:
        platform_time.set_time_provider(mine)
        await service.append_event(session, new_event())
        is_renewed.set()

    async def after_the_look(*arguments: Any) -> list[Any]:
        if clock.now > mine.now and not is_renewed.is_set():
            renewing = asyncio.run_coroutine_threadsafe(renew(), loop)
            await asyncio.wrap_future(renewing)
        return await deletion.ended(*arguments)

    monkeypatch.setattr(expiry, "deletion", SimpleNamespace(ended=after_the_look))
    monkeypatch.setattr(expiry, "_SCAN_LIMIT", PATIENCE)  # the append is a part of it
    async with Follower(service.watch(APP)) as follower:
        await service.create_session(**IDS)
        await follower.until(lambda: follower.told)  # after the first look
        mine.now += 9.999
        clock.now += 10
        await follower.until(is_renewed.is_set)
        await service.create_session(**IDS)
        await follower.until(lambda: follower.kinds.count("created") == 2)
        assert follower.kinds == ["created", "appended", "created"]

        clock.now += 10
        await follower.until(lambda: follower.gone == [ID])


async def test_a_delete_is_told_of_what_was_kept(
    service: MongoSessionService, clock: Clock
) -> None:
    """A writer whose clock is slow cannot keep what is over, and may delete it."""
    mine = Clock.set()
    mine.now -= 1
    await service.create_session(**SESSION, ttl=10)
    async with Follower(service.watch(APP)) as follower:
        clock.now += 9.5
        mine.now += 9.5
        await follower.until(lambda: follower.gone == [ID])
        with pytest.raises(SessionNotFoundError):
            await service.update_session(**SESSION, ttl=1000)
        await service.delete_session(**SESSION)
        await service.create_session(**SESSION)
        await service.delete_session(**SESSION)
        await follower.until(lambda: follower.gone == [ID, ID])


async def test_what_was_told_is_forgotten_with_lost_history(
    service: MongoSessionService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that takes an id whose end was told before has an end of its own."""
    mine = Clock.set()
    await service.create_session(**SESSION, ttl=10)
    is_lost, is_away, is_back = (threading.Event() for _ in range(3))
    following = stream.Stream.next

    async def losing(self: stream.Stream) -> Any:
        if is_lost.is_set() and not is_back.is_set():
            is_away.set()
            assert await asyncio.to_thread(is_back.wait, PATIENCE)
            raise HistoryLostError("The oplog has rolled over.")
        return await following(self)

    monkeypatch.setattr(stream.Stream, "next", losing)
    monkeypatch.setattr(reader, "PAUSE_AFTER_LOSS", 0.0)
    async with Follower(service.watch(APP)) as follower:
        clock.now += 10
        mine.now = clock.now
        await follower.until(lambda: follower.gone == [ID])
        is_lost.set()
        assert await asyncio.to_thread(is_away.wait, PATIENCE)
        await service.create_session(**SESSION, ttl=10)
        await service.create_session(**IDS)  # a stream begins with the latest write
        is_back.set()
        assert isinstance(await follower.ended(), HistoryLostError)

    async with Follower(service.watch(APP)) as follower:
        clock.now += 10
        await follower.until(lambda: follower.gone == [ID])


async def test_times_of_other_tools_end_nothing(
    service: MongoSessionService, clock: Clock, admin: MongoClient, database: str
) -> None:
    """A session with an expire_time of another type is not told of; others are."""
    mine = Clock.set()
    id_ = {**IDS, "session_id": "other"}
    decimal = Decimal128(str(mine.now + 5))
    other = {"_id": id_, "revision": 0, "expire_time": decimal}
    admin[database].sessions.insert_one(other)
    await service.create_session(**SESSION, ttl=10)
    async with Follower(service.watch(APP)) as follower:
        clock.now += 10
        await follower.until(lambda: follower.gone == [ID])


async def test_a_clock_may_be_set_back(
    service: MongoSessionService, clock: Clock
) -> None:
    """What was renewed since ends when the clock says so, though it did before."""
    mine = Clock.set()
    session = await service.create_session(**SESSION, ttl=60)
    async with Follower(service.watch(APP)) as follower:
        for each in (mine, clock):
            each.now -= 3600
        await service.append_event(session, new_event())
        await follower.until(lambda: follower.told)
        for each in (mine, clock):
            each.now += 60
        await follower.until(lambda: follower.gone == [ID])


async def test_a_feed_that_is_behind_tells_the_last_event(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's own subscription ends with its last event told, however late."""
    mine = Clock.set()
    is_behind, has_looked = threading.Event(), threading.Event()
    following, look = stream.Stream.next, subscription.load_expiry

    async def late(self: stream.Stream) -> Any:
        change = await following(self)
        if is_behind.is_set() and change is not None:
            assert await asyncio.to_thread(has_looked.wait, PATIENCE)
        return change

    async def looking(*arguments: Any) -> Any:
        found = await look(*arguments)
        if found[0] <= mine.now:
            has_looked.set()
        return found

    monkeypatch.setattr(stream.Stream, "next", late)
    monkeypatch.setattr(subscription, "load_expiry", looking)
    session = await service.create_session(**SESSION, ttl=0.1)
    async with Follower(service.watch(APP, USER, ID)) as follower:
        await follower.reached(0)
        is_behind.set()
        await service.append_event(session, new_event())
        mine.now += 10
        assert await follower.ended() is None

    assert follower.kinds == ["snapshot", "appended", "deleted"]
