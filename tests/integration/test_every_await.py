"""Cancelled at any point where it waits, no call leaves anything open or half done."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from faults import open_transactions, victim_uri
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import AsyncMongoClient, MongoClient
from stepping import cancelled_at, is_drivers

from mongo_session_service import MongoSessionService
from mongo_session_service.changes import leases

pytestmark = pytest.mark.filterwarnings(
    # PyMongo leaves a socket to the garbage collector if it is cancelled connecting.
    r"ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)

APP, USER = "app", "user"
STATE = {"k": 1, "app:k": 1, "user:k": 1}
PATIENCE = 20.0


@dataclass
class World:
    """A service, and what it is asked for."""

    service: MongoSessionService
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ids(self) -> dict[str, str]:
        """Of a session that is not there yet."""
        name = f"s{next(self.numbers)}"
        return {"app_name": APP, "user_id": USER, "session_id": name}

    async def session(self) -> Session:
        """One that is there, with an event."""
        session = await self.service.create_session(**self.ids(), state=dict(STATE))
        await self.service.append_event(session, new_event())
        return session

    async def stored(self, session_id: str) -> Session | None:
        """What is stored of it."""
        return await self.service.get_session(
            app_name=APP, user_id=USER, session_id=session_id
        )


@pytest.fixture
async def world(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A service whose client, feed and all else are in the test's own event loop."""
    # A consumer that is cancelled as it begins may leave a lease, which runs out.
    monkeypatch.setattr(leases, "LEASE", 0.5)
    monkeypatch.setattr(leases, "RENEWAL", 0.1)
    async with (
        AsyncMongoClient(victim_uri(mongodb_uri)) as client,
        MongoSessionService(client=client, database=database) as service,
    ):
        yield World(service)


def new_event() -> Event:
    return Event(author="x", actions=EventActions(state_delta={**STATE, "temp:k": 1}))


Check = Callable[[], Awaitable[None]]
Case = Callable[[World], Awaitable[tuple[Awaitable[Any], Check]]]


async def nothing_to_check() -> None:
    pass


async def create(world: World) -> tuple[Awaitable[Any], Check]:
    ids = world.ids()

    async def check() -> None:
        found = await world.stored(ids["session_id"])
        assert found is None or found.state == STATE

    return world.service.create_session(**ids, state=dict(STATE)), check


async def append(world: World) -> tuple[Awaitable[Any], Check]:
    session = await world.session()

    async def check() -> None:
        session.state.pop("temp:k", None)
        assert await world.stored(session.id) == session
        await world.service.append_event(session, new_event())
        found = await world.stored(session.id)
        assert found is not None
        assert found.events == session.events

    return world.service.append_event(session, new_event()), check


async def get(world: World) -> tuple[Awaitable[Any], Check]:
    session = await world.session()
    return world.stored(session.id), nothing_to_check


async def list_(world: World) -> tuple[Awaitable[Any], Check]:
    return world.service.list_sessions(app_name=APP), nothing_to_check


async def get_user_state(world: World) -> tuple[Awaitable[Any], Check]:
    call = world.service.get_user_state(app_name=APP, user_id=USER)
    return call, nothing_to_check


async def delete(world: World) -> tuple[Awaitable[Any], Check]:
    session = await world.session()
    ids = {"app_name": APP, "user_id": USER, "session_id": session.id}

    async def check() -> None:
        found = await world.stored(session.id)
        assert found is None or len(found.events) == 1
        await world.service.delete_session(**ids)
        assert await world.stored(session.id) is None

    return world.service.delete_session(**ids), check


async def prune(world: World) -> tuple[Awaitable[Any], Check]:
    return world.service.prune(), nothing_to_check


async def setup(world: World) -> tuple[Awaitable[Any], Check]:
    return world.service.setup(), nothing_to_check


async def flush(world: World) -> tuple[Awaitable[Any], Check]:
    return world.service.flush(), nothing_to_check


async def close(world: World) -> tuple[Awaitable[Any], Check]:
    return world.service.close(), nothing_to_check


async def wait_for(world: World) -> tuple[Awaitable[Any], Check]:
    session = await world.session()
    call = world.service.wait_for(
        app_name=APP, user_id=USER, session_id=session.id, revision=1
    )
    return call, nothing_to_check


async def watch(world: World) -> tuple[Awaitable[Any], Check]:
    session = await world.session()
    told: list[int | None] = []
    changes = world.service.watch(APP, USER, session.id, after_revision=0)

    async def read() -> None:
        async with changes:
            await world.service.append_event(session, new_event())
            while len(told) < 2:
                change = await anext(changes)
                if change.kind == "appended":
                    told.append(change.revision)

    async def check() -> None:
        assert told == [1, 2][: len(told)]
        assert world.service.feed_stats().subscriptions == 1

    return read(), check


async def watch_on(world: World) -> tuple[Awaitable[Any], Check]:
    """A read that is cancelled: the next goes on."""
    session = await world.session()
    changes = world.service.watch(APP, USER, session.id, after_revision=0)
    await changes.__aenter__()
    told: list[int | None] = []

    async def read() -> None:
        while len(told) < 1:
            change = await anext(changes)
            if change.kind == "appended":
                told.append(change.revision)

    async def check() -> None:
        await read()
        changes.close()
        assert told == [1]

    return read(), check


async def consume(world: World) -> tuple[Awaitable[Any], Check]:
    session = await world.session()
    name = session.id
    async with world.service.consumer(name, start="now"):
        await world.service.append_event(session, new_event())
    told: list[int | None] = []
    committed: list[int | None] = []

    async def read() -> None:
        async with world.service.consumer(name) as consumer:
            told.append((await anext(consumer)).revision)
            await consumer.commit()
            committed.extend(told)

    async def check() -> None:
        await world.service.append_event(session, new_event())
        async with world.service.consumer(name) as consumer:
            following = [(await anext(consumer)).revision]
            if following == [2]:
                following.append((await anext(consumer)).revision)
        assert told in ([], [2])
        if committed or not told:
            assert following == ([3] if committed else [2, 3])
        assert following in ([3], [2, 3])

    return read(), check


CASES: list[tuple[Case, int]] = [
    (create, 10),
    (append, 10),
    (get, 3),
    (list_, 3),
    (get_user_state, 3),
    (delete, 10),
    (prune, 5),
    (setup, 5),
    (flush, 0),
    (close, 0),
    (wait_for, 5),
    (watch, 10),
    (watch_on, 0),
    (consume, 10),
]
"""What is called, and how many points it awaits at, at the least."""


async def at_rest(before: set[asyncio.Task[Any]]) -> None:
    """Return when all that was begun has ended; fails if that takes long."""
    tasks = asyncio.all_tasks() - before - {asyncio.current_task()}
    # The driver listens to the server at all times.
    left = {each for each in tasks if not is_drivers(each)}
    if left:
        _, pending = await asyncio.wait(left, timeout=PATIENCE)
        assert not pending, pending


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize(
    ("case", "least"), CASES, ids=[case.__name__.rstrip("_") for case, _ in CASES]
)
async def test_a_call_cancelled_at_every_point(
    world: World, admin: MongoClient, case: Case, least: int, *, late: bool
) -> None:
    """Wherever it is cancelled, nothing stays open, and what comes next works."""
    async with contextlib.AsyncExitStack() as stack:
        if case in {watch, watch_on, wait_for}:
            # So that the feed is there before and after.
            await stack.enter_async_context(world.service.watch("nobody"))
        await world.session()
        for point in itertools.count(1):
            call, check = await case(world)
            before = asyncio.all_tasks()
            was_cancelled = await cancelled_at(call, point, late=late)  # type: ignore[arg-type]
            await at_rest(before)
            assert open_transactions(admin) == 0
            async with asyncio.timeout(PATIENCE):
                await check()
            await at_rest(before)
            if not was_cancelled:
                break
    assert point > least
