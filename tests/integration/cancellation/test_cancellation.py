"""A caller that is cancelled leaves nothing open and nothing in doubt."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pymongo
import pytest
from google.adk.events import Event, EventActions
from pymongo import MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError
from support.consumers import append, create
from support.failpoints import VICTIM, failing, held, open_transactions
from support.one_session import IDS, read
from support.tcp_proxy import Proxy

from mongo_session_service import Change, MongoSessionService

BLOCKED = {"blockConnection": True, "blockTimeMS": 200}


def new_event() -> Event:
    delta = {"k": 1, "app:k": 1, "temp:k": 1}
    return Event(author="x", actions=EventActions(state_delta=delta))


@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_cancelled_append_is_finished_first(
    victim: MongoSessionService, admin: MongoClient, command: str, cancels: int
) -> None:
    """Cancelled at any statement, the append ends, and the session shows it."""
    session = await victim.create_session(**IDS)

    with held(admin, command) as wait_until_held:
        appending = asyncio.create_task(victim.append_event(session, new_event()))
        await asyncio.to_thread(wait_until_held)
        for _ in range(cancels):
            appending.cancel()
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await appending

    assert open_transactions(admin) == 0
    assert session.state == {"k": 1, "app:k": 1, "temp:k": 1}
    session.state.pop("temp:k")
    assert await read(victim) == session
    await victim.append_event(session, new_event())
    assert len((await read(victim)).events) == 2


async def test_a_cancelled_append_that_fails_changes_nothing(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """If the transaction fails after the cancellation, nothing is stored or shown."""
    session = await victim.create_session(**IDS)
    before = session.model_copy(deep=True)

    with failing(admin, "commitTransaction", times=1, errorCode=2):
        with held(admin, "insert") as wait_until_held:
            appending = asyncio.create_task(victim.append_event(session, new_event()))
            await asyncio.to_thread(wait_until_held)
            appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending

    assert session == before == await read(victim)
    assert open_transactions(admin) == 0


async def test_a_waiting_append_can_be_cancelled_alone(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """It is not stored; those before and after it are."""
    session = await victim.create_session(**IDS)
    events = [Event(id=str(number), author="x") for number in range(3)]

    with held(admin, "commitTransaction") as wait_until_held:
        first, *others = [victim.append_event(session, event) for event in events]
        first = asyncio.create_task(first)
        await asyncio.to_thread(wait_until_held)
        second, third = map(asyncio.create_task, others)
        await asyncio.sleep(0)
        second.cancel()
    await asyncio.gather(first, third)

    assert second.cancelled()
    assert [event.id for event in (await read(victim)).events] == ["0", "2"]


async def test_a_statement_that_arrives_after_its_abort_opens_no_transaction(
    admin: MongoClient, database: str
) -> None:
    """A handler that is cancelled leaves no transaction, in whatever order it ends."""

    async def handle(_: Change, txn: Any) -> None:
        await txn.client[database].bills.insert_one({}, session=txn)

    async with Proxy(*admin.address) as proxy:
        uri = f"{proxy.uri}&appName={VICTIM}"
        async with MongoSessionService(uri, database=database) as service:
            await append(service, await create(service))
            proxy.hold_back("insert")
            consumer = service.consumer("c")
            running = asyncio.create_task(consumer.run(handle, transactional=True))
            await proxy.is_holding.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await proxy.pass_on()
            assert open_transactions(admin) == 0


@pytest.mark.parametrize("command", ["update", "insert", "delete", "commitTransaction"])
async def test_a_drivers_deadline_cuts_no_transaction_off(
    victim: MongoSessionService, admin: MongoClient, command: str
) -> None:
    """Under pymongo.timeout() a transaction is finished, and nothing stays open."""
    session = await victim.create_session(**IDS)

    with failing(admin, command, times=1, **BLOCKED), pymongo.timeout(0.1):
        await victim.append_event(session, new_event())
    assert open_transactions(admin) == 0
    assert len((await read(victim)).events) == 1

    with failing(admin, command, times=1, **BLOCKED), pymongo.timeout(0.1):
        await victim.delete_session(**IDS)
    assert open_transactions(admin) == 0
    assert await victim.get_session(**IDS) is None


@pytest.mark.parametrize("error", [None, PyMongoError()])
async def test_a_cancellation_that_the_driver_swallows_is_raised(
    victim: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
    error: PyMongoError | None,
) -> None:
    """A call is cancelled even if a driver's call swallows that, and then fails."""
    await victim.create_session(**IDS)
    asked = asyncio.Event()
    command = AsyncDatabase.command

    async def swallowing(self: AsyncDatabase, *args: Any, **options: Any) -> Any:
        asked.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if error is not None:
            raise error
        return await command(self, *args, **options)

    monkeypatch.setattr(AsyncDatabase, "command", swallowing)
    reading = asyncio.create_task(read(victim))
    await asked.wait()
    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading
