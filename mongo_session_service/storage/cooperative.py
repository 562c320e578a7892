"""Cooperative work: in slices, between which the event loop's other tasks run.

In a slice, Python's cyclic garbage collector is held: decoding makes thousands of
objects that all stay alive, among which it would look for garbage again and again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

Result = TypeVar("Result")

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
    """Compute all results of an iterator in slices; a list is returned as it is."""
    if isinstance(results, list):
        return results
    next_slice = partial(_compute_slice, iter(results))
    made, is_last = with_gc_paused(next_slice)
    while not is_last:
        for _ in range(_ITERATIONS):
            await asyncio.sleep(0)
        more, is_last = with_gc_paused(next_slice)
        made += more
    return made


def _compute_slice(rest: Iterator[Result]) -> tuple[list[Result], bool]:
    """Compute the results of one slice of time; tell whether they are the last."""
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
