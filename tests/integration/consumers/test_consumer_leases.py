"""One reader has a consumer's name at a time."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
from typing import Any

import pytest
from pymongo import MongoClient
from support.consumers import APP, append, create, take, told
from support.failpoints import failing

from mongo_session_service import (
    Change,
    Consumer,
    HistoryLostError,
    LeaseLostError,
    MongoSessionService,
)
from mongo_session_service.storage import lease

stalls = pytest.mark.limits(lease_seconds=0.5, lease_renewal_seconds=2.0)


def expire(admin: MongoClient, database: str) -> None:
    """Make the lease look as if its reader had stalled."""
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    admin[database].leases.update_one({"_id": "c"}, {"$set": {"renewed_at": long_ago}})


async def overtaken(
    service: MongoSessionService, admin: MongoClient, database: str
) -> tuple[Consumer, Consumer]:
    """A consumer that has read two events, and another that took its name since."""
    await append(service, await create(service), 5)
    first, second = service.consumer("c"), service.consumer("c")
    await take(first, 2)
    expire(admin, database)
    assert told(await take(second, 1)) == [("s", 1)]
    return first, second


async def test_a_second_reader_waits_for_the_first(
    service: MongoSessionService,
) -> None:
    """Two never read at once; the second goes on at once where the first let go."""
    await append(service, await create(service), 3)
    async with service.consumer("c") as first:
        await take(first, 1, commit=True)
        second = service.consumer("c")
        waiting = asyncio.create_task(take(second, 1))
        await take(first, 1, commit=True)
        assert not waiting.done()
    assert told(await waiting) == [("s", 3)]
    await second.close()


@stalls
async def test_a_reader_that_lost_its_lease_cannot_commit(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """It receives no more changes, either, and the new one's position stays."""
    first, second = await overtaken(service, admin, database)

    with pytest.raises(LeaseLostError):
        await first.commit()
    await second.commit()
    with pytest.raises(LeaseLostError):
        await take(first, 5)
    await second.close()
    await first.close()

    async with service.consumer("c") as third:
        assert told(await take(third, 1)) == [("s", 2)]


@stalls
async def test_a_reader_that_lost_its_lease_commits_no_transaction(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """What a stalled reader's handler has written in its transaction is undone."""
    await append(service, await create(service), 2)
    is_handling, may_go_on = asyncio.Event(), asyncio.Event()

    async def handler(_: Change, txn: Any) -> None:
        await txn.client[database].bills.insert_one({"by": "first"}, session=txn)
        is_handling.set()
        await may_go_on.wait()

    first = service.consumer("c")
    running = asyncio.create_task(first.run(handler, transactional=True))
    await is_handling.wait()
    expire(admin, database)
    async with service.consumer("c") as second:
        await take(second, 1, commit=True)
        may_go_on.set()
        with pytest.raises(LeaseLostError):
            await running

    assert admin[database].bills.count_documents({}) == 0


async def test_a_reader_that_stalled_after_taking_the_lease_waits_again(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the lease has expired meanwhile, it does not depose the next one."""
    await append(service, await create(service), 3)
    has_taken, may_resume = asyncio.Event(), asyncio.Event()
    acquire = lease.Lease.acquire

    async def stalling(self: lease.Lease, **how: Any) -> Any:
        taken = await acquire(self, **how)
        if not has_taken.is_set():
            has_taken.set()
            await may_resume.wait()
        return taken

    monkeypatch.setattr(lease.Lease, "acquire", stalling)
    first, second = service.consumer("c"), service.consumer("c")
    claiming = asyncio.create_task(take(first, 1))
    await has_taken.wait()
    expire(admin, database)
    await take(second, 1, commit=True)
    may_resume.set()
    await take(second, 1, commit=True)
    await second.close()

    assert told(await claiming) == [("s", 3)]
    await first.close()


@pytest.mark.limits(lease_seconds=1.0, lease_renewal_seconds=0.1)
async def test_an_abandoned_lease_expires(
    service: MongoSessionService,
) -> None:
    """A reader that was let go of without closing it does not block the next."""
    await append(service, await create(service), 2)
    await take(service.consumer("c"), 1, commit=True)  # and nobody holds it any more
    gc.collect()

    async with service.consumer("c") as second:
        assert told(await take(second, 1)) == [("s", 2)]


async def test_a_late_commit_does_not_move_the_position_back(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """A commit that is overtaken by a later one does not undo it."""
    await append(victim, await create(victim), 3)
    async with victim.consumer("c") as consumer:
        await take(consumer, 1)
        slow = {"blockConnection": True, "blockTimeMS": 1500}
        with failing(admin, "findAndModify", times=1, **slow) as wait_until_hit:
            late = asyncio.create_task(consumer.commit())
            await asyncio.to_thread(wait_until_hit)
            await take(consumer, 1, commit=True)
            assert not late.done()
            await late
    async with victim.consumer("c") as again:
        assert told(await take(again, 1)) == [("s", 3)]


@pytest.mark.limits(lease_renewal_seconds=0.03)
async def test_an_erased_consumer_leaves_no_lease(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader whose app is erased under it does not store its lease again."""
    await append(service, await create(service))
    async with service.consumer("c", app_name=APP) as consumer:
        await take(consumer, 1)
        await service.delete_app(app_name=APP)
        renewals, loop = asyncio.Queue[None](), asyncio.get_running_loop()
        renew = lease._renew_together  # noqa: SLF001

        def renewing(*arguments: Any) -> None:
            renew(*arguments)
            loop.call_soon_threadsafe(renewals.put_nowait, None)

        monkeypatch.setattr(lease, "_renew_together", renewing)
        for _ in range(3):
            await renewals.get()
        with pytest.raises(HistoryLostError, match="checkpoint of consumer 'c'"):
            await consumer.commit()

    assert admin[database].leases.count_documents({}) == 0
