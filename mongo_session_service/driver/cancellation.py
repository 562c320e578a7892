"""Cancellation: awaits that finish their work before a cancellation is raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


async def uninterrupted(work: Awaitable[Result]) -> Result:
    """Wait for the end of ``work`` even if the caller is cancelled meanwhile.

    A transaction dropped halfway would hold its locks on the server, and one dropped
    at its commit would have an unknown outcome. The cancellation is raised afterwards.
    """
    # A coroutine runs outside the caller's context: its deadline, as pymongo.timeout()
    # sets it, would cut off the very end of a transaction.
    task = (
        asyncio.create_task(work, context=Context())
        if asyncio.iscoroutine(work)
        else asyncio.ensure_future(work)
    )
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and task.exception() is not None:
        logger.warning("A cancelled call failed with %r.", type(task.exception()))
    raise cancelled


def background(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Have work go on whoever waits for it.

    It runs outside its caller's context, whose deadlines are not everyone's. That it
    failed is of no interest if nobody hears of it.
    """
    # By create_task() it would begin before the caller knows it, where tasks are eager.
    task = asyncio.Task(work, context=Context())
    task.add_done_callback(lambda it: it.cancelled() or it.exception())
    return task


class Step(Generic[Result]):
    """What is done once for whoever comes, who may leave it to the next.

    A driver that is cancelled drops its connection, and what it was at may take longer
    than each caller waits. If this is let go, what is under way is cancelled.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Result] | None = None

    def __del__(self) -> None:
        if self._task is not None:
            with suppress(RuntimeError):  # its loop is closed
                # Whoever collects garbage may be in another thread.
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def result(
        self, start: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result | None:
        """The result of what is under way, or of what is started now.

        It has one taker: None if that is another, or :meth:`end`.
        """
        if self._task is None:
            self._task = background(start())
        task = self._task
        await asyncio.wait([task])
        if self._task is not task:
            return None
        self._task = None
        return task.result()

    async def end(self) -> Result | None:
        """Cancel what is under way; its result, if there is one nobody has taken."""
        task, self._task = self._task, None
        if task is None:
            return None
        task.cancel()
        await asyncio.wait([task])
        is_failed = task.cancelled() or task.exception() is not None
        return None if is_failed else task.result()


def cancellations() -> int:
    """How often the current task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def heed_cancellation(since: int) -> None:
    """Raise the cancellation of the current task that came meanwhile, if nobody has.

    Python 3.11's ``asyncio.wait_for``, which the driver writes with, forgets one that
    comes at the very moment it is done (python/cpython#86296).

    Args:
        since: What :func:`cancellations` was before.

    Raises:
        CancelledError: one came.
    """
    if cancellations() > since:
        raise asyncio.CancelledError


@contextmanager
def heeding_cancellation() -> Iterator[None]:
    """Have :func:`heed_cancellation` follow what succeeds."""
    before = cancellations()
    yield
    heed_cancellation(before)
