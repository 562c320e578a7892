"""What a run tells: the JSON, of which the tables and the picture are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from benchmark.plan import TARGETS, Results

ROUNDS = 5
"""Of how many rounds figures are that may be quoted."""

Report: TypeAlias = dict[str, Any]

_CPU = "us of CPU for each call"
_UNITS = {
    "median": "the workload's",
    "p25": "the workload's",
    "p75": "the workload's",
    "p99": "ms, of calls",
    "client": f"{_CPU}, in the processes that call",
    "server": f"{_CPU}, in MongoDB",
}


def report(results: Results, about: Mapping[str, Any]) -> Report:
    """Everything that was measured, under what circumstances, and the verdict."""
    return {
        "about": dict(about),
        "units": _UNITS,
        "workloads": [
            {
                "name": name,
                "unit": next(iter(row.values())).unit,
                "contestants": {
                    contestant: {
                        **{figure: result.figure(figure) for figure in _UNITS},
                        "calls": len(result.calls),
                        "rounds": len(result.turns),
                        "note": result.note,
                    }
                    for contestant, result in row.items()
                },
            }
            for name, row in results.items()
        ],
        "targets": [
            {
                "name": target.name,
                "wanted": target.goal,
                "measured": value,
                "reached": None if is_rough(about) else target.is_reached(value),
            }
            for target in TARGETS
            if (value := target.value(results)) is not None
        ],
    }


def is_rough(about: Mapping[str, Any]) -> bool:
    """Whether too little was measured to quote, or judge, its figures."""
    return about["quick"] or about["rounds"] < ROUNDS


def is_crowded(about: Mapping[str, Any]) -> bool:
    """Whether the machine had too much else to do when the run began."""
    return about["load_before"][0] > about["cpus"]


def circumstances(about: Mapping[str, Any]) -> str:
    """What to know before reading any figure of a run."""
    rounds = about["rounds"]
    text = f"{rounds} round{'s' * (rounds != 1)}"
    if is_rough(about):
        text = f"rough: {text}"
    if is_crowded(about):
        load, cpus = about["load_before"][0], about["cpus"]
        text += f"; busy: load average {load:.1f} on {cpus} CPUs at its start"
    return text


def times_as_good(workload: Mapping[str, Any], one: str, other: str) -> float | None:
    """How many times as fast, or as small, one contestant is as another."""
    contestants, unit = workload["contestants"], workload["unit"]
    ours, theirs = (contestants.get(each, {}).get("median") for each in (one, other))
    if not ours or not theirs:
        return None
    return float(ours / theirs if unit == "/s" else theirs / ours)
