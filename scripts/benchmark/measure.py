"""Turns, and what can be said about many of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias


@dataclass
class Turn:
    """What one contestant did in one round."""

    values: list[float]
    """Milliseconds of each call, or whatever the workload measures."""
    elapsed: float = 0.0
    """Seconds all of it took."""
    client: float | None = None
    """Seconds of CPU that the processes which call have used meanwhile."""
    server: float | None = None
    """And MongoDB, if there is one that says so."""


@dataclass
class Result:
    """How one contestant did in one workload."""

    unit: str
    turns: list[Turn] = field(default_factory=list)
    note: str = ""

    @property
    def values(self) -> list[float]:
        """What the medians and quartiles are of: calls or, for rates, turns."""
        if self.unit == "/s":
            return [len(turn.values) / turn.elapsed for turn in self.turns]
        return self.calls

    @property
    def calls(self) -> list[float]:
        """Every single call."""
        return list(chain.from_iterable(turn.values for turn in self.turns))

    def figure(self, name: str) -> float | None:
        """A figure by its name, if there is anything to tell it from."""
        if not self.turns:
            return None
        if name in {"client", "server"}:
            return self._cpu([getattr(turn, name) for turn in self.turns])
        if name == "p99":
            return quantile(self.calls, 0.99) if self.unit in {"ms", "/s"} else None
        share = {"p25": 0.25, "median": 0.5, "p75": 0.75}[name]
        return quantile(self.values, share)

    def _cpu(self, used: list[float | None]) -> float | None:
        """Microseconds of CPU for each call."""
        seconds = [each for each in used if each is not None]
        if len(seconds) < len(used):
            return None
        return 1e6 * sum(seconds) / len(self.calls)


class WrongError(Exception):
    """Something was not stored, read or received as it must be."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


async def time_call(call: Awaitable[object]) -> float:
    """How many milliseconds a call takes."""
    start = time.perf_counter()
    await call
    return (time.perf_counter() - start) * 1000


ServerClock: TypeAlias = Callable[[], Awaitable[float | None]]
"""Says how many seconds of CPU a server has used; None if that is not known."""


@asynccontextmanager
async def measured(server: ServerClock) -> AsyncIterator[Turn]:
    """A turn, which knows at the end what its time and CPU were."""
    turn = Turn([])
    server_before = await server()
    start, client_before = time.perf_counter(), time.process_time()
    yield turn
    turn.elapsed = time.perf_counter() - start
    turn.client = time.process_time() - client_before
    server_after = await server()
    if server_before is not None and server_after is not None:
        turn.server = server_after - server_before


async def time_calls(
    call: Callable[[], Awaitable[object]], budget: float, server: ServerClock
) -> Turn:
    """Call again and again, one at a time, for about `budget` seconds."""
    async with measured(server) as turn:
        end = time.perf_counter() + budget
        while not turn.values or time.perf_counter() < end:
            turn.values.append(await time_call(call()))
    return turn


async def time_lanes(
    lanes: Sequence[Sequence[Callable[[], Awaitable[object]]]], server: ServerClock
) -> Turn:
    """Run lanes at once, the calls of each one after the other."""
    async with measured(server) as turn:

        async def run(lane: Sequence[Callable[[], Awaitable[object]]]) -> None:
            for call in lane:
                turn.values.append(await time_call(call()))

        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(run(lane))
    return turn
