"""Whatever breaks the change stream: nothing is lost or doubled, or it is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from support.failpoints import failing
from support.followers import Followed, all_received, followed
from support.subscriptions import (
    APP,
    ID,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    change_streams,
    new_event,
    until,
)

from mongo_session_service import HistoryLostError, MongoSessionService
from mongo_session_service.storage.kernel import Storage

LOST = (280, 286)
PASSING = (6, 43, 91, 175, 189, 237, 10107, 11600, 11601, 13436)
FAULTS: list[Any] = [
    *({"errorCode": code} for code in (*PASSING, *LOST)),
    {"closeConnection": True},
]


@pytest.fixture
async def followers(
    victim: MongoSessionService, service: MongoSessionService
) -> AsyncIterator[Followed]:
    """A session, written by one service, and whoever follows it through another."""
    async with followed(service, victim) as everyone:
        yield everyone


async def kill_cursor(admin: MongoClient, database: str) -> None:
    """Take the stream's cursor away, whatever it is doing."""
    await until(lambda: change_streams(admin, database))
    cursors = list(change_streams(admin, database))
    killed = {"killCursors": "$cmd.aggregate", "cursors": cursors}
    await asyncio.to_thread(admin[database].command, killed)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("command", ["getMore", "aggregate"])
async def test_failing_requests(
    victim: MongoSessionService,
    service: MongoSessionService,
    followers: Followed,
    admin: MongoClient,
    database: str,
    fault: dict[str, Any],
    command: str,
) -> None:
    """One for more, or one that opens the stream where it broke, costs no change.

    Unless the history is lost, which is reported.
    """
    with failing(admin, command, times=1, **fault) as hit:
        await service.append_event(followers[0], new_event(app_n=-1))
        if command == "aggregate":
            await kill_cursor(admin, database)
        await service.append_event(followers[0], new_event(n=-2))
        await asyncio.to_thread(hit)
    is_lost = fault.get("errorCode") in LOST
    await all_received(service, *followers, is_lost=is_lost)

    stats = victim.feed_stats()
    assert stats.resyncs == is_lost
    assert stats.reconnects or is_lost


async def test_an_unknown_oplog_window(
    victim: MongoSessionService, service: MongoSessionService, admin: MongoClient
) -> None:
    """A feed goes on where MongoDB cannot report how far its oplog reaches back."""
    session = await service.create_session(**SESSION)
    # Two pings begin the subscription; the next one asks for the window.
    with failing(admin, "ping", skip=2, errorCode=11600) as hit:
        async with Follower(victim.watch(APP)) as follower:
            await asyncio.to_thread(hit)
            await service.append_event(session, new_event())
            await follower.until(lambda: len(follower.told) == 1)


async def test_a_change_too_large_for_the_stream_is_delivered(
    victim: MongoSessionService,
    service: MongoSessionService,
    followers: Followed,
    admin: MongoClient,
) -> None:
    """It is read from its document instead, and the stream goes on as before."""
    for _ in range(2):
        with failing(admin, "getMore", times=1, errorCode=10334) as hit:
            await service.append_event(followers[0], new_event(app_n=-1))
            await asyncio.to_thread(hit)
        await service.append_event(followers[0], new_event(app_m=-1))
        # Until a change was read without its content, the next one is read so as well.
        await all_received(service, *followers, is_lost=False)
    assert victim.feed_stats().reconnects == 2


@pytest.mark.parametrize("what", ["sessions", "events", "app_states", None])
async def test_a_dropped_collection_ends_all_subscriptions(
    service: MongoSessionService,
    followers: Followed,
    admin: MongoClient,
    database: str,
    what: str | None,
) -> None:
    """They receive everything before the drop, and then the error."""
    await service.append_event(followers[0], new_event())
    if what is None:
        admin.drop_database(database)
    else:
        admin[database].drop_collection(what)
    for follower in followers[1]:
        error = await follower.ended()
        assert isinstance(error, HistoryLostError)
        assert "dropped" in str(error)
        assert follower.revisions == {"app/user/s": [1]}


async def test_dropped_collections_of_others(
    service: MongoSessionService,
    followers: Followed,
    admin: MongoClient,
    database: str,
) -> None:
    """What happens to other collections of the database concerns nobody."""
    admin[database].other.insert_one({})
    admin[database].other.rename("another")
    admin[database].drop_collection("another")
    await all_received(service, *followers, is_lost=False)


async def test_no_change_is_missed_while_the_feed_restarts(
    victim: MongoSessionService,
    service: MongoSessionService,
    followers: Followed,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session is not followed again before the feed knows where it goes on."""
    session, everyone = followers
    asked, answer, now = asyncio.Event(), asyncio.Event(), Storage.latest_time

    async def slow_now(storage: Storage, **options: bool) -> Timestamp:
        if victim.feed_stats().resyncs:
            asked.set()
            await answer.wait()
        return await now(storage, **options)

    monkeypatch.setattr(Storage, "latest_time", slow_now)
    with failing(admin, "getMore", times=1, errorCode=286) as hit:
        await service.append_event(session, new_event())
        await asyncio.to_thread(hit)
    async with asyncio.timeout(PATIENCE):
        await asked.wait()
    for _ in range(10):
        await service.append_event(session, new_event())
    # The last write would be told: the stream begins with the time that is answered.
    await service.create_session(**IDS)
    answer.set()

    await everyone[0].reached(11)
    assert everyone[0].revisions == {"app/user/s": list(range(1, 12))}
    assert everyone[0].error is None


async def test_a_session_catches_up_through_faults(
    victim: MongoSessionService, service: MongoSessionService, admin: MongoClient
) -> None:
    """A replay whose reads fail goes on where it was."""
    session = await service.create_session(**SESSION)
    await asyncio.gather(
        *(service.append_event(session, new_event()) for _ in range(300))
    )
    async with victim.watch():  # so that the stream is open already
        for fault in FAULTS[:1] + FAULTS[-1:]:
            with failing(admin, "aggregate", times=2, **fault):
                async with Follower(
                    victim.watch(APP, USER, ID, after_revision=0)
                ) as follower:
                    await follower.reached(300)
            assert follower.revisions == {"app/user/s": list(range(1, 301))}
    assert await victim.create_session(**IDS)
