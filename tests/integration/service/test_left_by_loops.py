"""What event loops that end soon, or are dropped, leave behind, and leave undone."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.failpoints import victim_uri
from support.subscriptions import PATIENCE, change_streams, until

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.sessions import reads
from mongo_session_service.testing import Limits

SESSION = {"app_name": "app", "user_id": "user", "session_id": "s"}
DESCRIPTORS = Path("/proc/self/fd")

Call = Callable[[MongoSessionService], Awaitable[Any]]


@pytest.fixture
def service(
    mongodb_uri: str, database: str, limits: Limits
) -> Iterator[MongoSessionService]:
    """A service with a session."""
    service = MongoSessionService(
        victim_uri(mongodb_uri), database=database, _limits=limits
    )
    asyncio.run(service.create_session(**SESSION))
    yield service
    asyncio.run(service.close())


async def read(service: MongoSessionService) -> None:
    assert await service.get_session(**SESSION) is not None


async def append(service: MongoSessionService) -> None:
    await service.append(**SESSION, event=Event(author="x"))


async def watch(service: MongoSessionService) -> None:
    async with service.watch(**SESSION) as changes:
        await anext(changes)


async def take_turn(service: MongoSessionService) -> None:
    async with service.turn(**SESSION):
        pass


async def call_often(service: MongoSessionService) -> None:
    for _ in range(105):
        await service.ping()
    await read(service)


@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning",
    "ignore:Unclosed AsyncMongoClient:ResourceWarning",
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    # The driver's tasks, of a loop that has a client of its own.
    "ignore:.*AsyncPeriodicExecutor:pytest.PytestUnraisableExceptionWarning",
)
@pytest.mark.parametrize("call", [read, append, watch, take_turn, call_often])
def test_a_loop_that_nobody_closes_leaves_nothing(
    service: MongoSessionService, call: Call, admin: MongoClient
) -> None:
    """As web frameworks make one for each thread, which Python collects with it."""
    loops = list[weakref.ref[asyncio.AbstractEventLoop]]()

    def call_and_drop(_: object) -> None:
        loop = asyncio.new_event_loop()
        loops.append(weakref.ref(loop))
        loop.run_until_complete(call(service))

    def descriptors() -> int:
        gc.collect()
        return len(list(DESCRIPTORS.iterdir()))

    with ThreadPoolExecutor(1) as pool:
        list(pool.map(call_and_drop, range(2)))
        before = descriptors()
        list(pool.map(call_and_drop, range(6)))
        # Some are connections, and some of these close once the server answers.
        asyncio.run(until(lambda: descriptors() < before + 6))
    # A read of a change stream ends when the server answers.
    asyncio.run(until(lambda: gc.collect() + 1 and not any(it() for it in loops)))
    database = service.database_name
    asyncio.run(until(lambda: not change_streams(admin, database)))


def test_expired_sessions_are_removed(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Where no event loop of the application runs any more."""
    expiring = service.create_session(app_name="app", user_id="user", ttl=0.001)
    asyncio.run(expiring)

    sessions = admin[database].sessions
    asyncio.run(until(lambda: sessions.count_documents({}) == 1))


@pytest.mark.usefixtures("service")
@pytest.mark.limits(unindexed_documents=0)
def test_missing_indexes_are_built(
    mongodb_uri: str,
    database: str,
    limits: Limits,
    admin: MongoClient,
) -> None:
    """Also if the call that has missed them is over before they are."""
    admin[database].sessions.drop_index("by_title")
    later = MongoSessionService(mongodb_uri, database=database, _limits=limits)
    asyncio.run(append(later))

    indexes = admin[database].sessions.index_information
    asyncio.run(until(lambda: "by_title" in indexes()))
    asyncio.run(later.close())


@pytest.mark.parametrize("is_guest", [True, False])
@pytest.mark.limits(block_events=1)
def test_what_is_cached_does_not_outlive_its_time(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch, *, is_guest: bool
) -> None:
    """It is dropped when it was not read for long, whichever loop has read it."""
    monkeypatch.setattr(reads, "IDLE", 0.05)
    cache = service._backends._read_cache  # noqa: SLF001
    asyncio.run(append(service))
    asyncio.run(append(service))

    async def fill() -> None:
        await service._backends.backend(stays=not is_guest)  # noqa: SLF001
        await read(service)
        assert cache.size

    asyncio.run(fill())
    asyncio.run(until(lambda: not cache.size))


def test_a_turn_names_the_client_sessions_of_all_that_it_writes(
    service: MongoSessionService,
) -> None:
    """Whoever takes it over ends these, and would wait a minute for any others."""

    async def hold() -> None:
        storage = await service._backends.storage()  # noqa: SLF001
        async with service.turn(**SESSION):
            named = await storage.client_session_ids()
            await call_often(service)
            event = await service.append(**SESSION, event=Event(author="x"))
            await service.redact_events(**SESSION, event_ids=[event.id])
            assert await storage.client_session_ids() == named

    asyncio.run(hold())


def test_closing_ends_the_consumers_of_other_loops(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """They handle and commit the change that they have begun, and fail with nothing."""
    begun, closing = threading.Event(), threading.Event()
    handled: list[Change] = []

    async def handle(change: Change) -> None:
        begun.set()
        await asyncio.to_thread(closing.wait)
        handled.append(change)

    async def close() -> None:
        ending = asyncio.create_task(service.close())
        await asyncio.sleep(0)
        closing.set()
        await ending

    asyncio.run(append(service))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, service.consumer("c").run(handle))
        assert begun.wait(PATIENCE)
        asyncio.run(close())
        assert running.result(PATIENCE) == 0
    assert len(handled) == 1
    assert change_streams(admin, database) == set()
    (status,) = asyncio.run(service.consumers())
    assert not status.is_active
