"""Intake: how many writes, of how many bytes, an event loop encodes and holds at once.

A write is encoded when its call has a place. Calls without one wait, in the order in
which they came; so a burst of large events takes no more memory than a few of them. Of
many calls at once, each turn of the event loop encodes as many as a few milliseconds
allow.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

MAX_WRITES: Final = 4096
"""Writes that have a place; as many again may be set aside."""

MAX_BYTES: Final = 64_000_000
"""Of the writes that have a place, and of those that are set aside."""

_TURN: Final = 0.02
"""Seconds that may be spent on encoding in one turn of the event loop."""

_AT_ONCE: Final = 128
"""Calls that are woken at once: as many as a turn has time for, if they are short."""


@dataclass(slots=True)
class _Total:
    writes: int = 0
    bytes: int = 0

    def has_room(self) -> bool:
        return self.writes < MAX_WRITES and self.bytes < MAX_BYTES


class Place:
    """What one call holds, as a context: it waits for its place on entering."""

    __slots__ = ("_intake", "_total", "_waits", "size")

    def __init__(self, intake: Intake, *, waits: bool) -> None:
        self._intake = intake
        self._waits = waits
        self._total = intake.held
        self.size = 0

    async def __aenter__(self) -> Self:
        if self._waits:
            await self._intake.admit()
        self._total.writes += 1
        return self

    def hold(self, size: int) -> None:
        """Count the bytes of the encoded write."""
        self.size = size
        self._total.bytes += size

    def set_aside(self) -> None:
        """Let another call have this place: the write waits for long."""
        aside = self._intake.aside
        if self._total is not aside and aside.has_room():
            self._leave()
            self._total = aside
            aside.writes += 1
            aside.bytes += self.size

    def _leave(self) -> None:
        self._total.writes -= 1
        self._total.bytes -= self.size
        self._intake.wake()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()


class Intake:
    """The places for writes in an event loop."""

    def __init__(self) -> None:
        self.held = _Total()
        self.aside = _Total()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._woken = 0
        self._turn_ends: float | None = None

    def place(self, *, waits: bool = True) -> Place:
        """A place for one write; without ``waits`` it is given at once."""
        return Place(self, waits=waits)

    async def admit(self) -> None:
        """Return when there is room, and this turn of the loop has time left."""
        if not self._waiting and not self._woken and self._is_open():
            return
        number = next(self._numbers)
        is_admitted = False
        while not is_admitted:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (number, future))
            self.wake()
            try:
                await future
            finally:
                # Whoever was woken first runs first, and so goes before the others.
                self._woken -= future.done() and not future.cancelled()
                if future.cancelled():
                    self._waiting = [it for it in self._waiting if it[1] is not future]
                    heapq.heapify(self._waiting)
                is_admitted = self._is_open()
                self.wake()

    def wake(self) -> None:
        """Wake the calls that may have a place by now."""
        if self._turn_ends is not None or self._woken:
            return  # the next turn wakes them, or the last of them
        while self._waiting and self._woken < _AT_ONCE and self.held.has_room():
            _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
                self._woken += 1

    def _is_open(self) -> bool:
        now = time.monotonic()
        if self._turn_ends is None:
            self._turn_ends = now + _TURN
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return self.held.has_room() and now < self._turn_ends

    def _begin_turn(self) -> None:
        self._turn_ends = None
        self.wake()
