"""Reports: the figures of a program, one below another, beside what they should be."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmark import circumstances
from mongo_session_service.embedded import EmbeddedReplicaSet


@dataclass
class Report:
    """The figures, and whether they are good enough."""

    facts: dict[str, Any]
    rows: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        most: float | None = None,
        least: float | None = None,
        note: str = "",
    ) -> None:
        """Add a figure, and the most, or the least, that it should be."""
        self.figures[name] = round(value, 3)
        goal, is_reached = "", True
        if most is not None:
            goal, is_reached = f"at most {most:g} {unit}", value <= most
        if least is not None:
            goal, is_reached = f"at least {least:.2f} {unit}", value >= least
        if goal and not circumstances.is_rough(self.facts):
            goal += ": reached" if is_reached else ": MISSED"
        text = f"{value:,.4g} {unit}  {note}"
        self.rows.append(f"{name:<50} {text:<42} {goal}".rstrip())


@contextmanager
def reporting(
    title: str, arguments: argparse.Namespace
) -> Iterator[tuple[Report, EmbeddedReplicaSet]]:
    """Start a MongoDB to measure; at the end, print and write what was reported."""
    report = Report(circumstances.collect_facts(arguments))
    with EmbeddedReplicaSet() as mongodb:
        yield report, mongodb
    circumstances.show_progress("")
    print(f"{title}, {circumstances.described(report.facts)}", *report.rows, sep="\n")
    print("", circumstances.listed(report.facts), sep="\n")
    figures = {"about": report.facts, "figures": report.figures}
    circumstances.write_json(arguments.json, figures)
