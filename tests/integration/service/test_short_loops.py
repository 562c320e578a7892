"""A service whose calls are each made in an event loop of their own."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types
from pymongo import MongoClient
from support.failpoints import connections, open_transactions, victim_uri
from support.patience import PATIENCE
from support.scripted_model import ScriptedModel
from support.subscriptions import until

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.storage.loop_thread import thread_loop
from mongo_session_service.storage.statements import Insert
from mongo_session_service.storage.transactions import Transaction

IDS = {"app_name": "app", "user_id": "user"}
SESSION = {**IDS, "session_id": "s"}
LOOPS = 20

caller: ContextVar[str] = ContextVar("caller", default="nobody")


@pytest.fixture
def shared(mongodb_uri: str, database: str) -> Iterator[MongoSessionService]:
    """A service that is made where no event loop runs."""
    service = MongoSessionService(victim_uri(mongodb_uri), database=database)
    yield service
    asyncio.run(service.close())


def clients_of(service: MongoSessionService) -> set[int]:
    """The clients that it has in loops that are open."""
    opened = [it for it in service._backends.opened if not it.loop.is_closed()]  # noqa: SLF001
    return {id(each.storage.client) for each in opened}


def run_and_count_clients(
    service: MongoSessionService, call: Callable[[], Awaitable[Any]]
) -> int:
    """Await a call in a new loop; return how many clients the service has then."""

    async def run() -> int:
        await call()
        return len(clients_of(service))

    return asyncio.run(run())


def test_many_loops_have_the_connections_of_one(
    shared: MongoSessionService, admin: MongoClient
) -> None:
    """One after another, and each in a thread of its own, as web frameworks do it."""
    asyncio.run(shared.create_session(**SESSION))
    before = connections(admin)

    for _ in range(LOOPS):
        asyncio.run(shared.get_session(**SESSION))
    assert connections(admin) == before

    def call(_: int) -> Any:
        return asyncio.run(shared.list_sessions(**IDS))

    with ThreadPoolExecutor(4) as pool:
        listed = list(pool.map(call, range(LOOPS)))
    assert all(each.sessions[0].id == "s" for each in listed)
    assert connections(admin) <= before + 3  # one for each that waits


def test_whatever_is_called_uses_the_same_client(shared: MongoSessionService) -> None:
    """Runs of an agent, turns, subscriptions, iterators and waits."""
    agent = LlmAgent(name="agent", model=ScriptedModel(script=["hi"] * 2))
    runner = Runner(app_name="app", agent=agent, session_service=shared)
    who = {"user_id": "user", "session_id": "s"}
    message = types.UserContent("hello")
    asyncio.run(shared.create_session(**SESSION))

    *_, last = runner.run(**who, new_message=message)
    assert last.content is not None

    async def run_turn() -> None:
        async with shared.watch(**SESSION, partials=True) as changes:
            events = shared.run_turn(runner, **who, new_message=message)
            assert len([event async for event in events]) == 1
            async for change in changes:
                if change.revision == 5:
                    break

    async def iterate() -> None:
        assert len([event async for event in shared.iter_events(**SESSION)]) == 2

    async def wait() -> None:
        waiting = asyncio.ensure_future(
            shared.wait_for(**SESSION, revision=3, timeout=30)
        )
        await shared.append(**SESSION, event=Event(author="user"))
        assert await waiting is not None

    for call in (iterate, wait):
        assert run_and_count_clients(shared, call) == 1
    assert run_and_count_clients(shared, run_turn) == 2  # a turn has its own


def test_a_loop_that_stays_gets_a_client_of_its_own(
    shared: MongoSessionService,
) -> None:
    """After a hundred calls; a subscription goes on, and appends keep their order."""
    session = asyncio.run(shared.create_session(**SESSION))
    clients = []

    async def append_many() -> None:
        async with shared.watch(**SESSION) as changes:
            await anext(changes)  # the snapshot
            for start in (0, 99, 198):
                numbers = range(start, start + 99)
                events = [Event(author=str(number)) for number in numbers]
                await asyncio.gather(
                    *(shared.append_event(session, each) for each in events)
                )
                clients.append(len(clients_of(shared)))
                later = [await anext(changes) for _ in events]
                authors = [each.event.author for each in later if each.event]
                assert authors == [str(number) for number in numbers]

    asyncio.run(append_many())
    assert clients == [1, 2, 2]
    assert asyncio.run(shared.get_session(**SESSION)) == session


def test_hooks_run_in_their_callers_thread_and_context(
    mongodb_uri: str, database: str
) -> None:
    """What an application has set there is what they find."""
    seen = set[tuple[str, str]]()

    def note(value: Any, _: Any) -> Any:
        seen.add((caller.get(), threading.current_thread().name))
        return value

    service = MongoSessionService(
        mongodb_uri, database=database, before_store=note, after_load=note
    )
    caller.set("somebody")
    asyncio.run(service.create_session(**SESSION, state={"key": "value"}))
    event = Event(author="x", content=types.UserContent("secret"))
    asyncio.run(service.append(**SESSION, event=event))
    assert asyncio.run(service.get_session(**SESSION)) is not None
    asyncio.run(service.redact_events(**SESSION, event_ids=[event.id]))
    asyncio.run(service.close())
    assert {thread for _, thread in seen} == {threading.current_thread().name}
    seen = {each for each in seen if each[0] != "nobody"}  # as transactions call them
    assert seen == {("somebody", threading.current_thread().name)}


def test_a_cancellation_reaches_the_call_and_waits_for_its_end(
    shared: MongoSessionService,
) -> None:
    """A waiting call ends at once, and an append is stored or is not."""
    asyncio.run(shared.create_session(**SESSION))

    async def wait_and_cancel() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await shared.wait_for(**SESSION, revision=5, timeout=60)

    async def append_and_cancel(delay: float) -> bool:
        event = Event(author="x")
        appending = asyncio.ensure_future(shared.append(**SESSION, event=event))
        await asyncio.sleep(delay)
        appending.cancel()
        await asyncio.wait([appending])
        found = await shared.get_session(**SESSION)
        assert found is not None
        return event.id in [each.id for each in found.events]

    asyncio.run(wait_and_cancel())
    stored = [asyncio.run(append_and_cancel(n / 2000)) for n in range(8)]
    session = asyncio.run(shared.get_session(**SESSION))
    assert session is not None
    assert len(session.events) == sum(stored)


def test_a_service_that_is_let_go_closes_its_client(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Nobody has to close it in the process, either."""
    service = MongoSessionService(victim_uri(mongodb_uri), database=database)
    asyncio.run(service.list_sessions(app_name="app"))
    assert connections(admin)

    del service
    gc.collect()

    asyncio.run(until(lambda: not connections(admin)))


def test_closing_ends_a_transaction_under_way(
    shared: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """It would keep its locks for a minute; and nothing begins any more."""

    async def write_and_close() -> None:
        storage = await shared._backends.storage()  # noqa: SLF001
        is_written, is_closed = threading.Event(), asyncio.Event()

        async def write(tx: Transaction) -> None:
            await tx.write(Insert("leases", [{"_id": "x"}]))
            is_written.set()
            await is_closed.wait()  # in the loop thread

        await shared.setup()
        running = asyncio.ensure_future(storage.run(write))
        await asyncio.to_thread(is_written.wait)
        await shared.close()
        assert open_transactions(admin) == 0
        thread_loop().call_soon_threadsafe(is_closed.set)
        for call in (running, storage.latest_time()):
            with pytest.raises(ConfigurationError, match="was closed"):
                await call

    asyncio.run(write_and_close())
    assert admin[database].leases.find_one() is None


PROGRAM = """
import asyncio, sys, threading
from google.adk.events import Event
from mongo_session_service import MongoSessionService

service = MongoSessionService(sys.argv[1], database=sys.argv[2])
ids = {"app_name": "app", "user_id": "user", "session_id": "s"}
asyncio.run(service.create_session(**ids))
append = lambda: asyncio.run(service.append(**ids, event=Event(author="x")))
for _ in range(3):
    thread = threading.Thread(target=append)
    thread.start()
    thread.join()
"""


DAEMONS = """
def call_for_ever():
    while True:
        append()
        appended.set()

appended = threading.Event()
reached = service.wait_for(**ids, revision=10**6)
for target, args in (call_for_ever, ()), (asyncio.run, [reached]):
    threading.Thread(target=target, args=args, daemon=True).start()
appended.wait()
"""


@pytest.mark.parametrize("more", ["", DAEMONS], ids=["at rest", "in daemon threads"])
def test_a_process_ends_without_a_word(
    mongodb_uri: str, database: str, admin: MongoClient, more: str
) -> None:
    """Nobody has to close a service: its client is closed at the end."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + more, mongodb_uri, database],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    assert admin[database].events.count_documents({}) >= 3 + bool(more)
