"""Readers that get in each other's way."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from pymongo import MongoClient
from support.consumers import PATIENCE, append, create, take
from support.subscriptions import until

from mongo_session_service import Change, MongoSessionService, MongoSessionServiceError


async def test_a_consumer_runs_once(service: MongoSessionService) -> None:
    """A second run, or reader, would commit what the first has not handled yet."""
    await append(service, await create(service))
    consumer, started, may_end = service.consumer("c"), asyncio.Event(), asyncio.Event()

    async def handler(_: Change) -> None:
        started.set()
        await may_end.wait()

    running = asyncio.create_task(consumer.run(handler))
    await started.wait()
    for reading in (consumer.run(handler), anext(consumer)):
        with pytest.raises(MongoSessionServiceError, match="'c' is already running"):
            await reading
    may_end.set()
    async with asyncio.timeout(PATIENCE):
        await consumer.end()
    await running

    await create(service, "next")
    assert (await take(consumer, 1))[0].session_id == "next"
    await consumer.close()


async def test_handlers_that_close_the_service_do_not_wait_for_each_other(
    service: MongoSessionService,
) -> None:
    """However many do it at the same time, each of their runs ends."""
    both = asyncio.Barrier(2)

    async def handler(_: Change) -> None:
        await both.wait()
        await service.close()

    session = await create(service)
    runs = [asyncio.create_task(service.consumer(each).run(handler)) for each in "ab"]
    async with asyncio.timeout(PATIENCE):
        await append(service, session)
        await asyncio.wait(runs)


def _waiting(tasks: set[asyncio.Task[Any]]) -> list[object]:
    """Those of the tasks that wait for a consumer's name."""
    return [each for each in tasks if "_start_coordinator" in repr(each.get_coro())]


async def test_a_reader_that_gave_up_waiting_takes_no_lease(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """It is no longer in the queue for the name."""
    await append(service, await create(service))
    async with service.consumer("c") as holder:
        await take(holder, 1)
        tasks = asyncio.all_tasks()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(service.consumer("c"))
        gc.collect()
        await until(lambda: not _waiting(asyncio.all_tasks() - tasks))

    async with service.consumer("c") as following:
        await take(following, 1)
        assert admin[database].checkpoints.find_one({"_id": "c"})["epoch"] == 2
