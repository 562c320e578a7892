"""One feed for each event loop, in all threads and with all clients."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
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

from mongo_session_service import MongoSessionService
from mongo_session_service.feed.feed import _LogReader

LOOPS = 5


@pytest.fixture
def shared(mongodb_uri: str, database: str) -> MongoSessionService:
    """A service that no loop has used yet, and that nobody closes."""
    return MongoSessionService(mongodb_uri, database=database)


async def wait_for_streams(admin: MongoClient, database: str, count: int) -> None:
    """Return once the server has exactly so many change streams of this database."""
    await until(lambda: len(change_streams(admin, database)) == count)


def test_subscriptions_of_a_loop_share_one_stream(
    shared: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Each of many threads' loops has one server cursor, and everything comes by it."""
    ready = threading.Barrier(LOOPS + 1)
    told: list[list[int]] = []

    async def follow() -> None:
        async with (
            Follower(shared.watch(APP, USER, ID)) as follower,
            Follower(shared.watch(APP)) as broad,
        ):
            await asyncio.to_thread(ready.wait, PATIENCE)
            await follower.reached(20)
            await broad.until(lambda: len(broad.told) == 20)
            assert follower.revisions == broad.revisions
            told.append(follower.revisions["app/user/s"])
            await asyncio.to_thread(ready.wait, PATIENCE)

    async def main() -> None:
        session = await shared.create_session(**SESSION)
        threads = [
            threading.Thread(target=asyncio.run, args=[follow()]) for _ in range(LOOPS)
        ]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(ready.wait, PATIENCE)
        for _ in range(20):
            await shared.append_event(session, new_event())
        await wait_for_streams(admin, database, LOOPS)
        assert shared.feed_stats().subscriptions == 2 * LOOPS
        await asyncio.to_thread(ready.wait, PATIENCE)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await wait_for_streams(admin, database, 0)
        assert shared.feed_stats().delivered >= 20 * LOOPS
        await shared.close()

    asyncio.run(main())

    assert told == [list(range(1, 21))] * LOOPS


def test_closing_ends_the_cursor_of_a_loop_at_rest(
    shared: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """The loop runs no more, and cannot close it."""
    loop = asyncio.new_event_loop()
    subscription = shared.watch(APP)
    loop.run_until_complete(subscription.__aenter__())
    loop.run_until_complete(wait_for_streams(admin, database, 1))

    asyncio.run(shared.close())
    asyncio.run(wait_for_streams(admin, database, 0))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_closing_ends_the_cursor_of_a_loop_that_ends_meanwhile(
    shared: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if its reader ends between two requests, after the client was closed."""
    is_between, is_closed = threading.Event(), threading.Event()
    close = AsyncMongoClient.close

    async def close_and_note(client: AsyncMongoClient[Any]) -> None:
        await close(client)
        is_closed.set()

    async def observe_too_long(*_: object) -> None:
        is_between.set()
        waiting = asyncio.get_running_loop().run_in_executor(None, is_closed.wait)
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([waiting])
        raise asyncio.CancelledError

    async def follow() -> None:
        async with Follower(shared.watch(APP)) as follower:
            await follower.ended()

    async def main() -> None:
        monkeypatch.setattr(_LogReader, "_observe", observe_too_long)
        monkeypatch.setattr(AsyncMongoClient, "close", close_and_note)
        await shared.create_session(**SESSION)
        following = asyncio.create_task(asyncio.to_thread(asyncio.run, follow()))
        await asyncio.to_thread(is_between.wait, PATIENCE)
        await shared.close()
        await following
        await wait_for_streams(admin, database, 0)

    asyncio.run(main())


def test_dead_event_loops_harm_no_other(shared: MongoSessionService) -> None:
    """Subscriptions left open in a loop that is gone are let go, and others go on."""
    abandoned: list[Any] = []

    async def open_some() -> None:
        await shared.create_session(**IDS, session_id=f"other{len(abandoned)}")
        for scope in ((), (APP,), (APP, USER, ID)) * 3:
            subscription = shared.watch(*scope)
            await subscription.__aenter__()
            abandoned.append(subscription)

    async def main() -> None:
        session = await shared.create_session(**SESSION)
        async with Follower(shared.watch(APP, USER, ID)) as follower:
            await asyncio.to_thread(asyncio.run, open_some())
            for number in range(20):
                await shared.append_event(session, new_event(app_n=number))
            await follower.reached(20)
            async with Follower(shared.watch()) as broad:
                await shared.append_event(session, new_event())
                await broad.until(lambda: broad.told)
            await follower.reached(21)  # told after the other, maybe
            assert follower.revisions == {"app/user/s": list(range(1, 21 + 1))}
            assert shared.feed_stats().drops == 0
            async with asyncio.timeout(PATIENCE):
                while shared.feed_stats().subscriptions > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            await shared.close()

    asyncio.run(main())


def descriptors() -> int:
    """How many files and sockets this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("is_left_open", [False, True])
def test_a_feed_ends_with_its_loop(
    is_left_open: bool,  # noqa: FBT001  a parameter of the test
    mongodb_uri: str,
    database: str,
) -> None:
    """Services that nobody closes leave no thread and no descriptor behind."""
    opened: list[Any] = []

    async def watch() -> None:
        service = MongoSessionService(mongodb_uri, database=database)
        subscription = service.watch(APP)
        await subscription.__aenter__()
        if is_left_open:
            opened.append(subscription)
        else:
            subscription.close()

    def threads() -> int:
        # Those that look up hosts stay, a few for all services.
        names = [each.name for each in threading.enumerate()]
        return sum(not each.startswith("asyncio_") for each in names)

    asyncio.run(watch())
    at_first, before = threads(), descriptors()
    for _ in range(5):
        asyncio.run(watch())
    assert threads() <= at_first
    opened.clear()  # a subscription keeps its service
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while descriptors() > before:
        assert time.monotonic() < deadline


def test_a_feed_ends_with_its_loop_that_runs_again_and_again(
    shared: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """A loop that rests between two calls goes on, and takes its stream with it."""
    loop = asyncio.new_event_loop()
    follower = Follower(shared.watch(APP))

    async def follow() -> None:
        before = len(follower.told)
        await shared.create_session(**IDS)
        await follower.until(lambda: len(follower.told) > before)

    loop.run_until_complete(follower.__aenter__())
    for _ in range(3):
        loop.run_until_complete(follow())
    assert follower.kinds == ["created"] * 3
    assert len(change_streams(admin, database)) == 1
    loop.run_until_complete(follower.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    asyncio.run(wait_for_streams(admin, database, 0))


async def test_borrowed_clients(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """With a borrowed client the feed ends with the service, and the client stays."""
    client: AsyncMongoClient[Any] = AsyncMongoClient(mongodb_uri)
    service = MongoSessionService(client=client, database=database)
    for _ in range(2):
        async with Follower(service.watch()) as follower:
            session = await service.create_session(**IDS)
            await service.append_event(session, new_event())
            await follower.until(lambda each=follower: len(each.told) == 2)
            await wait_for_streams(admin, database, 1)
            await service.close()
            assert await follower.ended() is None
        await wait_for_streams(admin, database, 0)
    await client.close()
