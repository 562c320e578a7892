"""The tables that a run ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmark.plan import LIMIT, RIVAL
from benchmark.report import Report, circumstances, is_rough, times_as_good

_LEGEND = f"""\
p25 - p75 are of single calls and, for rates, of rounds; p99 is of calls. client and
server: microseconds of CPU for each call, in the processes that call and in MongoDB.
x rival, x hand: how many times as fast as {RIVAL} and as {LIMIT} (of MB: as
small) in this run; above 1 is better. LOST n: n keys of state did not end as they were
set last. WRONG: something else was stored or read than was given. cannot: it failed."""


def table(report: Report) -> str:
    """Every workload and contestant, with ratios."""
    lines = []
    for workload in report["workloads"]:
        better = "more is better" if workload["unit"] == "/s" else "less is better"
        lines += ["", f"{workload['name']} ({workload['unit']}, {better})"]
        lines += [_line(each, workload) for each in workload["contestants"]]
    names = ("p99 ms", "client us", "server us", "x rival", "x hand")
    head = f"{'':18}{'median':>9}{'p25 - p75':>20}" + "".join(f"{n:>11}" for n in names)
    title = f"Side by side, {circumstances(report['about'])}"
    return "\n".join([title, "", _LEGEND, "", head, *lines])


def _line(contestant: str, workload: Mapping[str, Any]) -> str:
    figures = workload["contestants"][contestant]
    if figures["median"] is None:
        return f"  {contestant:15}{figures['note']}"
    spread = f"{number(figures['p25'])} - {number(figures['p75'])}"
    text = f"  {contestant:16}{number(figures['median']):>9}{spread:>20}"
    for name in ("p99", "client", "server"):
        text += f"{number(figures[name]):>11}"
    for other in (RIVAL, LIMIT):
        ratio = times_as_good(workload, contestant, other)
        is_shown = ratio is not None and contestant != other
        text += f"{f'{number(ratio)}x' if is_shown else '':>11}"
    return f"{text}  {figures['note']}".rstrip()


def number(value: float | None) -> str:
    """Three digits of a figure, if it is known."""
    if value is None:
        return "-"
    if abs(value) >= 100:  # noqa: PLR2004  three digits
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"  # noqa: PLR2004


def targets(report: Report) -> str:
    """Every goal of which something was measured."""
    found = report["targets"]
    if not found:
        return ""
    verdicts: dict[bool | None, str] = {True: "reached", False: "MISSED"}
    reached = sum(each["reached"] is True for each in found)
    summary = f"{reached} of {len(found)} reached."
    if is_rough(report["about"]):
        verdicts, summary = {None: ""}, "Not judged: these figures are rough."
    head = f"{'goal, set before it was built':37}{'wanted':>46}{'measured':>10}"
    lines = [head]
    for each in found:
        figure = f"{each['measured']:.3g}x"
        line = f"{each['name']:37}{each['wanted']:>46}{figure:>10}"
        lines.append(f"{line}  {verdicts[each['reached']]}".rstrip())
    return "\n".join([*lines, summary])
