"""Handlers of different sessions at the same time."""

from __future__ import annotations

import asyncio

import pytest
from support.consumers import PATIENCE, append, create, run, take, told

from mongo_session_service import Change, MongoSessionService

Seen = tuple[str | None, int | None]


pytestmark = pytest.mark.limits(handler_retry_seconds=0.0)


async def populate(service: MongoSessionService, **counts: int) -> None:
    """Have sessions with so many events each."""
    for session_id, count in counts.items():
        await append(service, await create(service, session_id), count)


async def test_sessions_are_handled_at_once_each_in_order(
    service: MongoSessionService,
) -> None:
    """Handlers of three sessions meet, and each session's changes keep their order."""
    await populate(service, a=3, b=3, c=3)
    consumer, seen = service.consumer("c"), list[Seen]()
    meeting = asyncio.Barrier(3)

    async def handler(change: Change) -> None:
        await meeting.wait()
        seen.append((change.session_id, change.revision))
        if len(seen) == 9:
            await consumer.close()

    await run(consumer, handler, concurrency=3)

    for session_id in ("a", "b", "c"):
        assert [each[1] for each in seen if each[0] == session_id] == [1, 2, 3]


async def test_nothing_behind_an_unhandled_change_is_committed(
    service: MongoSessionService,
) -> None:
    """After a cancellation, what follows the first unhandled change comes again."""
    await populate(service, a=1, b=1, c=2)
    consumer, others = service.consumer("c"), asyncio.Event()

    async def handler(change: Change) -> None:
        if change.session_id == "b":
            await asyncio.Event().wait()
        if change.revision == 2:
            await consumer.commit()
            others.set()

    running = asyncio.create_task(consumer.run(handler, concurrency=3))
    async with asyncio.timeout(PATIENCE):
        await others.wait()
        running.cancel()
        await asyncio.wait([running])

    async with service.consumer("c") as other:
        assert told(await take(other, 3)) == [("b", 1), ("c", 1), ("c", 2)]


async def test_changes_that_fail_together_are_each_a_dead_letter(
    service: MongoSessionService,
) -> None:
    """Each is kept once, and everything is committed."""
    await populate(service, a=2, b=2, c=2)
    consumer, calls = service.consumer("c"), list[Seen]()

    async def handler(change: Change) -> None:
        calls.append((change.session_id, change.revision))
        if len(calls) == 6 + 3:
            await consumer.close()
        if change.revision == 1:
            raise ValueError

    await run(consumer, handler, concurrency=3, max_attempts=2)

    letters = [each.change async for each in consumer.dead_letters()]
    assert sorted(told(letters)) == [("a", 1), ("b", 1), ("c", 1)]
    assert len(calls) == 9
    await populate(service, d=1)
    async with service.consumer("c") as other:
        created, appended = await take(other, 2)
    assert (created.kind, told([appended])) == ("created", [("d", 1)])


async def test_closing_lets_running_handlers_finish(
    service: MongoSessionService,
) -> None:
    """They are committed; no other handler is called."""
    await populate(service, a=2, b=2)
    consumer, seen = service.consumer("c"), list[Seen]()
    meeting = asyncio.Barrier(2)

    async def handler(change: Change) -> None:
        await meeting.wait()
        await consumer.close()
        seen.append((change.session_id, change.revision))

    await run(consumer, handler, concurrency=2)

    assert sorted(seen) == [("a", 1), ("b", 1)]
    async with service.consumer("c") as other:
        assert told(await take(other, 1)) == [("a", 2)]
