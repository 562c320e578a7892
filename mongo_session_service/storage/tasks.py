"""Tasks: work that a cancellation does not cut off, that is shared, or in slices.

In a slice, Python's cyclic garbage collector is held: decoding makes thousands of
objects that all stay alive, among which it would look for garbage again and again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import suppress
from contextvars import Context
from copy import copy
from functools import partial
from itertools import count
from typing import Any, Final, Generic, TypeVar

from mongo_session_service.errors import ConfigurationError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Key = TypeVar("Key")

_FIRST_RESTART_PAUSE: Final = 0.1
"""Seconds until a task that has died is started again."""
_LONGEST_RESTART_PAUSE: Final = 2.0
"""Seconds, as long as it dies again and again."""


async def uninterrupted(work: Awaitable[Result]) -> Result:
    """Wait for the end of ``work`` even if the caller is cancelled meanwhile.

    A transaction abandoned halfway would hold its locks on the server, and one
    abandoned at its commit would have an unknown outcome. The cancellation is raised
    afterwards.
    """
    # A coroutine runs outside the caller's context: its deadline, as pymongo.timeout()
    # sets it, would cut off the very end of a transaction.
    current = asyncio.current_task()
    if not asyncio.iscoroutine(work):
        task = asyncio.ensure_future(work)
    elif current and isinstance(current.get_coro(), _BackgroundWork):
        task = background(work)
    else:
        task = asyncio.create_task(work, context=Context())
    cancelled = await wait_for_end(task)
    if cancelled is None:
        return task.result()
    if not task.cancelled() and task.exception() is not None:
        logger.warning("A cancelled call failed with %r.", type(task.exception()))
    raise cancelled


async def wait_for_end(
    awaited: asyncio.Future[Any], interrupt: Callable[[], object] = lambda: None
) -> asyncio.CancelledError | None:
    """Wait in spite of cancellations, at each of which ``interrupt`` is called.

    Return the last one, which the caller is to raise; None if there was none.
    """
    cancelled: asyncio.CancelledError | None = None
    while not awaited.done():
        try:
            await asyncio.wait([awaited])
        except asyncio.CancelledError as error:
            cancelled = error
            interrupt()
    return cancelled


def background(work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
    """Start a task that survives its caller's cancellation and has no deadline of it.

    If nobody awaits it, its failure is ignored. It ends with its event loop, without a
    word, even if that is not closed as ``asyncio.run()`` closes it.
    """
    # With eager tasks, create_task() would start it before the caller has the task.
    task = asyncio.Task(_BackgroundWork(work), context=Context())
    task.add_done_callback(ignore_failure)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
    return task


def ignore_failure(task: asyncio.Future[Any]) -> None:
    """Have nothing logged of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


class _BackgroundWork(Coroutine[Any, Any, Result]):
    """A coroutine whose asynchronous generators are unknown to the event loop.

    ``loop.shutdown_asyncgens()`` closes all that it knows, even under tasks that still
    run: whatever these raise then, it is not that they were cancelled.
    """

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self._work = work

    def send(self, value: Any) -> Any:
        return self._run_step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        return self._run_step(self._work.throw, *error)

    def _run_step(self, step: Callable[..., Any], *args: Any) -> Any:
        hook = sys.get_asyncgen_hooks().firstiter
        sys.set_asyncgen_hooks(firstiter=None)
        try:
            return step(*args)
        finally:
            sys.set_asyncgen_hooks(firstiter=hook)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Result]:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)  # its code and frame, for those who debug


async def cancel_background_tasks() -> None:
    """Cancel all background tasks of the running event loop, which is ending."""
    tasks = [
        each
        for each in asyncio.all_tasks()
        if isinstance(each.get_coro(), _BackgroundWork) and each.cancel()
    ]
    if tasks:
        await asyncio.wait(tasks)


async def await_in(
    loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Await work in an event loop; in another one, unless that ends before."""
    if loop is asyncio.get_running_loop():
        await work()
        return
    begun: list[asyncio.Task[None]] = []
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: begun.append(background(work())))
    # A loop silently drops what is sent to it at its very end.
    while loop.is_running() and not (begun and begun[0].done()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


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


async def join(
    attempts: dict[Key, asyncio.Task[None]],
    key: Key,
    start: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Wait for an attempt that all who call meanwhile share; fail as it does."""
    task = attempts.get(key)
    if task is None:
        task = attempts[key] = background(start())
        # What failed would keep all alive that it has used.
        task.add_done_callback(lambda _: attempts.pop(key))
    await asyncio.wait([task])
    if error := task.exception():
        raise copy(error)  # since raising adds a traceback


async def wait_at_most(seconds: float, event: asyncio.Event) -> None:
    """Wait until an event is set, but no longer than so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop; ``ConfigurationError`` if it is not asyncio's."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "MongoSessionService needs asyncio, and no asyncio event loop is running"
            " here. Call it within asyncio.run(); in a program on trio, through"
            " trio-asyncio, or with AnyIO on its asyncio backend."
        ) from None


def cancellations() -> int:
    """How often somebody has cancelled the current task.

    If nobody has since, a ``CancelledError`` is a failure of the code that raised it.
    """
    task = asyncio.current_task()
    return task.cancelling() if task else 0


class ReraisedCancellation:
    """Raises again a cancellation of the current task that a block has swallowed.

    Python 3.11's ``asyncio.wait_for``, which the driver uses to connect, swallows a
    cancellation that arrives as it completes (python/cpython#86296). As a context, it
    is raised after a block that has swallowed it, even if the block has failed since.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = cancellations()

    def __exit__(self, _: object, exc: BaseException | None, *__: object) -> None:
        has_ended = exc is None or isinstance(exc, Exception)
        if has_ended and cancellations() > self._before:
            raise asyncio.CancelledError


def keep_running(
    task_name: str, run: Callable[..., Awaitable[None]], *args: object
) -> asyncio.Task[None]:
    """Start a task that runs to its end, again after each failure, which is logged."""

    async def run_again() -> None:
        loop = asyncio.get_running_loop()
        for attempt in count():
            try:
                await run(*args)
            except (Exception, asyncio.CancelledError) as error:
                if loop.is_closed():  # it is being garbage-collected
                    return
                if cancellations():
                    raise
                log_death(task_name, error)  # or nobody would do its work
            else:
                return
            first, longest = _FIRST_RESTART_PAUSE, _LONGEST_RESTART_PAUSE
            await asyncio.sleep(backoff(attempt, first=first, longest=longest))

    return background(run_again())


def log_death(task_name: str, error: BaseException) -> None:
    """Log the cause, without its text, which may quote what is stored."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    logger.error("%s died of %s at %s.", task_name, type(error).__qualname__, where)


def backoff(attempt: int, *, first: float, longest: float) -> float:
    """Seconds to wait after a failed attempt, of which the first is 0.

    They double with each attempt, and are random by a half, so that those who failed
    together do not come back together.
    """
    doubled = first * 2.0 ** min(attempt, 100)  # more would overflow
    return min(doubled, longest) * random.uniform(0.5, 1)  # noqa: S311  no secret


_SLICE: Final = 0.0015
"""Seconds of CPU after which other tasks run."""
# Between slices the collector runs a young collection, and about every eleventh time
# one of the middle generation, which looks at all that these slices have made: 10 ms.

_ITERATIONS: Final = 3
"""Iterations of the event loop between slices: a due timer runs in the third."""

_holders: Final[list[None]] = []
"""One for each thread in which the collector is held now."""


def with_gc_paused(work: Callable[[], Result]) -> Result:
    """Call a function with Python's garbage collector paused, if it was on.

    It is to be short: the collection that is due afterwards looks at all that was made
    meanwhile.
    """
    # Without it, 2,000 events that are read again take 1.3 to 1.9 times the CPU.
    if not gc.isenabled():
        return work()
    _holders.append(None)
    try:
        gc.disable()
        return work()
    finally:
        # Another thread may still hold it: that one's slice is then collected as usual.
        gc.enable()
        _holders.pop()


def _release_collector_in_child() -> None:
    # The threads that held it do not exist in a forked process.
    if _holders:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_collector_in_child)


async def in_slices(results: Iterable[Result]) -> list[Result]:
    """Compute all results of an iterator in slices."""
    next_slice = partial(_compute_slice, iter(results))
    made, is_last = with_gc_paused(next_slice)
    while not is_last:
        for _ in range(_ITERATIONS):
            await asyncio.sleep(0)
        more, is_last = with_gc_paused(next_slice)
        made += more
    return made


def _compute_slice(rest: Iterator[Result]) -> tuple[list[Result], bool]:
    """Compute the results of one slice of time; True if they are the last."""
    made: list[Result] = []
    end, earliest = time.thread_time() + _SLICE, time.perf_counter() + _SLICE
    for each in rest:
        made.append(each)
        # Asked for first, since it takes a tenth of the time.
        if (now := time.perf_counter()) > earliest:
            if (left := end - time.thread_time()) < 0:
                return made, False
            earliest = now + left  # a thread has no more CPU than there is time
    return made, True


class Pace:
    """Lets other tasks run in a loop whose steps may never have to wait."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SLICE

    async def yield_to_loop(self) -> None:
        """Let other tasks run if this slice of time is over."""
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + _SLICE
