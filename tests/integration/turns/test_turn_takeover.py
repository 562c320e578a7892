"""Those who hold a turn: blocked, dead or overtaken."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import AsyncMongoClient, MongoClient
from support.one_session import IDS, authors, read

from mongo_session_service import (
    LeaseLostError,
    MongoSessionService,
    MongoSessionServiceError,
)
from mongo_session_service.storage import lease
from mongo_session_service.storage.statements import Statement
from mongo_session_service.storage.transactions import Transaction
from mongo_session_service.testing import Limits

BRIEF = 0.6
"""Seconds until a turn is lost that is not renewed."""

PATIENCE = 1.5 * BRIEF


BRIEF_LEASES = Limits(lease_seconds=BRIEF, lease_renewal_seconds=0.1)

brief_leases = pytest.mark.limits(lease_seconds=BRIEF, lease_renewal_seconds=0.1)


def try_elsewhere(uri: str, database: str, wait: float) -> type[BaseException] | None:
    """Try to have the turn, from another thread; the error it ends with."""

    async def attempt() -> None:
        async with (
            MongoSessionService(
                uri, database=database, _limits=BRIEF_LEASES
            ) as service,
            service.turn(**IDS, wait=wait),
        ):
            pass

    errors: list[type[BaseException] | None] = [None]

    def run() -> None:
        try:
            asyncio.run(attempt())
        except TimeoutError:
            errors[0] = TimeoutError

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors[0]


@brief_leases
async def test_a_body_may_block_its_event_loop(mongodb_uri: str, database: str) -> None:
    """Longer than a lease; a client that is lent is not used in another thread."""
    client: AsyncMongoClient[Any] = AsyncMongoClient(mongodb_uri)
    service = MongoSessionService(
        client=client, database=database, _limits=BRIEF_LEASES
    )
    await service.create_session(**IDS)
    async with service.turn(**IDS) as session:
        # Blocks this event loop until somebody has waited in vain.
        assert try_elsewhere(mongodb_uri, database, wait=PATIENCE) is TimeoutError
        await service.append_event(session, Event(author="x"))
    assert try_elsewhere(mongodb_uri, database, wait=10) is None
    await service.close()
    await client.close()


@brief_leases
async def test_a_turn_of_a_server_whose_clock_was_fast_is_taken_over(
    service: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """Its holder died with it; who lives has renewed the turn by the new primary's."""
    await service.create_session(**IDS)
    ahead = datetime.now(UTC) + timedelta(minutes=10)
    holder = {"token": "dead", "host": "h", "pid": 1}
    turn = {"epoch": 1, "holder": holder, "since": ahead, "renewed_at": ahead}
    admin[database].sessions.update_one({}, {"$set": {"turn": turn}})
    (abandoned,) = await service.find_turns(status="abandoned")
    assert abandoned.epoch == 1
    async with service.turn(**IDS, wait=10 * BRIEF):
        pass


@brief_leases
async def test_a_living_holder_keeps_what_it_renewed_by_a_fast_clock(
    service: MongoSessionService,
    second: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """Others watch it until it had to renew it, and it has."""
    # By the holder: the other's watch is to begin after the clock was set.
    await second.create_session(**IDS)
    async with second.turn(**IDS) as session:
        ahead = {"turn.renewed_at": datetime.now(UTC) + timedelta(minutes=10)}
        admin[database].sessions.update_one({}, {"$set": ahead})
        with pytest.raises(TimeoutError):
            async with service.turn(**IDS, wait=BRIEF / 2):
                pass
        await second.append_event(session, Event(author="x"))


@pytest.mark.limits(lease_seconds=0.1, lease_renewal_seconds=3600)
async def test_a_rebased_append_needs_its_turn_as_well(
    service: MongoSessionService, second: MongoSessionService
) -> None:
    """Under ``rebase`` what others have appended is no obstacle, but a lost turn is."""
    await service.create_session(**IDS)
    async with second.turn(**IDS) as session:
        outside = await read(service)
        await service.append_event(outside, Event(author="outside"))
        await second.append_event(session, Event(author="inside"))
        async with service.turn(**IDS) as following:
            await service.append_event(following, Event(author="following"))
            for each in (session, await read(second)):
                with pytest.raises(LeaseLostError):
                    await second.append_event(each, Event(author="late"))
    assert authors(await read(service)) == ["outside", "inside", "following"]


@pytest.mark.limits(lease_seconds=0.2, lease_renewal_seconds=3600)
async def test_a_writer_whose_transaction_was_ended_goes_on(
    service: MongoSessionService,
    second: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was only slow: it has lost its turn, and appends to other sessions."""
    await service.create_session(**IDS)
    other = await service.create_session(app_name="app", user_id="user")
    is_written, may_commit = asyncio.Event(), asyncio.Event()
    write = Transaction.write  # which comes before the commit

    async def pause(tx: Transaction, *statements: Statement) -> list[int]:
        counts = await write(tx, *statements)
        monkeypatch.undo()
        is_written.set()
        await may_commit.wait()
        return counts

    async with service.turn(**IDS) as session:
        monkeypatch.setattr(Transaction, "write", pause)
        appending = asyncio.create_task(
            service.append_event(session, Event(author="slow"))
        )
        await is_written.wait()
        async with asyncio.timeout(30), second.turn(**IDS) as following:
            await second.append_event(following, Event(author="following"))
        may_commit.set()
        with pytest.raises(LeaseLostError):
            await appending
        for _ in range(3):
            await service.append_event(other, Event(author="other"))
    assert authors(await read(service)) == ["following"]


async def test_a_turn_ends_with_its_session(
    service: MongoSessionService, second: MongoSessionService
) -> None:
    """Of another one with the same id, it lets nothing through beside the holder."""
    await service.create_session(**IDS)
    async with service.turn(**IDS):
        await second.delete_session(**IDS)
        await second.create_session(**IDS)
        async with second.turn(**IDS) as session:
            with pytest.raises(LeaseLostError):
                await service.append(**IDS, event=Event(author="late"))
            with pytest.raises(LeaseLostError):
                await service.append_event(await read(service), Event(author="late"))
            await second.append_event(session, Event(author="holder"))
    assert authors(await read(service)) == ["holder"]


async def test_tasks_of_a_body_belong_to_its_turn(
    service: MongoSessionService,
) -> None:
    """While it lasts; a task that outlives it may have a turn of its own."""
    await service.create_session(**IDS)
    is_over = asyncio.Event()

    async def nest() -> None:
        async with service.turn(**IDS):
            pass

    async def nest_later() -> None:
        await is_over.wait()
        await nest()

    async with service.turn(**IDS):
        later = asyncio.create_task(nest_later())
        with pytest.raises(MongoSessionServiceError, match="held here already"):
            await asyncio.create_task(nest())
    is_over.set()
    await later


def test_close_leaves_no_thread(mongodb_uri: str, database: str) -> None:
    """A closed service renews nothing more, even a turn whose event loop has ended."""
    before = threading.enumerate()  # another test's service may renew its leases
    service = MongoSessionService(mongodb_uri, database=database, _limits=BRIEF_LEASES)
    turn = service.turn(**IDS)

    async def enter() -> None:
        await service.create_session(**IDS)
        await turn.__aenter__()

    asyncio.run(enter())
    [renewing] = (
        each
        for each in threading.enumerate()
        if each.name == lease.THREAD_NAME and each not in before
    )
    asyncio.run(service.close())

    assert not renewing.is_alive()
