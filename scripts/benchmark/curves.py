"""What a call costs as work grows, as curves.

sessions      sessions in the database, 1,000 to 1,000,000, with an event each: all of
              them in MongoDB's cache, then with the smallest cache that it can have
events        events of a session, 10 to 100,000
subscribers   live subscriptions in one process, 1 to 10,000
appends       appends at once, 1 to 512, which share transactions

Medians of rounds: CPU of this process and of MongoDB, and time. All of one subject take
turns in every round, except for subscribers, of which there are ever more. Sessions and
events are stored in bulk, as the package writes them. Each call takes a session by
chance, the worst that can happen to a cache. What is read and stored is checked.

Takes about six minutes, and 3 GB of disk. With --uri the cache stays as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from benchmark import appends, options, panels, stored, watched
from benchmark.contestants import Ours, Place
from benchmark.measure import Result, WrongError, quantile
from benchmark.report import circumstances
from benchmark.run import Pace, Run, say
from benchmark.tables import number
from benchmark.workload import Workload

LEVELS: Final = {
    "sessions": (1000, 10_000, 100_000, 1_000_000),
    "events": (10, 100, 1000, 10_000, 100_000),
    "subscribers": (1, 10, 100, 1000, 10_000),
    "appends": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
}
QUICK: Final = {
    "sessions": (100, 1000),
    "events": (10, 100),
    "subscribers": (1, 10),
    "appends": (1, 4),
}
_ROOMY, _SMALL = 3072, 256
"""MB of MongoDB's cache: for all that is stored, and the smallest there can be."""
_UNITS: Final = {
    "at": "how much there is",
    "client": "us of CPU for each call, in this process",
    "server": "us of CPU for each call, in MongoDB",
    "ms": "of a call",
    "p99": "ms of a call",
    "per_second": "calls",
}

Lines: TypeAlias = dict[str, dict[int, Workload]]
"""A workload for each curve, and each amount of what grows."""


@dataclass
class Bench:
    """One run, on one server."""

    place: Place
    pace: Pace
    ours: Ours
    owns_server: bool

    async def sessions(self, levels: Sequence[int]) -> AsyncIterator[dict[str, Any]]:
        """Among so many stored sessions."""
        axis = "sessions in the database"
        async with AsyncExitStack() as stack:
            if self.owns_server:
                await stack.enter_async_context(self._cache(_ROOMY))
            found = [await self._filled(stack, each, 1) for each in levels]
            size = await found[-1].size() / 1e6
            told = f"{size:,.0f} MB of documents and indexes at {levels[-1]:,} sessions"
            lines = _among_sessions(found)
            yield await self._measured("Sessions stored", axis, [lines], told)
            if self.owns_server:
                await stack.enter_async_context(self._cache(_SMALL))
                name = f"The same, {_SMALL} MB of cache"
                pages = [f"{await each.pages_read():.1f}" for each in found]
                told = f"pages read from disk for a session: {', '.join(pages)}"
                lines = _among_sessions(found)
                yield await self._measured(name, axis, [lines], told)

    async def events(self, levels: Sequence[int]) -> AsyncIterator[dict[str, Any]]:
        """In sessions of so many events."""
        async with AsyncExitStack() as stack:
            found = [
                await self._filled(stack, stored.logs(each), each) for each in levels
            ]
            lines = _in_logs(found)
            yield await self._measured("Events of a session", "events", [lines])

    async def subscribers(self, levels: Sequence[int]) -> AsyncIterator[dict[str, Any]]:
        """Beside so many subscriptions."""
        groups: list[Lines] = []
        for each in levels:
            beside = watched.Watched(self.place, each)
            one, everyone = "append, to one", "app: to all"
            groups.append(
                {
                    one: {each: watched.Delivery(f"{one} of {each:,}", beside)},
                    everyone: {each: watched.Broadcast(f"{everyone} {each:,}", beside)},
                }
            )
        yield await self._measured("Live subscribers", "subscribers", groups)

    async def appends(self, levels: Sequence[int]) -> AsyncIterator[dict[str, Any]]:
        """So many at once."""
        lines: Lines = {
            "append": {
                each: appends.Append(f"append, {each} at once", at_once=each)
                for each in levels
            }
        }
        yield await self._measured("Appends at once", "appends at once", [lines])

    async def _measured(
        self, name: str, axis: str, groups: list[Lines], note: str = ""
    ) -> dict[str, Any]:
        """Measure groups, one after the other; what is in one takes turns."""
        run = Run([self.ours], self.pace)
        await run.run(
            [
                [each for line in group.values() for each in line.values()]
                for group in groups
            ]
        )
        if run.wrong:
            raise WrongError("; ".join(run.wrong))
        points: dict[str, list[dict[str, Any]]] = {}
        for group in groups:
            for line, workloads in group.items():
                for at, each in workloads.items():
                    result = run.results[each.name][self.ours.name]
                    points.setdefault(line, []).append(_point(at, result))
        lines = [{"name": line, "points": each} for line, each in points.items()]
        return {"name": name, "axis": axis, "note": note, "lines": lines}

    async def _filled(
        self, stack: AsyncExitStack, sessions: int, events: int
    ) -> stored.Stored:
        say(f"storing {sessions:,} sessions of {events:,} events")
        found = stored.Stored(self.place, sessions, events)
        stack.push_async_callback(found.close)
        await found.open()
        return found

    @asynccontextmanager
    async def _cache(self, megabytes: int) -> AsyncIterator[None]:
        """Give MongoDB's cache this size for a while."""
        before = await self._resize_cache(megabytes)
        yield
        await self._resize_cache(before)

    async def _resize_cache(self, megabytes: int) -> int:
        """Wait until it holds no more than that; the size it had."""
        admin, limit = self.ours.client.admin, megabytes * 2**20
        cache = (await admin.command("serverStatus"))["wiredTiger"]["cache"]
        before: int = cache["maximum bytes configured"] // 2**20
        size = {"wiredTigerEngineRuntimeConfig": f"cache_size={megabytes}M"}
        await admin.command({"setParameter": 1, **size})
        while cache["bytes currently in the cache"] > limit:
            await asyncio.sleep(0.1)
            cache = (await admin.command("serverStatus"))["wiredTiger"]["cache"]
        return before


def _among_sessions(found: Sequence[stored.Stored]) -> Lines:
    lines: Lines = {}
    for each in found:
        count = each.sessions
        # What is read stays as it was stored, so that it can be checked.
        reads, appends = range(0, count, 2), range(1, count, 2)
        for workload in (
            stored.Append("append", each, appends),
            stored.Read("a session", each, reads, recent=stored.RECENT),
            stored.Create("a new session", each, reads),
            stored.Page("a page of 50", each, reads),
        ):
            lines.setdefault(workload.name, {})[count] = workload
            workload.name += f", {count:,} stored"
    return lines


def _in_logs(found: Sequence[stored.Stored]) -> Lines:
    lines: Lines = {}
    for each in found:
        for workload in (
            stored.Append("append", each, range(2, each.sessions)),
            stored.Read("the last 20", each, [0], recent=stored.RECENT),
            stored.Read("all, first", each, [0], is_cached=False),
            stored.Read("all, again", each, [0]),
        ):
            lines.setdefault(workload.name, {})[each.events] = workload
            workload.name += f", {each.events:,} events"
    return lines


def _point(at: int, result: Result) -> dict[str, Any]:
    """The figures of one workload."""
    if any(turn.server is None for turn in result.turns):
        raise WrongError("This MongoDB does not tell how much CPU it uses.")

    def used(whose: str) -> float:
        each = (getattr(turn, whose) / len(turn.values) for turn in result.turns)
        return 1e6 * float(statistics.median(each))

    rates = (len(turn.values) / turn.elapsed for turn in result.turns)
    return {
        "at": at,
        "client": used("client"),
        "server": used("server"),
        "ms": statistics.median(result.calls),
        "p99": quantile(result.calls, 0.99),
        "per_second": statistics.median(rates),
        "calls": len(result.calls),
    }


async def measure(
    place: Place, pace: Pace, subjects: Sequence[str], *, owns_server: bool
) -> list[dict[str, Any]]:
    """Measure some subjects."""
    ours = Ours(place)
    await ours.open()
    try:
        bench = Bench(place, pace, ours, owns_server)
        levels = QUICK if pace.is_quick else LEVELS
        return [
            each
            for subject in subjects
            async for each in getattr(bench, subject)(levels[subject])
        ]
    finally:
        await ours.drop()
        await ours.close()


def tables(report: dict[str, Any]) -> str:
    """All of it, as Markdown."""
    text = [f"As work grows, {circumstances(report['about'])}", "", _LEGEND]
    for each in report["growth"]:
        lines = each["lines"]
        names = [line["name"] for line in lines]
        if alone := len(lines) == 1:
            names = ["CPU", "time", "slowest 1 %", "per second"]
        text += ["", each["name"] + (f" ({each['note']})" if each["note"] else ""), ""]
        text += [_row(each["axis"], *names), _row(*["---"] * (len(names) + 1))]
        for points in zip(*(line["points"] for line in lines), strict=True):
            cells = [_cell(point) for point in points]
            if alone:
                point = points[0]
                cells = cells[0].split("; ")
                cells += [f"{number(point['p99'])} ms", number(point["per_second"])]
            text.append(_row(f"{points[0]['at']:,}", *cells))
    return "\n".join(text)


_LEGEND = (
    "CPU of a call in ms, client + MongoDB; its time. Medians of rounds and calls."
)


def _cell(point: dict[str, Any]) -> str:
    client, server = (number(point[each] / 1000) for each in ("client", "server"))
    return f"{client} + {server}; {number(point['ms'])} ms"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Run the bench; the exit code."""
    parser = argparse.ArgumentParser(
        "scripts/bench curves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", choices=LEVELS, help="one of the subjects")
    options.add(
        parser, quick="some seconds, and rough: little of each", svg="draw the curves"
    )
    arguments = options.parse(parser)
    subjects = [arguments.only] if arguments.only else list(LEVELS)
    with options.begun(arguments) as (place, pace, facts):
        pace.is_frozen = False
        growth = asyncio.run(
            measure(place, pace, subjects, owns_server=not arguments.uri)
        )
    report = {"about": facts, "units": _UNITS, "growth": growth}
    print(tables(report), end="\n\n")
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    if arguments.svg:
        arguments.svg.write_text(panels.picture(report))
    return 0
