"""Measures what running turns cost while their agents speak.

One process holds the turns, whose agents say 50 tokens a second each. Another follows
up to four of them with ``partials=True``, and a third watches the same app without. At
the end a fourth appends, 32 at once, beside 50 turns. What is written is compared with
the same turns of which nothing is written, in alternating rounds: agents cost something
by themselves. Agents are generators that stand for ADK's runner.

Each round checks that what was received is what was said.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient

from benchmark import circumstances
from benchmark.circumstances import show_progress
from benchmark.feed import cpu_seconds
from benchmark.figures import WrongError, quantile
from benchmark.processes import new_processes, play
from benchmark.report import Report, reporting
from mongo_session_service import MongoSessionService, Subscription
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.turns.partial_writer import PartialWriter

APP = "bench"
TURNS = (1, 50, 200)
BESIDE = 50
LANES = 32
FOLLOWED = 4
TOKEN = 0.02
"""Seconds from one token to the next."""
LAST = 2.0
"""Seconds in which what was said last arrives."""
GOALS = {50: 150.0, 99: 250.0}
"""Milliseconds that this percentile of the tokens takes, beside the most turns."""


class Agent:
    """What a turn runs: an answer of one token after another, until a time."""

    app_name = APP

    def __init__(self, seconds: float, *, tells_time: bool) -> None:
        self._seconds = seconds
        self._tells_time = tells_time

    async def run_async(self, **_: object) -> AsyncGenerator[Event, None]:
        """Yield the tokens; each says when it was said, if somebody follows."""
        fixed = token("word word ")
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            if self._tells_time:
                fixed = token(f"{time.time():.6f} ", fixed.id)
            yield fixed
            await asyncio.sleep(TOKEN)


def token(text: str, id_: str = "answer") -> Event:
    """A piece of an answer."""
    content = types.Content(role="model", parts=[types.Part(text=text)])
    return Event(id=id_, author="agent", content=content, partial=True)


async def hold_turns(
    uri: str,
    seconds: float,
    turns: int,
    is_written: bool,  # noqa: FBT001
) -> dict[str, Any]:
    """Run so many turns at once; the CPU seconds of this process."""
    if not is_written:
        PartialWriter.write_soon = lambda *_: None  # type: ignore[method-assign, assignment]
    async with MongoSessionService(uri) as service:
        began = time.process_time()
        running = [
            await service.start_turn(
                Agent(seconds, tells_time=number < FOLLOWED),  # type: ignore[arg-type]
                user_id="speaker",
                session_id=f"s{number}",
            )
            for number in range(turns)
        ]
        await asyncio.gather(*(each.result() for each in running))
        return {"cpu": time.process_time() - began}


async def follow_turns(
    uri: str,
    seconds: float,
    turns: int,
    partials: bool,  # noqa: FBT001
) -> dict[str, Any]:
    """Watch what turns say, or only what they store; delays of tokens, and the CPU."""
    async with MongoSessionService(uri) as service, AsyncExitStack() as open_:
        watched: list[Subscription] = []
        if partials:
            for number in range(min(turns, FOLLOWED)):
                one = service.watch(APP, "speaker", f"s{number}", partials=True)
                watched.append(await open_.enter_async_context(one))
        else:
            watched.append(await open_.enter_async_context(service.watch(APP)))
        began = time.process_time()
        delays: list[float] = []

        async def read(changes: Subscription) -> None:
            async for change in changes:
                now = time.time()
                if change.kind == "partial" and change.event and change.event.content:
                    (part,) = change.event.content.parts or []
                    stamps = map(float, (part.text or "").split())
                    delays.extend(1000 * (now - each) for each in stamps)

        reading = [asyncio.create_task(read(each)) for each in watched]
        await asyncio.wait(reading, timeout=seconds + LAST)
        for each in reading:
            each.cancel()
        return {"cpu": time.process_time() - began, "delays": delays}


async def append_events(uri: str, seconds: float) -> float:
    """Append to sessions of others, as fast as it goes; appends per second."""
    async with MongoSessionService(uri) as service:
        sessions = [
            await service.create_session(app_name=APP, user_id="writer")
            for _ in range(LANES)
        ]
        end, done = time.monotonic() + seconds, 0

        async def append(session: Any) -> None:
            nonlocal done
            while time.monotonic() < end:
                await service.append_event(session, Event(author="x"))
                done += 1

        await asyncio.gather(*map(append, sessions))
        return done / seconds


FIGURES = {
    "mongod": "% of a core",
    "holder": "% of a core",
    "follower": "% of a core",
    "bystander": "% of a core",
    "oplog": "kB/s",
}
"""What each round with so many turns is asked for, beside the delays of tokens."""


class Bench:
    """The rounds on one server."""

    def __init__(
        self, mongodb: EmbeddedReplicaSet, admin: MongoClient[Any], seconds: float
    ) -> None:
        self._uri, self._mongod = mongodb.uri, mongodb.pids[0]
        self._oplog = admin.local["oplog.rs"]
        self._seconds = seconds
        self.figures: dict[tuple[str, int], list[float]] = defaultdict(list)
        """By name and number of turns: of each round, or of each token."""

    async def create_sessions(self, turns: int) -> None:
        """Create the sessions whose turns are held."""
        async with MongoSessionService(self._uri) as service:
            for number in range(turns):
                await service.create_session(
                    app_name=APP, user_id="speaker", session_id=f"s{number}"
                )

    def run_round(self, turns: int) -> None:
        """Measure turns of which nothing is written, and then of which all is."""
        cpu: dict[bool, tuple[float, float]] = {}
        args = (self._uri, self._seconds, turns)
        for is_written in (False, True):
            begin = self._oplog_bytes()
            with new_processes(3) as pool:
                follower = pool.submit(play, follow_turns, *args, partials=True)
                bystander = pool.submit(play, follow_turns, *args, partials=False)
                time.sleep(LAST)
                before = cpu_seconds(self._mongod)
                holder = pool.submit(play, hold_turns, *args, is_written=is_written)
                held, followed = holder.result(), follower.result()
                stood_by = bystander.result()
                cpu[is_written] = (cpu_seconds(self._mongod) - before, held["cpu"])
        percent = 100 / self._seconds
        values = {
            "mongod": percent * (cpu[True][0] - cpu[False][0]),
            "holder": percent * (cpu[True][1] - cpu[False][1]),
            "follower": percent * followed["cpu"],
            "bystander": percent * stood_by["cpu"],
            "oplog": (self._oplog_bytes() - begin) / self._seconds / 1000,
        }
        for name, value in values.items():
            self.figures[name, turns].append(value)
        self.figures["delays", turns] += followed["delays"]
        said = min(turns, FOLLOWED) * self._seconds / TOKEN
        if not 0.5 * said < len(followed["delays"]) <= 1.1 * said:
            raise WrongError("What was received is not what was said.")

    def _oplog_bytes(self) -> float:
        """The bytes of the oplog that hold what turns say."""
        in_command = {"o.applyOps.ns": "adk.partials"}
        stages = [
            {"$match": {"$or": [{"ns": "adk.partials"}, in_command]}},
            {"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}},
        ]
        found = list(self._oplog.aggregate(stages))
        return float(found[0]["bytes"]) if found else 0.0

    def append_beside(self) -> None:
        """Appends beside turns that are written, in parts of those beside others."""
        rates = []
        args = (self._uri, self._seconds, BESIDE)
        for is_written in (False, True):
            with new_processes(2) as pool:
                holder = pool.submit(play, hold_turns, *args, is_written=is_written)
                appending = pool.submit(play, append_events, self._uri, self._seconds)
                rates.append(appending.result())
                holder.result()
        self.figures["appends", BESIDE].append(rates[1] / rates[0])

    def add_to(self, report: Report) -> None:
        """Add the figures to a report."""
        for turns in TURNS:
            for name, unit in FIGURES.items():
                value = statistics.median(self.figures[name, turns])
                report.add(f"{name}, {turns} turns", value, unit)
            for share, most in GOALS.items():
                value = quantile(self.figures["delays", turns], share / 100)
                goal = most if turns == max(TURNS) else None
                report.add(f"token, p{share}, {turns} turns", value, "ms", most=goal)
        ratio = statistics.median(self.figures["appends", BESIDE])
        name = f"{LANES} appends at once beside {BESIDE} turns"
        report.add(name, ratio, "of their rate")


def main() -> int:
    """Measure; the exit code."""
    parser = circumstances.make_parser("turns", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="each round")
    arguments = circumstances.parse_arguments(parser)
    with (
        reporting("Running turns", arguments) as (report, mongodb),
        MongoClient[Any](mongodb.uri) as admin,
    ):
        bench = Bench(mongodb, admin, arguments.seconds)
        asyncio.run(bench.create_sessions(max(TURNS)))
        for number in range(1, arguments.rounds + 1):
            for turns in TURNS:
                show_progress(f"round {number}, {turns} turns")
                bench.run_round(turns)
            show_progress(f"round {number}, appends")
            bench.append_beside()
        bench.add_to(report)
    return 0
