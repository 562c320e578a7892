"""Which changes are handled at once, and which after each other."""

from __future__ import annotations

import asyncio

import pytest

from mongo_session_service.consumers.handler import KeyedTaskPool, end_tasks

APP, USER, SESSION = ("a",), ("a", "u"), ("a", "u", "s")


@pytest.mark.parametrize(
    ("first", "second"),
    [(SESSION, SESSION), (APP, SESSION), (SESSION, APP), (USER, APP), (USER, SESSION)],
)
async def test_related_work_keeps_its_order(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """In a session, and around what sessions share."""
    pool, begun, may_end = KeyedTaskPool(9), asyncio.Queue[str](), asyncio.Event()

    async def one() -> bool:
        begun.put_nowait("one")
        return await may_end.wait()

    async def other() -> bool:
        begun.put_nowait("other")
        return True

    tasks = [pool.submit(first, one), pool.submit(second, other)]
    assert await begun.get() == "one"
    for _ in range(10):
        await asyncio.sleep(0)
    assert begun.empty()
    may_end.set()
    assert await begun.get() == "other"
    await end_tasks(tasks)
