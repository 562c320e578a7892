"""Runs that end when they have caught up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pymongo import MongoClient
from support.consumers import append, create, run, told

from mongo_session_service import Change, MongoSessionService

pytestmark = pytest.mark.limits(stream_await_seconds=0.05)


async def caught_up(service: MongoSessionService, **options: Any) -> list[Change]:
    """Return what a run of consumer "c" handles until it has caught up."""
    seen: list[Change] = []
    await run(service.consumer("c"), seen.append, until_caught_up=True, **options)
    return seen


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_each_run_handles_the_changes_since_the_last(
    service: MongoSessionService, concurrency: int
) -> None:
    """The log at first, then what changed, then nothing; and the name is free."""
    session = await create(service)
    await append(service, session, 3)
    first = await caught_up(service, concurrency=concurrency)
    await append(service, session, 2)
    second = await caught_up(service, concurrency=concurrency)
    third = await caught_up(service, concurrency=concurrency)

    assert told(first) == [("s", 1), ("s", 2), ("s", 3)]
    assert told(second) == [("s", 4), ("s", 5)]
    assert third == []
    [status] = await service.consumers()
    assert not status.is_active


async def test_changes_of_one_transaction_are_all_handled(
    service: MongoSessionService,
) -> None:
    """Appends that share a commit share its time, and none of them is left."""
    sessions = [await create(service, str(number)) for number in range(8)]
    await caught_up(service)
    await asyncio.gather(*(append(service, each) for each in sessions))

    assert sorted(told(await caught_up(service))) == [
        (str(number), 1) for number in range(8)
    ]
    assert await caught_up(service) == []


async def test_a_run_without_changes_moves_its_checkpoint(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A job that finds nothing does not fall behind what MongoDB remembers."""
    await append(service, await create(service))
    await caught_up(service)
    positions = []
    for number in range(2):
        await asyncio.to_thread(admin[database].elsewhere.insert_one, {"_id": number})
        await caught_up(service)
        stored = await asyncio.to_thread(admin[database].checkpoints.find_one)
        assert stored is not None
        positions.append(stored["position"]["reached"])

    assert positions[0] < positions[1]


async def test_changes_after_its_start_do_not_prolong_a_run(
    service: MongoSessionService,
) -> None:
    """A handler whose own appends would feed it for ever is left."""
    session = await create(service)
    await append(service, session)
    calls = 0

    async def handler(_: Change) -> None:
        nonlocal calls
        calls += 1
        await append(service, session)

    await run(service.consumer("c"), handler, until_caught_up=True)
    assert calls >= 1
