"""Measures this package beside ADK's session services and a hand-written script."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import importlib.metadata
import json
import logging
import os
import platform
import secrets
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmark.chart import chart
from benchmark.contestants import Contestant, Place
from benchmark.plan import workloads
from benchmark.report import ROUNDS, is_crowded, report
from benchmark.rivals import CONTESTANTS, Postgres
from benchmark.run import Pace, Run
from benchmark.tables import table, targets
from benchmark.workload import Workload
from mongo_session_service import MongoSessionService, MongoSessionServiceError
from mongo_session_service.embedded import EmbeddedReplicaSet


def parse_arguments() -> argparse.Namespace:
    """What the user asked for; exits with 2 if it makes no sense."""
    parser = argparse.ArgumentParser("scripts/bench", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="a minute, and rough: 2 rounds")
    add("--only", metavar="PATTERN", help='workloads by name, as in "append *"')
    add("--rounds", type=int, help="turns of each contestant in each workload")
    add("--uri", default=os.environ.get("MONGODB_URI"), help="a MongoDB replica set")
    add("--postgres", metavar="URL", help="also measure ADK on that PostgreSQL")
    add("--json", type=Path, metavar="FILE", help="write every figure")
    add("--svg", type=Path, metavar="FILE", help="draw ours beside adk mongo")
    arguments = parser.parse_args()
    if arguments.rounds is not None and arguments.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if arguments.only and not chosen(Place("", "", ""), arguments.only):
        names = [each.name for group in workloads(Place("", "", "")) for each in group]
        parser.error(f"--only matches none of: {'; '.join(names)}")
    for file in (arguments.json, arguments.svg):
        if file and not file.absolute().parent.is_dir():
            parser.error(f"there is no directory {file.parent}")
    if arguments.postgres:
        try:
            importlib.metadata.version("asyncpg")
        except importlib.metadata.PackageNotFoundError:
            parser.error("--postgres needs asyncpg: .venv/bin/pip install asyncpg")
    if arguments.uri:
        try:
            MongoSessionService(arguments.uri)
        except MongoSessionServiceError as error:
            parser.error(str(error))
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


def about(pace: Pace) -> dict[str, Any]:
    """Under what circumstances it will be measured."""
    packages = ("google-adk", "pymongo", "motor", "pydantic", "mongo-session-service")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "quick": pace.is_quick,
        "rounds": pace.rounds,
        "cpus": os.cpu_count(),
        "load_before": load(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def load() -> list[float]:
    """How much the machine has had to do in the last 1, 5 and 15 minutes."""
    return [round(each, 1) for each in os.getloadavg()]


def main() -> int:
    """Run the bench; the exit code."""
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    quick = arguments.quick
    rounds = arguments.rounds or (2 if quick else ROUNDS)
    pace = Pace(rounds, 0.05 if quick else 0.3, quick)
    facts = about(pace)
    if is_crowded(facts):
        busy = f"a load average of {facts['load_before'][0]} on {facts['cpus']} CPUs"
        print(f"bench: {busy}: figures will be unsteady", file=sys.stderr)
    start = time.monotonic()
    with ExitStack() as stack:
        uri = arguments.uri
        if not uri:
            uri = stack.enter_context(EmbeddedReplicaSet()).uri
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        place = Place(uri, secrets.token_hex(4), directory, arguments.postgres)
        run = asyncio.run(measure(place, pace, arguments.only))
    facts |= {"seconds": round(time.monotonic() - start), "load": load()}
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
