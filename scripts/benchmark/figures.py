"""Timed calls, and what can be said about many of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TypeAlias, TypeVar

Item = TypeVar("Item")


class WrongError(Exception):
    """Something was not stored, read or received as it must be."""


@dataclass
class Sample:
    """The calls of one contestant in one round."""

    calls: list[float] = field(default_factory=list)
    """Milliseconds of each."""
    elapsed: float = 0.0
    """Seconds that all of them took."""
    client: float = 0.0
    """Seconds of CPU that the calling process used."""
    server: float | None = None
    """Seconds of CPU that MongoDB used; None if it does not say."""

    def value(self, unit: str) -> float:
        """The calls per second, or the median of the calls in milliseconds."""
        if unit == "/s":
            return len(self.calls) / self.elapsed
        return statistics.median(self.calls)


@dataclass
class Result:
    """One contestant in one workload; a sample for each round."""

    unit: str
    samples: list[Sample] = field(default_factory=list)
    note: str = ""
    """Why there are no samples, or what was wrong with what they stored."""

    @property
    def rounds(self) -> list[float]:
        """The figure of each round."""
        return [each.value(self.unit) for each in self.samples]

    @property
    def calls(self) -> list[float]:
        """Milliseconds of every call."""
        return list(chain.from_iterable(each.calls for each in self.samples))

    def figures(self) -> dict[str, float | None]:
        """Everything that is told of it, by the names in `UNITS`."""
        if not self.samples:
            return dict.fromkeys(UNITS)
        values = self.rounds if self.unit == "/s" else self.calls
        return {
            "median": quantile(values, 0.5),
            "p25": quantile(values, 0.25),
            "p75": quantile(values, 0.75),
            "p99": quantile(self.calls, 0.99),
            "client": self._cpu([each.client for each in self.samples]),
            "server": self._cpu([each.server for each in self.samples]),
        }

    def _cpu(self, seconds: list[float | None]) -> float | None:
        known = [each for each in seconds if each is not None]
        is_known = len(known) == len(seconds)
        return 1e6 * sum(known) / len(self.calls) if is_known else None

    def times_as_good(self, other: Result) -> float | None:
        """How many times as fast this is: the median of the rounds' ratios.

        The two of a ratio were measured one right after the other, so what slows the
        machine down for longer than a round slows both down.
        """
        if not self.samples or not other.samples:
            return None
        pairs = zip(self.rounds, other.rounds, strict=False)
        ratios = [a / b if self.unit == "/s" else b / a for a, b in pairs]
        return statistics.median(ratios)


UNITS = {
    "median": "the workload's",
    "p25": "the workload's; for rates, of rounds",
    "p75": "the workload's; for rates, of rounds",
    "p99": "ms, of calls",
    "client": "us of CPU for each call, in the process that calls",
    "server": "us of CPU for each call, in MongoDB",
}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Divide items into lists of so many; the last may be shorter."""
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


def three_digits(value: float | None) -> str:
    """A figure as tables show it."""
    if value is None:
        return "-"
    if abs(value) >= 100:  # noqa: PLR2004  three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004


async def time_call(call: Awaitable[object]) -> float:
    """How many milliseconds a call takes."""
    start = time.perf_counter()
    await call
    return (time.perf_counter() - start) * 1000


ServerClock: TypeAlias = Callable[[], Awaitable[float | None]]
"""Tells how many seconds of CPU a server has used; None if that is not known."""


@asynccontextmanager
async def sampled(server: ServerClock) -> AsyncIterator[Sample]:
    """A sample, which knows at the end what its time and CPU were."""
    sample = Sample()
    server_before = await server()
    start, client_before = time.perf_counter(), time.process_time()
    yield sample
    sample.elapsed = time.perf_counter() - start
    sample.client = time.process_time() - client_before
    server_after = await server()
    if server_before is not None and server_after is not None:
        sample.server = server_after - server_before


async def sample_calls(
    call: Callable[[], Awaitable[object]], seconds: float, server: ServerClock
) -> Sample:
    """Call again and again, one at a time, for about so long."""
    async with sampled(server) as sample:
        end = time.perf_counter() + seconds
        while not sample.calls or time.perf_counter() < end:
            sample.calls.append(await time_call(call()))
    return sample
