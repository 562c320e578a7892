"""Long sessions, read as a Runner reads them at each turn, beside ADK's MongoDB one.

Both read the same events in turns. A task that wants to run every millisecond measures
how long each read blocks the event loop: CPU of the process, so that other programs do
not count, without full collections of Python's garbage collector. These take longer the
more the process holds, and are due some time whoever makes objects; how many fell into
reads is counted. Takes about a minute. Compare the ratios: both sides are of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from google.adk.sessions import Session

from benchmark.contestants import Contestant, Ours, Place
from benchmark.measure import WrongError
from benchmark.rivals import AdkMongo
from benchmark.workload import make_events
from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet

USER = "user"
_CACHE = 64_000_000
_TICK = 0.001
_FULL = 2
_ORDER = Random(1)  # noqa: S311  an order is no secret


@dataclass
class Reads:
    """What reads of one kind took, in milliseconds."""

    taken: list[float] = field(default_factory=list)
    computed: list[float] = field(default_factory=list)
    """CPU."""
    blocked: list[float] = field(default_factory=list)
    """The most CPU in each before anything else ran."""
    collections: int = 0
    """Full ones, of the garbage collector, in all of them."""
    _collecting: float = 0.0
    """Milliseconds of CPU that these have taken."""
    _begun: float = 0.0

    def beside(self, other: Reads) -> str:
        """A row of the table."""
        taken, computed = map(statistics.median, (self.taken, self.computed))
        mean, blocked = statistics.mean(self.computed), statistics.median(self.blocked)
        return (
            f"{taken:7.1f} ms, {taken / statistics.median(other.taken):.2f} x;"
            f" CPU {computed:6.1f} ms,"
            f" {computed / statistics.median(other.computed):.2f} x,"
            f" mean {mean:6.1f} ms, {mean / statistics.mean(other.computed):.2f} x;"
            f" blocked {blocked:5.1f} ms, at most {max(self.blocked):5.1f};"
            f" {self.collections} full collections"
        )

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure a read."""
        gaps: list[float] = []
        gc.callbacks.append(self._collected)
        ticker = asyncio.create_task(self._tick(gaps))
        await asyncio.sleep(0.01)
        started, used = time.perf_counter(), time.process_time()
        yield
        self.taken.append(1000 * (time.perf_counter() - started))
        self.computed.append(1000 * (time.process_time() - used))
        await asyncio.sleep(2 * _TICK)
        gc.callbacks.remove(self._collected)
        ticker.cancel()
        self.blocked.append(max(gaps))

    async def _tick(self, gaps: list[float]) -> None:
        last = self._working()
        while True:
            await asyncio.sleep(_TICK)
            now = self._working()
            gaps.append(now - last)
            last = now

    def _working(self) -> float:
        return 1000 * time.process_time() - self._collecting

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        now = 1000 * time.process_time()
        if phase == "start":
            self._begun = now
        elif info["generation"] == _FULL:
            self.collections += 1
            self._collecting += now - self._begun


async def seed(contestant: Contestant, events: int) -> None:
    """Store a session of so many events."""
    session = Session(app_name=f"long{events}", user_id=USER, id="long")
    await contestant.seed_sessions([session])
    stored = await contestant.service.get_session(
        app_name=session.app_name, user_id=USER, session_id=session.id
    )
    await contestant.seed_events(stored, make_events(events))


async def read(service: Any, events: int, reads: Reads) -> None:
    """Read the session of so many events, and measure it."""
    async with reads.measured():
        session = await service.get_session(
            app_name=f"long{events}", user_id=USER, session_id="long"
        )
    if len(session.events) != events:
        raise WrongError(f"{len(session.events)} events were read, not {events}.")


async def compare(ours: Ours, theirs: AdkMongo, events: int, rounds: int) -> None:
    """Show what reads of so many events take, ours beside ADK's."""
    for each in (ours, theirs):
        await seed(each, events)
    make_events.cache_clear()
    kinds = [["adk mongo"], ["no cache"], ["first", "again"]]
    figures = {name: Reads() for names in kinds for name in names}
    for _ in range(rounds):
        # Otherwise full collections would fall into the same reads in all rounds.
        _ORDER.shuffle(kinds)
        for names in kinds:
            service: Any = theirs.service
            if names != ["adk mongo"]:
                service = MongoSessionService(
                    client=ours.client,
                    database=ours.database.name,
                    read_cache_bytes=_CACHE * (len(names) - 1),
                )
                await service.setup()
            for name in names:
                await read(service, events, figures[name])
    print(f"get_session of {events:,} events: medians, and times ADK's")
    for name, reads in figures.items():
        print(f"  {name:12} {reads.beside(figures['adk mongo'])}", flush=True)


async def measure(uri: str, sizes: list[int], rounds: int) -> None:
    """Measure sessions of each size."""
    with tempfile.TemporaryDirectory() as directory:
        place = Place(uri, "reloads", directory)
        ours, theirs = Ours(place), AdkMongo(place)
        for each in (ours, theirs):
            await each.open()
        for events in sizes:
            await compare(ours, theirs, events, rounds)
        for each in (ours, theirs):
            await each.close()


def main() -> int:
    """Read the arguments, and measure; the exit code."""
    parser = argparse.ArgumentParser("scripts/bench reloads", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[2000, 10_000])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with EmbeddedReplicaSet() as mongodb:
        asyncio.run(measure(mongodb.uri, options.events, options.rounds))
    return 0
