"""The tables and the JSON of a run."""

from __future__ import annotations

from typing import Any

from .measure import Result
from .plan import LIMIT, RIVAL, TARGETS, Results

_LEGEND = f"""\
p25 - p75 are of single calls and, for rates, of rounds; p99 is of calls. client and
server: microseconds of CPU for each call, in the processes that call and in MongoDB.
/rival and /hand: the median divided by that of {RIVAL} and of {LIMIT}, in this run."""


_FIGURES = ("median", "p25", "p75", "p99", "client", "server")


def table(results: Results) -> str:
    """Every workload and contestant, with ratios."""
    lines = []
    for name, row in results.items():
        unit = next(iter(row.values())).unit
        better = "more is better" if unit == "/s" else "less is better"
        lines += ["", f"{name} ({unit}, {better})"]
        for contestant, result in row.items():
            lines.append(_line(contestant, result, row))
    names = ("p99 ms", "client us", "server us", "/rival", "/hand")
    head = f"{'':18}{'median':>9}{'p25 - p75':>20}" + "".join(f"{n:>11}" for n in names)
    return "\n".join([_LEGEND, "", head, *lines])


def _line(contestant: str, result: Result, row: dict[str, Result]) -> str:
    median = result.figure("median")
    if median is None:
        return f"  {contestant:15}{result.note}"
    low, high = _number(result.figure("p25")), _number(result.figure("p75"))
    calls = result.figure("p99") if result.unit in {"ms", "/s"} else None
    text = f"  {contestant:16}{_number(median):>9}{low + ' - ' + high:>20}"
    for each in (calls, result.figure("client"), result.figure("server")):
        text += f"{_number(each):>11}"
    for other in (RIVAL, LIMIT):
        theirs = row[other].figure("median") if other in row else None
        comparable = theirs and result.unit != "%" and contestant != other
        text += f"{f'{_number(median / theirs)}x' if comparable else '':>11}"
    return f"{text}  {result.note}".rstrip()


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:  # noqa: PLR2004  three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004


def targets(results: Results) -> str:
    """Every target of which something was measured."""
    head = f"{'target':39}{'wanted':>31}{'measured':>11}"
    lines = [head]
    reached = measured = 0
    for target in TARGETS:
        value = target.value(results)
        if value is None:
            continue
        measured += 1
        is_reached = target.is_reached(value)
        reached += is_reached
        figure = f"{value:.1f} %" if not target.versus else f"{value:.3g}x"
        verdict = "reached" if is_reached else "MISSED"
        lines.append(f"{target.name:39}{target.goal:>31}{figure:>11}  {verdict}")
    lines.append(f"{reached} of {measured} reached.")
    return "\n".join(lines)


def as_json(results: Results, about: dict[str, Any]) -> dict[str, Any]:
    """Everything, for other programs."""
    return {
        "about": about,
        "workloads": [
            {
                "name": name,
                "unit": next(iter(row.values())).unit,
                "contestants": {
                    contestant: {
                        **{figure: result.figure(figure) for figure in _FIGURES},
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
                "reached": target.is_reached(value),
            }
            for target in TARGETS
            if (value := target.value(results)) is not None
        ],
    }
