"""Subscriptions that are not read, are closed, or end with their service."""

from __future__ import annotations

import asyncio

import pytest
from support.subscriptions import (
    APP,
    ID,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    new_event,
    until,
)

from mongo_session_service import (
    MongoSessionService,
    SlowSubscriberError,
)
from mongo_session_service.testing import Limits


@pytest.mark.limits(inbox_changes=300)
async def test_a_slow_reader_is_ended_and_can_resume(
    service: MongoSessionService, limits: Limits
) -> None:
    """The error holds its last revision; other readers receive everything."""
    session = await service.create_session(**SESSION)
    total = limits.inbox_changes + 100

    async with (
        service.watch(APP, USER, ID) as slow,
        service.watch(APP, USER) as slow_too,
        Follower(service.watch(APP, USER, ID)) as neighbour,
        Follower(service.watch()) as broad,
    ):
        assert (await anext(slow)).kind == "snapshot"
        await service.append_event(session, new_event())
        assert (await anext(slow)).revision == 1
        for stored in range(1, total, 100):
            count = min(100, total - stored)
            await asyncio.gather(
                *(service.append_event(session, new_event()) for _ in range(count))
            )
            await neighbour.reached(stored + count)

        with pytest.raises(SlowSubscriberError) as caught:
            await anext(slow)
        with pytest.raises(SlowSubscriberError, match="Subscribe again"):
            await anext(slow_too)
        with pytest.raises(SlowSubscriberError):
            await anext(slow)
        await broad.until(lambda: len(broad.told) == total)
        stats = service.feed_stats()
        assert stats.drops == 2
        assert stats.subscriptions == 2

    assert (
        neighbour.revisions
        == broad.revisions
        == {"app/user/s": list(range(1, total + 1))}
    )
    last = caught.value.last_revision
    assert last == 1
    async with Follower(service.watch(APP, USER, ID, after_revision=last)) as back:
        await back.reached(total)
    assert back.revisions == {"app/user/s": list(range(2, total + 1))}


async def test_unread_changes_are_bounded_in_bytes(
    service: MongoSessionService,
) -> None:
    """Who lets too many bytes wait is ended; who reads receives changes of any size."""
    session = await service.create_session(**SESSION)
    large = {"large": "x" * 400_000}
    async with (
        service.watch(APP, USER, ID, max_bytes=1_000_000) as slow,
        service.watch(APP, max_bytes=1_000_000) as slow_too,
        service.watch(APP) as patient,
        Follower(service.watch(APP, USER, ID, max_bytes=1)) as neighbour,
    ):
        await anext(slow)
        for revision in (1, 2, 3):
            await service.append_event(session, new_event(**large))
            await neighbour.reached(revision)
        await until(lambda: service.feed_stats().drops == 2)
        with pytest.raises(SlowSubscriberError) as caught:
            await anext(slow)
        with pytest.raises(SlowSubscriberError):
            await anext(slow_too)
        assert [(await anext(patient)).revision for _ in range(3)] == [1, 2, 3]

    assert caught.value.last_revision == 0
    resumed = service.watch(APP, USER, ID, after_revision=0, max_bytes=1)
    async with Follower(resumed) as follower:
        await follower.reached(3)
    assert neighbour.revisions == follower.revisions == {"app/user/s": [1, 2, 3]}


async def test_close_is_immediate(service: MongoSessionService) -> None:
    """A waiting reader sees the end at once; what was left unread is let go."""
    session = await service.create_session(**SESSION)
    async with service.watch(APP, USER, ID) as waiting, service.watch() as unread:
        await anext(waiting)
        reading = asyncio.create_task(anext(waiting, "the end"))
        await asyncio.sleep(0)
        waiting.close()
        waiting.close()
        async with asyncio.timeout(PATIENCE):
            assert await reading == "the end"
        async with Follower(service.watch(APP)) as follower:
            await service.append_event(session, new_event())
            await follower.until(lambda: follower.told)
        unread.close()
        assert await anext(unread, "the end") == "the end"


async def test_closing_the_service_ends_subscriptions(
    service: MongoSessionService,
) -> None:
    """They deliver what was left, and end as if closed; new ones can be opened."""
    session = await service.create_session(**SESSION)
    async with (
        Follower(service.watch(APP, USER, ID)) as follower,
        Follower(service.watch()) as broad,
    ):
        await service.append_event(session, new_event())
        await broad.until(lambda: broad.told)
        async with asyncio.timeout(20):
            await service.close()
        assert await follower.ended() is None
        assert await broad.ended() is None
        assert not service.feed_stats().is_running

        async with Follower(service.watch(APP, USER, ID)) as again:
            await service.append_event(session, new_event())
            await again.reached(2)


async def test_feed_stats_count_subscriptions_changes_and_lag(
    service: MongoSessionService,
) -> None:
    """They hold what runs, what waits, and how far behind it is."""
    idle = service.feed_stats()
    assert not idle.is_running
    assert (idle.subscriptions, idle.delivered, idle.lag_seconds) == (0, 0, 0)
    session = await service.create_session(**SESSION)
    async with service.watch(APP, USER, ID), Follower(service.watch()) as follower:
        for _ in range(5):
            await service.append_event(session, new_event())
        await follower.until(lambda: len(follower.told) == 5)
        # Whoever was served first may not be the one who does not read.
        await until(lambda: service.feed_stats().queue_depth == 5)
        stats = service.feed_stats()
    assert stats.is_running
    assert stats.subscriptions == 2
    assert stats.queue_depth == 5
    assert stats.delivered >= 5
    assert 0 <= stats.lag_seconds < 5
    assert stats.oplog_window_seconds is None or stats.oplog_window_seconds >= 0
    assert (stats.reconnects, stats.resyncs, stats.drops) == (0, 0, 0)
    assert stats.checkpoint_ages == {}
    await service.create_session(**IDS)
