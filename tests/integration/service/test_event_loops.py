"""One service, used from any event loop, thread and process."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from pymongo import MongoClient
from support.failpoints import connections, victim_uri

from mongo_session_service import ConfigurationError, MongoSessionService

IDS = {"app_name": "app", "user_id": "user"}
THREADS = 10


@pytest.fixture
def shared(mongodb_uri: str, database: str) -> Iterator[MongoSessionService]:
    """A service that no loop has used yet."""
    service = MongoSessionService(victim_uri(mongodb_uri), database=database)
    yield service
    asyncio.run(service.close())


async def use(service: MongoSessionService, session_id: str) -> None:
    session = await service.create_session(**IDS, session_id=session_id)
    await service.append_event(session, Event(author="x"))
    assert await service.get_session(**IDS, session_id=session_id) == session


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """The results of ``work`` in ten threads that start at the same moment."""
    barrier = threading.Barrier(THREADS)

    def start(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def wait_until_disconnected(admin: MongoClient) -> None:
    """Return once the server has seen the last connection go."""
    deadline = time.monotonic() + 10
    while connections(admin):
        assert time.monotonic() < deadline, "connections were leaked"


def test_five_loops_in_a_row(shared: MongoSessionService, admin: MongoClient) -> None:
    """A service outlives its loops, and every client is closed with its loop."""

    async def enter_and_use(number: int) -> None:
        async with shared:
            await use(shared, f"s{number}")

    for number in range(5):
        asyncio.run(enter_and_use(number))
        wait_until_disconnected(admin)


def test_ten_loops_at_once_on_one_session(
    shared: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Ten writers of one session: each append is stored once or refused as stale."""

    async def insist(number: int) -> int:
        refusals = 0
        while True:
            session = await shared.get_session(**IDS, session_id="s")
            assert session is not None
            delta = {f"k{number}": number, f"app:k{number}": number, "last": number}
            event = Event(author=str(number), actions=EventActions(state_delta=delta))
            try:
                await shared.append_event(session, event)
            except StaleSessionError:
                refusals += 1
            else:
                return refusals

    asyncio.run(shared.create_session(**IDS, session_id="s"))
    in_threads(lambda number: asyncio.run(insist(number)))

    session = asyncio.run(shared.get_session(**IDS, session_id="s"))
    assert session is not None
    assert sorted(int(event.author) for event in session.events) == list(range(THREADS))
    assert session.state == {
        **{f"k{number}": number for number in range(THREADS)},
        **{f"app:k{number}": number for number in range(THREADS)},
        "last": int(session.events[-1].author),
    }
    revisions = [each["_id"]["revision"] for each in admin[database].events.find()]
    assert sorted(revisions) == list(range(1, THREADS + 1))


def test_a_closed_service_leaves_no_task_behind(
    shared: MongoSessionService, admin: MongoClient
) -> None:
    """close() ends the clients and their background tasks, and may be repeated."""

    async def main() -> set[asyncio.Task[Any]]:
        async with shared:
            await use(shared, "s")
        await shared.close()
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()
    wait_until_disconnected(admin)
    asyncio.run(use(shared, "again"))


def test_close_reaches_clients_of_other_running_loops(
    shared: MongoSessionService, admin: MongoClient
) -> None:
    """A service closed in one loop has no client left in another that still runs."""
    ready, done = threading.Event(), threading.Event()

    async def other() -> None:
        await use(shared, "other")
        ready.set()
        await asyncio.to_thread(done.wait)

    async def main() -> None:
        await use(shared, "here")
        await shared.close()
        wait_until_disconnected(admin)

    thread = threading.Thread(target=asyncio.run, args=[other()])
    thread.start()
    ready.wait()
    asyncio.run(main())
    done.set()
    thread.join()


def test_a_service_is_not_pickled(shared: MongoSessionService) -> None:
    """Whoever sends one to another process is told what to send instead."""
    asyncio.run(use(shared, "s1"))

    with pytest.raises(ConfigurationError, match="from its URI in each process"):
        pickle.dumps(shared)


FORKS = """
import asyncio, os, sys
from google.adk.events import Event
from mongo_session_service import MongoSessionService

service = MongoSessionService(sys.argv[1], database=sys.argv[2])

async def use(session_id):
    session = await service.create_session(
        app_name="app", user_id="user", session_id=session_id
    )
    await service.append_event(session, Event(author="x"))

asyncio.run(use("before"))
child = os.fork()
asyncio.run(use("parent" if child else "child"))
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_goes_on_after_a_fork(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Parent and child go on with the service that was used before."""
    command = [sys.executable, "-c", FORKS, mongodb_uri, database]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    stored = admin[database].events.distinct("_id.session_id")
    assert sorted(stored) == ["before", "child", "parent"]
