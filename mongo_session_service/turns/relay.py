"""Relay: an async generator whose content comes from a task of its own.

What a generator sets in a context variable stays set in its caller's code between two
items. A task has a context of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from mongo_session_service.driver.cancellation import running_loop, uninterrupted

Item = TypeVar("Item")


async def relayed(
    produce: Callable[[Callable[[Item], Awaitable[None]]], Awaitable[None]],
) -> AsyncGenerator[Item, None]:
    """What ``produce`` emits, item by item: it continues when the next is wanted.

    If the caller stops early, ``produce`` is cancelled, and has ended when the
    generator is closed.
    """
    running_loop()
    items: asyncio.Queue[tuple[Item] | None] = asyncio.Queue()
    wanted = asyncio.Semaphore(0)

    async def emit(item: Item) -> None:
        items.put_nowait((item,))
        await wanted.acquire()

    async def run() -> None:
        try:
            await produce(emit)
        finally:
            items.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (item := await items.get()) is not None:
            yield item[0]
            wanted.release()
        await task
    finally:
        task.cancel()
        await uninterrupted(asyncio.wait([task]))
        if not task.cancelled():
            task.exception()  # which the caller has received, or left behind
