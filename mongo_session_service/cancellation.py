"""What a cancelled caller may interrupt, and what not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar

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
    """Have work go on whoever waits for it, who may leave and come back.

    It runs outside its caller's context, whose deadlines are not everyone's. That it
    failed is of no interest if nobody comes back.
    """
    task = asyncio.create_task(work, context=Context())
    task.add_done_callback(lambda it: it.cancelled() or it.exception())
    return task


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
