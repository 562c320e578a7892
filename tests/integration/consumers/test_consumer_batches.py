"""What a run commits together, and when it commits at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pymongo import MongoClient
from support.consumers import PATIENCE, append, create, run, take, told
from support.subscriptions import until

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.storage import tasks

# No batch is committed since it took long.
pytestmark = pytest.mark.limits(consumer_batch_seconds=60.0)


async def committed(admin: MongoClient, database: str) -> Any:
    """The revision up to which consumer "c" has committed the log; None if none."""
    found = await asyncio.to_thread(admin[database].checkpoints.find_one, {"_id": "c"})
    replayed = found and found["position"] and found["position"]["replayed"]
    return replayed and replayed["revision"]


LONG = pytest.mark.limits(consumer_batch_seconds=0.0)


@pytest.mark.parametrize(
    "before",
    [[None] * 20, pytest.param([None, 1, 2], marks=LONG)],
    ids=["one page", "long work"],
)
async def test_changes_are_committed_together_unless_they_take_long(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    before: list[int | None],
) -> None:
    """Nothing is committed amid a page, but after each change that takes its time."""
    await append(service, await create(service), len(before))
    consumer, seen = service.consumer("c"), []

    async def handler(change: Change) -> None:
        seen.append(await committed(admin, database))
        if change.revision == len(before):
            await consumer.close()

    await run(consumer, handler)

    assert seen == before
    assert await committed(admin, database) == len(before)


async def test_an_idle_run_has_committed(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Before it waits for more, it commits what it has handled, be it the whole log."""
    await append(service, await create(service), 3)
    consumer = service.consumer("c")
    running = asyncio.create_task(consumer.run(lambda _: None))

    after = {"_id": "c", "position.replayed": None, "position.is_replaying": False}
    await until(lambda: admin[database].checkpoints.count_documents(after))
    await consumer.close()
    await running

    assert not running.cancelled()


async def test_a_cancelled_run_commits_the_handled_changes(
    service: MongoSessionService,
) -> None:
    """Only the change at hand is delivered again."""
    await append(service, await create(service), 3)
    reached = asyncio.Event()

    async def handler(change: Change) -> None:
        if change.revision == 3:
            reached.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(service.consumer("c").run(handler))
    async with asyncio.timeout(PATIENCE):
        await reached.wait()
        running.cancel()
        await asyncio.wait([running])

    async with service.consumer("c") as other:
        assert told(await take(other, 1)) == [("s", 3)]


@pytest.mark.limits(handler_retry_seconds=0.0)
async def test_a_failure_holds_up_no_commit_of_others(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """What was handled before is committed before the pause."""
    await append(service, await create(service), 2)
    consumer, seen = service.consumer("c"), []

    async def handler(change: Change) -> None:
        if change.revision == 2:
            seen.append(await committed(admin, database))
            if len(seen) == 2:
                await consumer.close()
            raise ValueError

    await run(consumer, handler, max_attempts=2)

    assert seen == [None, 1]


async def test_a_commit_in_a_handler_takes_effect_at_once(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """It covers the change at hand, too, and nothing earlier is saved after it."""
    await append(service, await create(service), 3)
    consumer, seen = service.consumer("c"), []

    async def handler(change: Change) -> None:
        if change.revision == 2:
            await consumer.commit()
        seen.append(await committed(admin, database))
        if change.revision == 3:
            await consumer.close()

    await run(consumer, handler)

    assert seen == [None, 2, 2]


async def test_other_tasks_run_between_changes(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that waits for nothing keeps the event loop for a slice at most."""
    monkeypatch.setattr(tasks, "_SLICE", 0.0)
    await append(service, await create(service), 20)
    consumer, turns, seen = service.consumer("c"), 0, []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def handler(change: Change) -> None:
        seen.append(turns)
        if change.revision == 20:
            running.cancel()

    counting = asyncio.create_task(count_turns())
    running = asyncio.create_task(consumer.run(handler))
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([running])
    counting.cancel()

    assert len(set(seen)) == 20
