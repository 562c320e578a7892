"""Source base class: opening, closing, and reading in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import islice
from typing import Final, Self, TypeVar

from mongo_session_service.transfer.source_items import Source

Element = TypeVar("Element")
Result = TypeVar("Result")

_CHUNK_ELEMENTS: Final = 200
"""Elements read per thread call: enough to hide its cost, with little memory."""

_CHUNK_SECONDS: Final = 0.05
"""Seconds after which no more are read, since what takes long to read is large."""


class MalformedError(ValueError):
    """A row or line does not hold what it should hold."""


class BaseSource(Source):
    """A source that opens and closes a resource."""

    _exits: AsyncExitStack

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            await self._open(exits)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._exits.aclose()

    async def _open(self, exits: AsyncExitStack) -> None:
        """Open the resource, and note how to close it; by default there is none."""


async def in_thread(work: Callable[[], Result]) -> Result:
    """Run a blocking function in a daemon thread, which is abandoned on cancellation.

    It may block for ever on a silent pipe, and an interrupted program would wait for
    the threads of :func:`asyncio.to_thread`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def set_if_pending(put: Callable[[], None]) -> None:
        if not future.done():
            put()

    def run_and_set() -> None:
        put: Callable[[], None]
        try:
            put = partial(future.set_result, work())
        except Exception as error:  # noqa: BLE001  raised by the await below
            put = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: it was cancelled
            loop.call_soon_threadsafe(set_if_pending, put)

    threading.Thread(target=run_and_set, daemon=True).start()
    return await future


async def iterate_in_threads(elements: Iterable[Element]) -> AsyncGenerator[Element]:
    """Yield the elements of a blocking iterator, read from it in threads."""
    iterator = iter(elements)

    def read_chunk() -> list[Element]:
        some = []
        until = time.monotonic() + _CHUNK_SECONDS
        for each in islice(iterator, _CHUNK_ELEMENTS):
            some.append(each)
            if time.monotonic() > until:
                break
        return some

    while some := await in_thread(read_chunk):
        while some:
            yield some.pop(0)
