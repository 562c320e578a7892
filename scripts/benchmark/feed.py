"""Measures what changes cost: subscriptions, durable consumers, tokens of turns.

memory     of subscriptions that wait, in MB, and how fast they open
cursors    of the server, which they share
delivery   from append_event returning until its subscribers have the change
broadcast  from the append that sets app: state returning until all have it
CPU        of mongod per write, with no, one and a thousand subscriptions, in turns
writes     how many appends per second, 32 at once, with and without subscriptions
consumers  changes per second, from the log and from the stream, by way of handling,
           and how far a consumer is behind while another process appends
turns      from a token of a running turn to its readers in another process, and what
           turns cost appends

Every subscription, consumer and reader is checked to receive what it must.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient

from benchmark import circumstances
from benchmark.circumstances import show_progress
from benchmark.consumers import measure_consumers
from benchmark.figures import WrongError, quantile
from benchmark.report import Report, reporting
from benchmark.turns import measure_turns
from mongo_session_service import MongoSessionService, Subscription

APP, USERS = "app", 50
DATABASE = "bench"
OPENED_AT_ONCE = 50
WRITERS = 32
PATIENCE = 60.0
SHARE = 100
"""The number of subscriptions is a multiple of it, to be spread evenly."""


def make_event(**delta: Any) -> Event:
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

    async def subscribe(self, count: int) -> None:
        """Subscribe, and wait until every one has its snapshot."""
        room = asyncio.Semaphore(OPENED_AT_ONCE)

        async def subscribe_to(session: Session) -> None:
            key = (session.app_name, session.user_id, session.id)
            async with room:
                watching = self._service.watch(*key)
                changes = await self._stack.enter_async_context(watching)
                if (await anext(changes)).kind != "snapshot":
                    raise WrongError("a subscription did not begin with a snapshot")
                self._readers.append(asyncio.create_task(self._note(changes)))

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                session = self._sessions[number % len(self._sessions)]
                group.create_task(subscribe_to(session))

    async def _note(self, changes: Subscription) -> None:
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


@dataclass
class Subscriptions:
    """One run, on one server."""

    uri: str
    mongod: int
    """The server's process."""
    count: int
    rounds: int
    writes: int
    """Per round and number of subscriptions, for mongod's CPU."""
    report: Report

    async def measure(self) -> None:
        """Measure everything."""
        async with (
            MongoSessionService(self.uri, database=DATABASE) as writing,
            MongoSessionService(self.uri, database=DATABASE) as reading,
        ):
            show_progress("creating sessions")
            sessions = [
                await writing.create_session(
                    app_name=APP, user_id=f"u{number % USERS}", session_id=f"s{number}"
                )
                for number in range(min(1000, self.count))
            ]
            crowd = Crowd(reading, sessions)
            try:
                await self._measure_opening(crowd, reading)
                await self._measure_delivery(crowd, writing, sessions)
                await self._measure_broadcast(crowd, writing, sessions[0])
            finally:
                await crowd.close()
        await self._measure_writes()

    async def _measure_opening(
        self, crowd: Crowd, reading: MongoSessionService
    ) -> None:
        # So that connections, threads and caches are there before.
        await crowd.subscribe(OPENED_AT_ONCE)
        await crowd.close()
        gc.collect()
        before, start = resident(), time.perf_counter()
        show_progress(f"opening {self.count:,} subscriptions")
        await crowd.subscribe(self.count)
        seconds = time.perf_counter() - start
        gc.collect()
        self.report.add("open", self.count / seconds, "/s")
        memory, most = (resident() - before) / 1e6, 100 * self.count / 10_000
        self.report.add(f"memory of {self.count:,} idle", memory, "MB", most=most)
        stats = reading.feed_stats()
        if stats.subscriptions != self.count:
            raise WrongError(f"{stats.subscriptions} of {self.count} subscriptions")
        with MongoClient[Any](self.uri) as client:
            self.report.add("server cursors", count_change_streams(client), "")

    async def _measure_delivery(
        self, crowd: Crowd, writing: MongoSessionService, sessions: list[Session]
    ) -> None:
        """One append at a time, to sessions that have several subscribers each."""
        show_progress("delivery")
        delays = []
        share = self.count // len(sessions)
        for number in range(40 * self.rounds):
            crowd.expect(share)
            session = sessions[number * 7 % len(sessions)]
            await writing.append_event(session, make_event(n=number))
            returned = time.perf_counter()
            delays += [(at - returned) * 1000 for at in await crowd.told()]
            await asyncio.sleep(0.005)
        note, p50 = f"{share} for each session", quantile(delays, 0.5)
        self.report.add("delivery, p50", p50, "ms", most=10, note=note)
        self.report.add("delivery, p99", quantile(delays, 0.99), "ms")

    async def _measure_broadcast(
        self, crowd: Crowd, writing: MongoSessionService, session: Session
    ) -> None:
        """One append that sets app state, until the last of all has it."""
        show_progress("broadcast")
        slowest = []
        for number in range(1, 2 * self.rounds + 1):
            crowd.expect(self.count, number)
            await writing.append_event(session, make_event(**{"app:beat": number}))
            returned = time.perf_counter()
            slowest.append((max(await crowd.told()) - returned) * 1000)
            await asyncio.sleep(0.1)
        what, median = f"broadcast to {self.count:,}", statistics.median(slowest)
        self.report.add(f"{what}, median", median, "ms", most=500)
        self.report.add(f"{what}, slowest", max(slowest), "ms")

    async def _measure_writes(self) -> None:
        """Time the same writes with no, one and a thousand subscriptions, in turns."""
        counts = (0, 1, 1000)
        cpu: dict[int, list[float]] = {count: [] for count in counts}
        rates: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(self.rounds):
            for count in counts if number % 2 else counts[::-1]:
                show_progress(f"writes, round {number + 1}, {count} subscriptions")
                one_cpu, rate = await self._write(f"{number}-{count}", count)
                cpu[count].append(one_cpu)
                rates[count].append(rate)
        for count in counts:
            name = f"{count:,} subscriptions"
            for what, unit, values in (
                ("mongod's CPU per write", "ms", cpu[count]),
                ("writes", "/s", rates[count]),
            ):
                note = f"({min(values):,.4g} to {max(values):,.4g})"
                median = statistics.median(values)
                self.report.add(f"{what}, {name}", median, unit, note=note)
        changes = [100 * (b / a - 1) for a, b in zip(cpu[1], cpu[1000], strict=True)]
        note = f"({min(changes):.1f} to {max(changes):.1f})"
        median, name = statistics.median(changes), "mongod's CPU, 1,000 against 1"
        self.report.add(name, median, "%", most=5, note=note)

    async def _write(self, app: str, count: int) -> tuple[float, float]:
        """Milliseconds of mongod's CPU per write, and writes per second.

        For the first they come one after the other, for the second 32 at once.
        """
        async with (
            MongoSessionService(self.uri, database=DATABASE) as writing,
            MongoSessionService(self.uri, database=DATABASE) as reading,
        ):
            sessions = [
                await writing.create_session(app_name=app, user_id="u")
                for _ in range(WRITERS)
            ]

            async def write_to(session: Session, times: int) -> None:
                for number in range(times):
                    await writing.append_event(session, make_event(n=number))

            crowd = Crowd(reading, sessions)
            await crowd.subscribe(count)
            times = self.writes // WRITERS
            try:
                await asyncio.gather(*(write_to(each, 1) for each in sessions))
                before = cpu_seconds(self.mongod)
                for session in sessions:
                    await write_to(session, times)
                cpu = 1000 * (cpu_seconds(self.mongod) - before) / (times * WRITERS)
                start = time.perf_counter()
                await asyncio.gather(*(write_to(each, times) for each in sessions))
                seconds = time.perf_counter() - start
            finally:
                await crowd.close()
        return cpu, times * WRITERS / seconds


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def count_change_streams(client: MongoClient[Any]) -> int:
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


def main() -> int:
    """Measure subscriptions, then consumers; the exit code."""
    parser = circumstances.make_parser("feed", __doc__)
    parser.add_argument("--subscriptions", type=int, default=10_000, metavar="N")
    arguments = circumstances.parse_arguments(parser)
    count = arguments.subscriptions
    if count < SHARE or count % SHARE:
        parser.error("--subscriptions must be a number of hundreds")
    writes, changes = (200, 2000) if arguments.quick else (1000, 20_000)
    with reporting("Feed, consumers and turns", arguments) as (report, mongodb):
        subscriptions = Subscriptions(
            *(mongodb.uri, mongodb.pids[0], count, arguments.rounds, writes, report)
        )
        asyncio.run(subscriptions.measure())
        asyncio.run(measure_consumers(mongodb.uri, changes, report))
        measure_turns(mongodb.uri, arguments.rounds, report)
    return 0
