"""The workloads, and the goals that were set for them before any was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from benchmark.appends import Append, SharedState
from benchmark.contestants import Place
from benchmark.measure import Result
from benchmark.processes import FromProcesses
from benchmark.reads import (
    Conversations,
    Create,
    Delete,
    Get,
    ListSessions,
    Memory,
)
from benchmark.workload import Workload

Results: TypeAlias = dict[str, dict[str, Result]]
"""By workload, then by contestant."""

RIVAL, LIMIT, OURS = "adk mongo", "hand-written", "ours"


def workloads(place: Place) -> list[list[Workload]]:
    """The workloads; those of one group take turns, for they are compared."""
    long = Conversations()
    return [
        [Append("append alone")],
        [Append("append, 1 at once", "/s", at_once=1)],
        [Append("append, 8 at once", "/s", at_once=8)],
        [Append("append, 32 at once", "/s", at_once=32)],
        [Append("append, 128 at once", "/s", at_once=128, heavy=True)],
        [Append("append, 512 at once", "/s", at_once=512, heavy=True)],
        [SharedState("append app: and user:, 1 process", "/s", at_once=16)],
        [FromProcesses("append app: and user:, 4 processes", place, at_once=16)],
        [
            Append("append, no state"),
            Append("append, 100 kB state", state_bytes=100_000),
            Append("append, 1 MB state", state_bytes=1_000_000),
            Append("append, 10 MB state", state_bytes=10_000_000, heavy=True),
        ],
        [
            Append("append, 10 events", events=10),
            Append("append, 1,000 events", events=1000),
            Append("append, 10,000 events", events=10_000, heavy=True),
        ],
        [
            Get("get none of 500", long, 500, 0),
            Get("get last 20 of 100", long, 100, 20),
            Get("get last 20 of 500", long, 500, 20),
            Get("get last 20 of 10,000", long, 10_000, 20, heavy=True),
        ],
        [Get("get all of 500", long, 500)],
        [Get("get all of 5,000", long, 5000, heavy=True)],
        [ListSessions("list 500", 500)],
        [ListSessions("list 5,000", 5000, heavy=True)],
        [Create("create alone")],
        [Create("create, 32 at once", 32)],
        [Delete("delete with 5,000 events", 5000, heavy=True)],
        [Memory("hold 5,000 events", long, 5000)],
    ]


@dataclass(frozen=True)
class Target:
    """A ratio between two figures of one run."""

    workload: str
    limit: float
    at_least: bool = False
    figure: str = "median"
    versus: str = RIVAL
    versus_workload: str | None = None

    @property
    def name(self) -> str:
        """What is compared."""
        figure = "" if self.figure == "median" else f", {self.figure}"
        return f"{self.workload}{figure}"

    @property
    def goal(self) -> str:
        """What is wanted."""
        sign = ">=" if self.at_least else "<="
        what = "rate" if self.at_least else "time"
        than = self.versus
        if self.versus_workload:
            than = f"{than}, {self.versus_workload.removeprefix('append, ')}"
        return f"{sign} {self.limit:.3g}x the {what} of {than}"

    def value(self, results: Results) -> float | None:
        """What was measured; None if it was not."""
        found = results.get(self.workload, {}).get(OURS)
        ours = found.figure(self.figure) if found else None
        if ours is None:
            return None
        workload = self.versus_workload or self.workload
        found = results.get(workload, {}).get(self.versus)
        theirs = found.figure(self.figure) if found else None
        return ours / theirs if theirs else None

    def is_reached(self, value: float) -> bool:
        """Whether a measured value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit


TARGETS = (
    Target("append alone", 0.72),
    Target("append alone", 1.05, versus=LIMIT),
    Target("append, 32 at once", 8, at_least=True),
    Target("append, 32 at once", 5, at_least=True, versus=LIMIT),
    Target("append, 512 at once", 12, at_least=True),
    Target("append, 512 at once", 1 / 6, figure="p99"),
    Target("append app: and user:, 1 process", 25, at_least=True),
    Target("append app: and user:, 4 processes", 3, at_least=True),
    Target("append, 1 MB state", 0.22),
    Target("append, 1 MB state", 1.3, versus=OURS, versus_workload="append, no state"),
    Target(
        "append, 10,000 events", 1.1, versus=OURS, versus_workload="append, 10 events"
    ),
    Target("get none of 500", 0.4),
    Target("get last 20 of 500", 0.45),
    Target("get all of 500", 0.8),
    Target(
        "get last 20 of 10,000", 1.15, versus=OURS, versus_workload="get last 20 of 100"
    ),
    Target("list 500", 0.45),
    Target("create alone", 2.5, at_least=True),
    Target("create, 32 at once", 8, at_least=True),
)
