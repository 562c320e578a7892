"""Turns, and what can be said about many of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain


@dataclass
class Turn:
    """What one contestant did in one round."""

    values: list[float]
    """Milliseconds of each call, or whatever the workload measures."""
    elapsed: float = 0.0
    """Seconds all of it took."""


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
        if name == "p99":
            return quantile(self.calls, 0.99)
        share = {"p25": 0.25, "median": 0.5, "p75": 0.75}[name]
        return quantile(self.values, share)


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


async def time_calls(call: Callable[[], Awaitable[object]], budget: float) -> Turn:
    """Call again and again, one at a time, for about `budget` seconds."""
    values = []
    start = time.perf_counter()
    while True:
        values.append(await time_call(call()))
        elapsed = time.perf_counter() - start
        if elapsed >= budget:
            return Turn(values, elapsed)


async def time_lanes(
    lanes: Sequence[Sequence[Callable[[], Awaitable[object]]]],
) -> Turn:
    """Run lanes at once, the calls of each one after the other."""
    values: list[float] = []

    async def run(lane: Sequence[Callable[[], Awaitable[object]]]) -> None:
        for call in lane:
            values.append(await time_call(call()))  # noqa: PERF401  as they end

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(run(lane))
    return Turn(values, time.perf_counter() - start)
