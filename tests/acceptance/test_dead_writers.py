"""Processes that are killed in the middle of a transaction, under access control.

Their locks last until MongoDB ends the transaction, 60 to 90 seconds later, unless the
one who takes over ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import monotonic

import pytest
from google.adk.events import Event
from support.cli_runner import run
from support.databases import drop
from support.dying_process import (
    LIMITS,
    count_change,
    stop_in_append,
    stop_in_handler,
)
from support.forks import FORKS
from support.one_session import IDS, authors, read
from support.secured_mongod import Secured
from support.subscriptions import until

from mongo_session_service import MongoSessionService
from mongo_session_service.admin.privileges import Privilege, needs

pytestmark = pytest.mark.xdist_group("secured")

DATABASE = "dead_writers"
IN_TIME = LIMITS.lease_seconds + 2.0
"""Seconds after the kill in which the next one works."""


@pytest.fixture
async def secured_service(server: Secured) -> AsyncIterator[MongoSessionService]:
    """A service whose user has the role that ``grants`` prints, and one collection."""
    features = ["sessions", "changes", "setup"]
    own = [Privilege(it, DATABASE, "counts") for it in ("find", "insert", "update")]
    server.grant([*needs(features, DATABASE), *own])
    drop(server.admin, DATABASE)
    server.admin[DATABASE].create_collection("counts")
    async with MongoSessionService(
        server.uri(), database=DATABASE, _limits=LIMITS
    ) as service:
        yield service


async def killed_in(stop: Callable[..., None], uri: str) -> float:
    """Kill a process as soon as it has written; when that was."""
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=stop, args=(uri, DATABASE, there))
    process.start()
    assert await asyncio.to_thread(here.poll, 30)
    process.kill()
    killed = monotonic()
    await asyncio.to_thread(process.join)
    return killed


def changes_counted(server: Secured) -> int:
    """How many changes handlers have committed."""
    counted = server.admin[DATABASE].counts.find_one({"_id": IDS["session_id"]})
    return counted["changes"] if counted else 0


async def test_the_turn_of_a_dead_append_is_taken_over(
    secured_service: MongoSessionService, server: Secured
) -> None:
    """Nothing of it is stored, and the next turn appends soon after the lease's end."""
    await secured_service.create_session(**IDS)
    killed = await killed_in(stop_in_append, server.uri())

    async with secured_service.turn(**IDS) as session:
        await secured_service.append_event(session, Event(author="next"))

    assert monotonic() - killed < IN_TIME
    assert authors(await read(secured_service)) == ["next"]


async def test_a_dead_turn_can_be_asked_to_stop(
    secured_service: MongoSessionService, server: Secured
) -> None:
    """Who asks waits for its lease, and not for its transaction."""
    await secured_service.create_session(**IDS)
    killed = await killed_in(stop_in_append, server.uri())

    await secured_service.stop_turn(**IDS)
    assert monotonic() - killed < IN_TIME
    async with secured_service.turn(**IDS) as session:
        assert monotonic() - killed < IN_TIME
    assert session.events == []


async def test_the_consumer_of_a_dead_handler_goes_on(
    secured_service: MongoSessionService, server: Secured
) -> None:
    """Each change is handled once, though all handlers write the same document."""
    await secured_service.append_event(
        await secured_service.create_session(**IDS), Event(author="x")
    )
    killed = await killed_in(stop_in_handler, server.uri())

    async with secured_service.consumer("c") as consumer:
        running = asyncio.create_task(
            consumer.run(partial(count_change, DATABASE), transactional=True)
        )
        await until(lambda: changes_counted(server))
        assert monotonic() - killed < IN_TIME
        (status,) = await secured_service.consumers()
        assert not status.is_locked_out
        await consumer.close()
        await running
    assert changes_counted(server) == 1


async def test_a_consumer_names_the_lock_of_another_user(
    secured_service: MongoSessionService, server: Secured
) -> None:
    """Only an administrator may end it; the log reports for what the consumer waits."""
    await secured_service.append_event(
        await secured_service.create_session(**IDS), Event(author="x")
    )
    await killed_in(stop_in_handler, server.uri("root"))

    async def told_to_be_locked_out(*, expected: bool) -> None:
        async with asyncio.timeout(60):
            while True:
                (status,) = await secured_service.consumers()
                if status.is_locked_out is expected:
                    return

    async with secured_service.consumer("c") as consumer:
        running = asyncio.create_task(
            consumer.run(partial(count_change, DATABASE), transactional=True)
        )
        await told_to_be_locked_out(expected=True)
        place = ("--uri", server.uri(), "--database", DATABASE)
        told = await asyncio.to_thread(run, "consumers", *place)
        assert "c: it waits for a lock of a dead process" in told.stderr
        assert changes_counted(server) == 0

        server.admin.admin.command("killAllSessions", [])
        await until(lambda: changes_counted(server))
        await told_to_be_locked_out(expected=False)
        await consumer.close()
        await running
