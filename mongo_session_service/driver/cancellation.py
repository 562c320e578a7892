"""Cancellation: awaits that finish their work before a cancellation is raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeVar

from mongo_session_service.errors import ConfigurationError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


async def uninterrupted(work: Awaitable[Result]) -> Result:
    """Wait for the end of ``work`` even if the caller is cancelled meanwhile.

    A transaction abandoned halfway would hold its locks on the server, and one
    abandoned at its commit would have an unknown outcome. The cancellation is raised
    afterwards.
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
    """Start work that continues, without the caller's deadlines, if that is cancelled.

    If nobody awaits it, its failure is ignored.
    """
    # With eager tasks, create_task() would start it before the caller has the task.
    task = asyncio.Task(work, context=Context())
    task.add_done_callback(lambda it: it.cancelled() or it.exception())
    return task


class SharedTask(Generic[Result]):
    """A task that callers share: if one is cancelled, the next awaits the same task.

    A cancelled driver call drops its connection, and the task may take longer than each
    caller waits. When this object is deleted, the running task is cancelled.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Result] | None = None

    def __del__(self) -> None:
        if self._task is not None:
            with suppress(RuntimeError):  # its loop is closed
                # The garbage collector may run in another thread.
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def await_result(
        self, start: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result | None:
        """Return the result of the running task, or of one that is started now.

        One caller receives it: None if another one did, or :meth:`cancel_task`.
        """
        if self._task is None:
            self._task = background(start())
        task = self._task
        await asyncio.wait([task])
        if self._task is not task:
            return None
        self._task = None
        return task.result()

    async def cancel_task(self) -> Result | None:
        """Cancel the running task; return its result if no caller has received it."""
        task, self._task = self._task, None
        if task is None:
            return None
        task.cancel()
        await asyncio.wait([task])
        is_failed = task.cancelled() or task.exception() is not None
        return None if is_failed else task.result()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        ConfigurationError: it is not one of asyncio's, or none is running.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "MongoSessionService needs asyncio, and no asyncio event loop is running"
            " here. Call it within asyncio.run(); in a program on trio, through"
            " trio-asyncio, or with AnyIO on its asyncio backend."
        ) from None


class SwallowedCancellation:
    """A cancellation of the current task that arrives from now on, and may get lost.

    Python 3.11's ``asyncio.wait_for``, which the driver uses to write, swallows a
    cancellation that arrives as it completes (python/cpython#86296). As a context, it
    is raised after a block that has swallowed it.
    """

    __slots__ = ("_before", "_task")

    def __init__(self) -> None:
        self._task = asyncio.current_task(running_loop())
        self._before = self._task.cancelling() if self._task else 0

    def raise_it(self) -> None:
        """Raise it, if one has arrived."""
        if self._task and self._task.cancelling() > self._before:
            raise asyncio.CancelledError

    def __enter__(self) -> None:
        pass

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.raise_it()
