"""Sliced work: what takes long takes turns with the other tasks of its event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from mongo_session_service.driver import collector

Result = TypeVar("Result")

_SLICE: Final = 0.0015
"""Seconds of CPU after which other tasks run. The garbage collector, which is paused in
each slice, then looks at what it has made; every eleventh time at what these all have
made, which takes 10 ms."""

_TURNS: Final = 3
"""Turns of the loop between slices: a task whose timer is due runs in the third."""


async def in_slices(results: Iterable[Result]) -> list[Result]:
    """All results of an iterator that computes them; a list is computed already."""
    if isinstance(results, list):
        return results
    made: list[Result] = []
    rest = iter(results)
    while True:
        if collector.paused(lambda: _fill(made, rest)):
            return made
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def _fill(made: list[Result], rest: Iterator[Result]) -> bool:
    """Compute results for the time of a slice; whether these were the last."""
    end, earliest = time.thread_time() + _SLICE, time.perf_counter() + _SLICE
    for each in rest:
        made.append(each)
        # Asked for first, since it takes a tenth of the time.
        if (now := time.perf_counter()) > earliest:
            if (left := end - time.thread_time()) < 0:
                return False
            earliest = now + left  # a thread has no more CPU than there is time
    return True


class Pace:
    """Lets other tasks run between steps that may not wait for anything themselves."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SLICE

    async def keep(self) -> None:
        """Let them run if a slice is over."""
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + _SLICE
