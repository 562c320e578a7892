"""What live subscriptions cost: thousands of them in one process.

memory     of subscriptions that wait, in MB, and how fast they open
streams    how many server cursors they share
delivery   from append_event returning until its subscriber has the change
broadcast  from the append that sets app: state returning until all have it
CPU        of mongod per write, with no, one and a thousand subscriptions, in turns
writes     how many appends per second, 32 at once, with and without subscriptions

Every subscription is checked to receive what it must. Takes two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import time
import warnings
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient

from benchmark.measure import WrongError, quantile
from benchmark.run import tell
from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.feed.subscription import Subscription

APP, USERS = "app", 50
TICKS = os.sysconf("SC_CLK_TCK")
OPENED_AT_ONCE = 50
WRITERS = 32
PATIENCE = 60.0
_SHARE = 100  # of the subscriptions, to be spread evenly


def show(step: str) -> None:
    """Say how far it is: on one line of a terminal, else one line for each part."""
    part = step.partition(",")[0]
    if sys.stderr.isatty():
        tell(step)
    elif part and part != _shown[-1]:
        _shown.append(part)
        print(part, file=sys.stderr, flush=True)


_shown = [""]


@dataclass(frozen=True)
class Pace:
    """How much is measured."""

    subscriptions: int
    sessions: int
    rounds: int
    writes: int
    """Per round and number of subscriptions, for mongod's CPU."""


@dataclass
class Report:
    """The figures, and whether they are good enough."""

    rows: list[tuple[str, str, str, bool | None]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        below: float | None = None,
        note: str = "",
    ) -> None:
        """Note a figure, and what it should be below."""
        self.figures[name] = round(value, 3)
        wanted = "" if below is None else f"< {below:g} {unit}"
        is_good = None if below is None else value < below
        text = f"{value:,.4g} {unit}" + (f"  {note}" if note else "")
        self.rows.append((name, text, wanted, is_good))

    def table(self) -> str:
        """All of it, as text."""
        lines = []
        for name, text, wanted, is_good in self.rows:
            verdict = {None: "", True: "reached", False: "MISSED"}[is_good]
            lines.append(f"{name:<46} {text:<40} {wanted:<10} {verdict}".rstrip())
        return "\n".join(lines)


def event(**delta: Any) -> Event:
    """An event that sets this state."""
    return Event(author="bench", actions=EventActions(state_delta=delta))


class Crowd:
    """Subscriptions, spread over sessions, each with a reader that notes the time."""

    def __init__(self, service: MongoSessionService, sessions: list[Session]) -> None:
        self._service = service
        self._sessions = sessions
        self._stack = AsyncExitStack()
        self._readers: list[asyncio.Task[None]] = []
        self._awaited = 0
        self._missing = 0
        self._got: list[float] = []
        self._all_got = asyncio.Event()

    async def open(self, count: int) -> None:
        """Subscribe, and wait until every one has its snapshot."""
        room = asyncio.Semaphore(OPENED_AT_ONCE)

        async def open_one(number: int) -> None:
            session = self._sessions[number % len(self._sessions)]
            key = (session.app_name, session.user_id, session.id)
            async with room:
                changes = await self._stack.enter_async_context(
                    self._service.watch(*key)
                )
                if (await anext(changes)).kind != "snapshot":
                    raise WrongError("a subscription did not begin with a snapshot")
                self._readers.append(asyncio.create_task(self._read(changes)))

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(open_one(number))

    async def _read(self, changes: Subscription) -> None:
        async for change in changes:
            if change.state_delta.get("app:beat", self._awaited) == self._awaited:
                self._got.append(time.perf_counter())
                self._missing -= 1
                if not self._missing:
                    self._all_got.set()

    def expect(self, count: int, beat: int = 0) -> None:
        """Count from now on: so many are to be told of this."""
        self._got, self._missing, self._awaited = [], count, beat
        self._all_got.clear()

    async def told(self) -> list[float]:
        """When each of those expected was told."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._all_got.wait()
        except TimeoutError:
            raise WrongError(f"{self._missing} were not told") from None
        return self._got

    async def close(self) -> None:
        """End them all."""
        await self._stack.aclose()
        await asyncio.gather(*self._readers)
        self._readers.clear()


class Bench:
    """One run, on one server."""

    def __init__(self, replica_set: EmbeddedReplicaSet, pace: Pace) -> None:
        self._uri = replica_set.uri
        self._mongod = replica_set.pids[0]
        self._pace = pace
        self.report = Report()

    async def run(self) -> None:
        """Measure everything."""
        async with (
            MongoSessionService(self._uri, database="bench") as writing,
            MongoSessionService(self._uri, database="bench") as reading,
        ):
            show("creating sessions")
            sessions = [
                await writing.create_session(
                    app_name=APP, user_id=f"u{n % USERS}", session_id=f"s{n}"
                )
                for n in range(self._pace.sessions)
            ]
            crowd = Crowd(reading, sessions)
            await self._measure_opening(crowd, reading)
            try:
                await self._measure_delivery(crowd, writing, sessions)
                await self._measure_broadcast(crowd, writing, sessions)
            finally:
                await crowd.close()
        await self._measure_writes()
        show("")

    async def _measure_opening(
        self, crowd: Crowd, reading: MongoSessionService
    ) -> None:
        count = self._pace.subscriptions
        # Connections, threads and caches are there before.
        await crowd.open(OPENED_AT_ONCE)
        await crowd.close()
        gc.collect()
        before, start = resident(), time.perf_counter()
        show(f"opening {count:,} subscriptions")
        await crowd.open(count)
        seconds = time.perf_counter() - start
        gc.collect()
        self.report.add("open", count / seconds, "/s")
        memory = (resident() - before) / 1e6
        wanted = 100 * count / 10_000
        self.report.add(f"memory of {count:,} idle", memory, "MB", below=wanted)
        stats = reading.feed_stats()
        if stats.subscriptions != count:
            raise WrongError(f"{stats.subscriptions} of {count} subscriptions")
        with MongoClient[Any](self._uri) as client:
            self.report.add("server cursors", change_streams(client), "")

    async def _measure_delivery(
        self, crowd: Crowd, writing: MongoSessionService, sessions: list[Session]
    ) -> None:
        """One append at a time, to sessions that have several subscribers each."""
        delays, calls = [], []
        rounds = 40 * self._pace.rounds
        share = self._pace.subscriptions // len(sessions)
        for number in range(rounds):
            show(f"delivery, {number + 1} of {rounds}")
            session = sessions[number * 7 % len(sessions)]
            crowd.expect(share)
            called = time.perf_counter()
            await writing.append_event(session, event(n=number))
            returned = time.perf_counter()
            told = await crowd.told()
            delays += [(at - returned) * 1000 for at in told]
            calls += [(at - called) * 1000 for at in told]
            await asyncio.sleep(0.005)
        note = f"{share} subscribers per session"
        self.report.add(
            "delivery, p50", quantile(delays, 0.5), "ms", below=10, note=note
        )
        self.report.add("delivery, p99", quantile(delays, 0.99), "ms")
        self.report.add(
            "  from the call of append_event, p50", quantile(calls, 0.5), "ms"
        )

    async def _measure_broadcast(
        self, crowd: Crowd, writing: MongoSessionService, sessions: list[Session]
    ) -> None:
        """One append that sets app state, until the last of all has it."""
        slowest, calls = [], []
        for number in range(1, 2 * self._pace.rounds + 1):
            show(f"broadcast, {number} of {2 * self._pace.rounds}")
            crowd.expect(self._pace.subscriptions, number)
            called = time.perf_counter()
            await writing.append_event(sessions[0], event(**{"app:beat": number}))
            returned = time.perf_counter()
            last = max(await crowd.told())
            slowest.append((last - returned) * 1000)
            calls.append((last - called) * 1000)
            await asyncio.sleep(0.1)
        what = f"broadcast to {self._pace.subscriptions:,}"
        self.report.add(f"{what}, median", statistics.median(slowest), "ms", below=500)
        self.report.add(f"{what}, slowest", max(slowest), "ms")
        self.report.add(
            "  from the call of append_event, median", statistics.median(calls), "ms"
        )

    async def _measure_writes(self) -> None:
        """The same writes with no, one and a thousand subscriptions, in turns."""
        counts = (0, 1, 1000)
        cpu: dict[int, list[float]] = {count: [] for count in counts}
        rates: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(self._pace.rounds):
            order = counts if number % 2 else counts[::-1]
            for count in order:
                show(f"writes, round {number + 1}, {count} subscriptions")
                one_cpu, rate = await self._write(f"{number}-{count}", count)
                cpu[count].append(one_cpu)
                rates[count].append(rate)
        for count in counts:
            low, high = min(cpu[count]), max(cpu[count])
            self.report.add(
                f"mongod's CPU per write, {count:,} subscriptions",
                statistics.median(cpu[count]),
                "ms",
                note=f"({low:.3f} to {high:.3f})",
            )
        changes = [b / a - 1 for a, b in zip(cpu[1], cpu[1000], strict=True)]
        self.report.add(
            "  1,000 against 1",
            100 * statistics.median(changes),
            "%",
            below=5,
            note=f"({100 * min(changes):.1f} to {100 * max(changes):.1f})",
        )
        for count in counts:
            self.report.add(
                f"writes, {count:,} subscriptions",
                statistics.median(rates[count]),
                "/s",
                note=f"({min(rates[count]):,.0f} to {max(rates[count]):,.0f})",
            )

    async def _write(self, app: str, count: int) -> tuple[float, float]:
        """Milliseconds of mongod's CPU per write, and writes per second.

        For the first they come one after the other, for the second 32 at once.
        """
        async with (
            MongoSessionService(self._uri, database="bench") as writing,
            MongoSessionService(self._uri, database="bench") as reading,
        ):
            sessions = [
                await writing.create_session(app_name=app, user_id="u")
                for _ in range(WRITERS)
            ]
            crowd = Crowd(reading, sessions)
            await crowd.open(count)
            try:
                for session in sessions[:8]:
                    await writing.append_event(session, event(n=-1))
                before = cpu_seconds(self._mongod)
                for number in range(self._pace.writes):
                    await writing.append_event(
                        sessions[number % WRITERS], event(n=number)
                    )
                spent = cpu_seconds(self._mongod) - before
                rate = await self._write_at_once(writing, sessions)
            finally:
                await crowd.close()
        return 1000 * spent / self._pace.writes, rate

    async def _write_at_once(
        self, writing: MongoSessionService, sessions: list[Session]
    ) -> float:
        each = max(10, self._pace.writes // WRITERS)

        async def write(session: Session) -> None:
            for number in range(each):
                await writing.append_event(session, event(n=number))

        start = time.perf_counter()
        await asyncio.gather(*map(write, sessions))
        return each * len(sessions) / (time.perf_counter() - start)


def resident() -> int:
    """Bytes of memory this process holds."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int | None) -> float:
    """Seconds of CPU a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS


def change_streams(client: MongoClient[Any]) -> int:
    """How many cursors of the server read changes."""
    stages = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"cursor.originatingCommand": {"$exists": True}}},
    ]
    cursors = [each["cursor"] for each in client.admin.aggregate(stages)]
    return len(
        {
            cursor["cursorId"]
            for cursor in cursors
            if "$changeStream" in cursor["originatingCommand"]["pipeline"][0]
        }
    )


def parse_arguments() -> argparse.Namespace:
    """What the user asked for; exits with 2 if it makes no sense."""
    parser = argparse.ArgumentParser(
        "scripts/bench feed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="half a minute, for a first impression")
    add("--subscriptions", type=int, default=10_000, metavar="N", help="how many")
    add("--rounds", type=int, metavar="N", help="how often each is measured")
    add("--json", type=Path, metavar="FILE", help="write every figure")
    arguments = parser.parse_args()
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if arguments.subscriptions < _SHARE or arguments.subscriptions % _SHARE:
        parser.error("--subscriptions must be a number of hundreds")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        parser.error(f"there is no directory {arguments.json.parent}")
    return arguments


def main() -> int:
    """Run the bench; the exit code."""
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    pace = Pace(
        subscriptions=arguments.subscriptions,
        sessions=min(1000, arguments.subscriptions),
        rounds=arguments.rounds or (2 if arguments.quick else 7),
        writes=200 if arguments.quick else 1000,
    )
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "quick": arguments.quick,
        "rounds": pace.rounds,
        "cpus": os.cpu_count(),
        "load_before": [round(each, 1) for each in os.getloadavg()],
        "python": platform.python_version(),
    }
    with EmbeddedReplicaSet() as replica_set:
        bench = Bench(replica_set, pace)
        asyncio.run(bench.run())
    print(bench.report.table(), end="\n\n")
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if arguments.json:
        figures = {"about": facts, "figures": bench.report.figures}
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0
