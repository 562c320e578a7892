"""Disturbing a call at any of the points where it, or what it began, awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any


class _Counted(Coroutine[Any, Any, Any]):
    """A coroutine that tells whenever it is about to wait."""

    def __init__(
        self, inner: Coroutine[Any, Any, Any], waits: Callable[[Any], None]
    ) -> None:
        self.inner = inner
        self._waits = waits

    def send(self, value: Any) -> Any:
        awaited = self.inner.send(value)
        self._waits(awaited)
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self.inner.throw(*error)
        self._waits(awaited)
        return awaited

    def close(self) -> None:
        self.inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError


def is_drivers(task: asyncio.Task[Any]) -> bool:
    """Whether it is the driver that has begun a task."""
    coroutine: Any = task.get_coro()
    if isinstance(coroutine, _Counted):
        coroutine = coroutine.inner
    return "/pymongo/" in coroutine.cr_code.co_filename


async def cancelled_at(
    call: Coroutine[Any, Any, Any], point: int, *, late: bool
) -> bool:
    """Run a call, and cancel it at one of its points; whether it got that far."""
    return await disturbed_at(call, point, asyncio.Task.cancel, late=late)


async def disturbed_at(
    call: Coroutine[Any, Any, Any],
    point: int,
    disturb: Callable[[asyncio.Task[Any]], object],
    *,
    late: bool = False,
) -> bool:
    """Run a call, and do something to its task at one of its points.

    Points are counted in its own task and in all that are begun meanwhile. It is done
    as the call begins to wait there, or ``late``: when that is over, before it goes on.

    Returns:
        Whether it got that far.
    """
    loop = asyncio.get_running_loop()
    points, victim = 0, None

    def waits(awaited: Any) -> None:
        nonlocal points
        points += 1
        if points != point or victim is None:
            return
        if late and asyncio.isfuture(awaited):
            awaited.add_done_callback(lambda _: disturb(victim))
        else:
            disturb(victim)

    def begin(
        loop: asyncio.AbstractEventLoop,
        inner: Coroutine[Any, Any, Any],
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(inner, waits), loop=loop, context=context)

    loop.set_task_factory(begin)  # type: ignore[arg-type]
    try:
        victim = loop.create_task(call)
        async with asyncio.timeout(60):
            await asyncio.wait([victim])
    finally:
        loop.set_task_factory(None)
    if not victim.cancelled():
        victim.result()
    return points >= point
