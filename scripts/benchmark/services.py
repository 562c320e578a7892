"""Measures this package beside ADK's session services and hand-written code.

Each contestant runs in a process of its own. They take turns in each round, so that
what else the machine does slows all of them down. A ratio is the median of the rounds'
ratios. What was stored and read is checked at the end.

With --against, the package of another checkout is a contestant, named "before".
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmark import circumstances
from benchmark.charts import draw_services
from benchmark.circumstances import show_progress
from benchmark.contestants import CONTESTANTS, Servers
from benchmark.figures import UNITS, Result, WrongError, three_digits
from benchmark.report import Report
from benchmark.worker import StepError, Worker
from benchmark.workloads import Workload, make_workloads
from mongo_session_service.embedded import EmbeddedReplicaSet

HERE = Path(__file__).parents[2]
OURS, BEFORE = "ours", "before"
COLUMNS = ("before", "adk mongo", "hand-written", "bare loop")
"""Whom each contestant is compared with."""
Results: TypeAlias = dict[str, dict[str, Result]]
"""By workload, then by contestant."""


GOALS = (
    ("append alone", "hand-written", 1 / 1.05),
    ("append, 32 at once", "bare loop", 0.80),
    ("append, 32 at once", "adk mongo", 4),
    ("append, 32 at once", "hand-written", 2.5),
    ("append app: and user:, 16 at once", "adk mongo", 10),
    ("append, 1 MB state", "adk mongo", 3),
    ("get none of 500", "hand-written", 1 / 1.2),
    ("get all of 500", "adk mongo", 1),
    ("list 500", "hand-written", 1 / 1.2),
    ("create alone", "adk mongo", 1.3),
)
"""By workload and contestant: how many times as fast this package is to be."""
NOT_SLOWER = 1 / 1.05
"""The goal of every workload beside the same package before a change."""


@dataclass
class Run:
    """The contestants' processes, and what they achieved."""

    workers: dict[str, Worker]
    rounds: int
    seconds: float
    """For each round of a contestant."""
    is_quick: bool
    results: Results = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """The checks that failed."""

    async def measure(self, workload: Workload) -> None:
        """Let all contestants that can do it have their rounds."""
        results = self.results[workload.name] = {
            name: Result(workload.unit)
            for name in self.workers
            if (only := CONTESTANTS[name].only) is None or workload.name in only
        }
        racing = list(results)
        for name in list(racing):
            if not await self._step(workload, name, "prepare"):
                racing.remove(name)
        rounds = 1 if self.is_quick and workload.is_heavy else self.rounds
        for _ in range(rounds):
            for name in list(racing):
                if not await self._step(workload, name, "sample"):
                    racing.remove(name)
            racing.reverse()  # whoever came first has no advantage of it
        for name in racing:
            await self._step(workload, name, "check")

    async def _step(self, workload: Workload, name: str, step: str) -> bool:
        result, worker = self.results[workload.name][name], self.workers[name]
        where = f"{workload.name}, {name}"
        if sys.stderr.isatty():
            show_progress(f"{where}: {step} {len(result.samples) + 1}")
        try:
            if step == "prepare":
                await worker.ask(step, workload=workload.name)
            elif step == "sample":
                result.samples.append(await worker.sample(self.seconds))
            elif lost := await worker.ask(step):
                result.note = f"LOST {lost}"
                if name in {OURS, BEFORE}:
                    self.wrong.append(f"{where}: {lost} state keys were lost")
        except WrongError as wrong:
            result.note = f"WRONG: {wrong}"
            self.wrong.append(f"{where}: {wrong}")
            return False
        except StepError as failed:
            result.samples.clear()
            result.note = f"cannot: {failed}"
            if name in {OURS, BEFORE}:
                self.wrong.append(f"{where}: {result.note}")
            return False
        return True


async def race(arguments: argparse.Namespace, servers: Servers) -> Run:
    """Start all contestants, measure the workloads, and clean up."""
    async with AsyncExitStack() as stack:
        run = Run({}, arguments.rounds, arguments.seconds, arguments.quick)
        checkouts = dict.fromkeys(arguments.contestants, HERE)
        if BEFORE in checkouts:
            checkouts[BEFORE] = arguments.against.resolve()
        for name, checkout in checkouts.items():
            run.workers[name] = await Worker.start(checkout)
            stack.push_async_callback(run.workers[name].end)
        for name, worker in run.workers.items():
            opened = await worker.ask("open", contestant=name, **asdict(servers))
            package = Path(opened)
            if not package.is_relative_to(checkouts[name]):
                raise StepError(f"{name} imports {package}, not {checkouts[name]}")
        for number, workload in enumerate(arguments.workloads, 1):
            show_progress(f"{number}/{len(arguments.workloads)} {workload.name}")
            await run.measure(workload)
        show_progress("")
    return run


def judge(results: Results, facts: dict[str, Any]) -> Report:
    """How fast this package is beside others, and how fast it is to be."""
    report = Report(facts)
    unchanged = ((name, BEFORE, NOT_SLOWER) for name in results)
    for workload, other, least in (*GOALS, *unchanged):
        row = results.get(workload, {})
        if OURS in row and other in row:
            times = row[OURS].times_as_good(row[other])
            if times is not None:
                name = f"{workload}: {other}"
                report.add(name, times, "times as fast", least=least)
    return report


def make_report(results: Results, judged: Report) -> dict[str, Any]:
    """Everything that was measured, its circumstances, and what was judged."""
    return {
        "about": judged.facts,
        "units": UNITS,
        "workloads": [
            {
                "name": name,
                "unit": next(iter(row.values())).unit,
                "contestants": {
                    contestant: {
                        **result.figures(),
                        "calls": len(result.calls),
                        "rounds": result.rounds,
                        "note": result.note,
                        "times_as_good_as": {
                            other: result.times_as_good(row[other])
                            for other in COLUMNS
                            if other in row and other != contestant
                        },
                    }
                    for contestant, result in row.items()
                },
            }
            for name, row in results.items()
            if row
        ],
        "goals": judged.figures,
    }


LEGEND = """\
p25 - p75 are of single calls and, for rates, of rounds; p99 is of calls. client and
server: microseconds of CPU for each call, in the process that calls and in MongoDB.
x ...: how many times as fast as that contestant in this run; above 1 is better.
LOST n: n keys of state did not end as they were set last. WRONG: something else was
stored or read than was given. cannot: it failed."""


def make_table(report: Mapping[str, Any]) -> str:
    """Every workload and contestant, with ratios."""
    shown = {name for each in report["workloads"] for name in each["contestants"]}
    columns = [name for name in COLUMNS if name in shown]
    names = ("p99 ms", "client us", "server us", *(f"x {name}" for name in columns))
    head = f"{'':16}{'median':>10}{'p25 - p75':>20}"
    head += "".join(f"{name:>{max(11, len(name) + 2)}}" for name in names)
    title = f"Side by side, {circumstances.described(report['about'])}"
    lines = [title, "", LEGEND, "", head]
    for workload in report["workloads"]:
        better = "more is better" if workload["unit"] == "/s" else "less is better"
        lines += ["", f"{workload['name']} ({workload['unit']}, {better})"]
        for contestant, figures in workload["contestants"].items():
            lines.append(_make_row(contestant, figures, columns))
    return "\n".join(lines)


def _make_row(contestant: str, figures: Mapping[str, Any], columns: list[str]) -> str:
    if figures["median"] is None:
        return f"  {contestant:15}{figures['note']}"
    spread = f"{three_digits(figures['p25'])} - {three_digits(figures['p75'])}"
    text = f"  {contestant:14}{three_digits(figures['median']):>10}{spread:>20}"
    for name in ("p99", "client", "server"):
        text += f"{three_digits(figures[name]):>11}"
    for other in columns:
        times = figures["times_as_good_as"].get(other)
        shown = f"{three_digits(times)}x" if times is not None else ""
        text += f"{shown:>{max(11, len(other) + 4)}}"
    return f"{text}  {figures['note']}".rstrip()


def parse_arguments() -> argparse.Namespace:
    """Parse the arguments; exits with 2 if they make no sense."""
    parser = circumstances.make_parser("services", __doc__)
    add = parser.add_argument
    add("--only", metavar="PATTERN", default="", help='workloads, as in "append *"')
    add("--contestants", metavar="NAMES", help="of these only, with commas between")
    add("--against", type=Path, metavar="PATH", help="another checkout of the package")
    add("--seconds", type=float, default=0.4, help="each round of each contestant")
    add("--uri", default=os.environ.get("MONGODB_URI"), help="a MongoDB replica set")
    add("--svg", type=Path, metavar="FILE", help="draw how ours compares")
    arguments = circumstances.parse_arguments(parser)
    pattern = f"*{arguments.only}*".lower()
    workloads = make_workloads().values()
    arguments.workloads = [
        each for each in workloads if fnmatch.fnmatch(each.name.lower(), pattern)
    ]
    if not arguments.workloads:
        names = "; ".join(each.name for each in workloads)
        parser.error(f"--only matches none of: {names}")
    left_out = set() if arguments.against else {BEFORE}
    known = [name for name in CONTESTANTS if name not in left_out]
    asked = (arguments.contestants or ",".join(known)).split(",")
    if not set(asked) <= set(known):
        parser.error(f"--contestants are {', '.join(known)}")
    arguments.contestants = [name for name in known if name in asked]
    package = "mongo_session_service/__init__.py"
    if arguments.against and not (arguments.against / package).exists():
        parser.error(f"there is no {package} in {arguments.against}")
    return arguments


def main() -> int:
    """Run the benchmark; the exit code."""
    arguments = parse_arguments()
    facts = circumstances.collect_facts(arguments)
    with ExitStack() as stack:
        uri = arguments.uri or stack.enter_context(EmbeddedReplicaSet()).uri
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        servers = Servers(uri, secrets.token_hex(4), directory)
        run = asyncio.run(race(arguments, servers))
    judged = judge(run.results, facts)
    report = make_report(run.results, judged)
    print(make_table(report), "", *judged.rows, "", sep="\n")
    print(circumstances.listed(facts))
    circumstances.write_json(arguments.json, report)
    if arguments.svg:
        draw_services(report, arguments.svg)
    for each in run.wrong:
        print(f"bench: check failed: {each}", file=sys.stderr)
    return 1 if run.wrong else 0
