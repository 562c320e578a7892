"""Measures this package beside ADK's session services and a hand-written script."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import importlib.metadata
import json
import sys

from benchmark import options
from benchmark.chart import chart
from benchmark.contestants import Contestant, Place
from benchmark.plan import workloads
from benchmark.report import report
from benchmark.rivals import CONTESTANTS, Postgres
from benchmark.run import Pace, Run
from benchmark.tables import table, targets
from benchmark.workload import Workload


def parse_arguments() -> argparse.Namespace:
    """What the user asked for; exits with 2 if it makes no sense."""
    parser = argparse.ArgumentParser("scripts/bench", description=__doc__)
    add = parser.add_argument
    add("--only", metavar="PATTERN", help='workloads by name, as in "append *"')
    add("--postgres", metavar="URL", help="also measure ADK on that PostgreSQL")
    options.add(
        parser, quick="a minute, and rough: 2 rounds", svg="draw ours beside adk mongo"
    )
    arguments = options.parse(parser)
    if arguments.only and not chosen(Place("", "", ""), arguments.only):
        names = [each.name for group in workloads(Place("", "", "")) for each in group]
        parser.error(f"--only matches none of: {'; '.join(names)}")
    if arguments.postgres:
        try:
            importlib.metadata.version("asyncpg")
        except importlib.metadata.PackageNotFoundError:
            parser.error("--postgres needs asyncpg: .venv/bin/pip install asyncpg")
    return arguments


def chosen(place: Place, pattern: str | None) -> list[list[Workload]]:
    """The workloads of which the name, or a part of it, is like the pattern."""
    like = f"*{pattern or ''}*".lower()
    groups = [
        [each for each in group if fnmatch.fnmatch(each.name.lower(), like)]
        for group in workloads(place)
    ]
    return [group for group in groups if group]


async def measure(place: Place, pace: Pace, only: str | None) -> Run:
    """Open all contestants, let them run, and remove what they stored."""
    contestants: list[Contestant] = [
        each(place)
        for each in CONTESTANTS.values()
        if place.postgres or each is not Postgres
    ]
    run = Run(contestants, pace)
    opened: list[Contestant] = []
    try:
        for contestant in contestants:
            opened.append(contestant)
            await contestant.open()
        await run.run(chosen(place, only))
    finally:
        for contestant in opened:
            if contestant.service is not None:
                await contestant.drop()
                await contestant.close()
    return run


def main() -> int:
    """Run the bench; the exit code."""
    arguments = parse_arguments()
    with options.begun(arguments, arguments.postgres) as (place, pace, facts):
        run = asyncio.run(measure(place, pace, arguments.only))
    told = report(run.results, facts)
    print(table(told), targets(told), sep="\n\n", end="\n\n")
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(told, indent=1))
    if arguments.svg:
        arguments.svg.write_text(chart(told))
    for each in run.wrong:
        print(f"bench: check failed: {each}", file=sys.stderr)
    return 1 if run.wrong else 0
