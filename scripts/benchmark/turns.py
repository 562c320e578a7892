"""Measures what running turns cost while their agents speak.

One process holds the turns, whose agents say 50 tokens a second each. Another follows
up to four of them with ``partials=True``, and a third watches the same app without. At
the end a fourth appends, 32 at once, beside 50 turns. What is written is compared with
the same turns of which nothing is written, in alternating rounds: agents cost something
by themselves. Agents are generators that stand for ADK's runner.

Each round checks that what was received is what was said.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient

from benchmark import circumstances
from benchmark.circumstances import show_progress
from benchmark.feed import cpu_seconds
from benchmark.figures import WrongError, quantile
from mongo_session_service import MongoSessionService, Subscription
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
GOALS = {"p50 ms": 150.0, "p99 ms": 250.0}


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
    uri: str, seconds: float, turns: int, *, is_written: bool
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
    uri: str, seconds: float, turns: int, *, partials: bool
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


async def append_events(uri: str, seconds: float, _: int) -> dict[str, Any]:
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
        return {"rate": done / seconds}


ROLES: dict[str, Any] = {
    "hold": hold_turns,
    "follow": follow_turns,
    "append": append_events,
}


def play(pipe: Connection, role: str, *args: Any, **options: Any) -> None:
    """Play a role in a process of its own."""
    pipe.send(asyncio.run(ROLES[role](*args, **options)))


class Actor:
    """A process with a role."""

    def __init__(self, role: str, *args: Any, **options: Any) -> None:
        self._pipe, end = spawned.Pipe()
        self._process = spawned.Process(
            target=play, args=[end, role, *args], kwargs=options
        )
        self._process.start()
        end.close()

    def result(self) -> dict[str, Any]:
        """What it measured.

        Raises:
            WrongError: its process has died.
        """
        try:
            found: dict[str, Any] = self._pipe.recv()
        except EOFError:
            raise WrongError("A process of the benchmark has died.") from None
        self._process.join()
        return found


spawned = multiprocessing.get_context("spawn")


@dataclass
class Figures:
    """Rounds with so many turns; CPU in percent of a core."""

    turns: int
    mongod: list[float] = field(default_factory=list)
    holder: list[float] = field(default_factory=list)
    follower: list[float] = field(default_factory=list)
    bystander: list[float] = field(default_factory=list)
    oplog: list[float] = field(default_factory=list)
    """kB a second."""
    delays: list[float] = field(default_factory=list)
    """Milliseconds from a token to its subscriber in another process."""

    def __str__(self) -> str:
        """A row of the table."""
        cells = [
            f"{statistics.median(values):8.1f}"
            for values in (
                *(self.mongod, self.holder, self.follower, self.bystander),
                self.oplog,
            )
        ]
        p50, p99 = quantile(self.delays, 0.5), quantile(self.delays, 0.99)
        return f"{self.turns:5} {' '.join(cells)} {p50:8.0f} {p99:8.0f}"


HEAD = "turns   mongod   holder follower  without oplog kB/s  p50 ms   p99 ms"


class Bench:
    """The rounds on one server."""

    def __init__(self, uri: str, mongod: int, seconds: float) -> None:
        self._uri, self._mongod, self._seconds = uri, mongod, seconds
        self._admin: MongoClient[Any] = MongoClient(uri)

    def close(self) -> None:
        """Close the client."""
        self._admin.close()

    async def create_sessions(self, turns: int) -> None:
        """Create the sessions whose turns are held."""
        async with MongoSessionService(self._uri) as service:
            for number in range(turns):
                await service.create_session(
                    app_name=APP, user_id="speaker", session_id=f"s{number}"
                )

    def run_round(self, figures: Figures) -> None:
        """Measure turns of which nothing is written, and then of which all is."""
        cpu: dict[bool, tuple[float, float]] = {}
        for is_written in (False, True):
            args = (self._uri, self._seconds, figures.turns)
            begin = self._oplog_bytes()
            follower = Actor("follow", *args, partials=True)
            bystander = Actor("follow", *args, partials=False)
            time.sleep(LAST)
            before = cpu_seconds(self._mongod)
            holder = Actor("hold", *args, is_written=is_written)
            held, followed = holder.result(), follower.result()
            stood_by = bystander.result()
            cpu[is_written] = (cpu_seconds(self._mongod) - before, held["cpu"])
        percent = 100 / self._seconds
        figures.mongod.append(percent * (cpu[True][0] - cpu[False][0]))
        figures.holder.append(percent * (cpu[True][1] - cpu[False][1]))
        figures.follower.append(percent * followed["cpu"])
        figures.bystander.append(percent * stood_by["cpu"])
        figures.oplog.append((self._oplog_bytes() - begin) / self._seconds / 1000)
        figures.delays += followed["delays"]
        said = min(figures.turns, FOLLOWED) * self._seconds / TOKEN
        if not 0.5 * said < len(followed["delays"]) <= 1.1 * said:
            raise WrongError("What was received is not what was said.")

    def _oplog_bytes(self) -> float:
        """The bytes of the oplog that hold what turns say."""
        stages = [
            {"$match": {"$or": [{"ns": "adk.partials"}, _IN_COMMAND]}},
            {"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}},
        ]
        found = list(self._admin.local["oplog.rs"].aggregate(stages))
        return float(found[0]["bytes"]) if found else 0.0

    def append_beside(self) -> float:
        """Appends beside turns that are written, in parts of those beside others."""
        rates = []
        for is_written in (False, True):
            args = (self._uri, self._seconds, BESIDE)
            holder = Actor("hold", *args, is_written=is_written)
            rates.append(Actor("append", *args).result()["rate"])
            holder.result()
        return rates[1] / rates[0]


_IN_COMMAND = {"o.applyOps.ns": "adk.partials"}


def main() -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(
        "scripts/bench turns",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    circumstances.add_options(parser, quick="rough: 2 rounds")
    parser.add_argument("--seconds", type=float, default=5.0, help="each round")
    arguments = circumstances.parse_arguments(parser)
    facts = circumstances.collect_facts(arguments)
    rows, beside = [Figures(turns) for turns in TURNS], []
    with circumstances.running_mongodb() as (uri, mongod):
        assert mongod is not None  # noqa: S101  it is a new one
        bench = Bench(f"{uri}", mongod, arguments.seconds)
        asyncio.run(bench.create_sessions(max(TURNS)))
        for number in range(arguments.rounds):
            for row in rows:
                show_progress(f"round {number + 1}, {row.turns} turns")
                bench.run_round(row)
            show_progress(f"round {number + 1}, appends")
            beside.append(bench.append_beside())
        bench.close()
    show_progress("")
    print(f"Running turns, {circumstances.described(facts)}; CPU in % of a core")
    print(HEAD, *rows, sep="\n")
    ratio = statistics.median(beside)
    print(f"{LANES} appends at once beside {BESIDE} turns: {ratio:.2f} of their rate")
    if circumstances.is_rough(facts):
        print("Not judged: these figures are rough.")
    else:
        busiest = rows[-1]
        for name, quantile_ in (("p50 ms", 0.5), ("p99 ms", 0.99)):
            value = quantile(busiest.delays, quantile_)
            said = "reached" if value <= GOALS[name] else "MISSED"
            print(f"{name} at {busiest.turns} turns, at most {GOALS[name]:g}: {said}")
    figures = {str(row.turns): vars(row) for row in rows}
    circumstances.write_json(
        arguments.json, {"about": facts, "figures": figures, "beside": beside}
    )
    return 0
