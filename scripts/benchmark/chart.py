"""A picture of a run: how ours compares to ADK's MongoDB service."""

from __future__ import annotations

import math

from benchmark import drawing
from benchmark.plan import LIMIT, OURS, RIVAL
from benchmark.report import Report, circumstances, times_as_good

_LEFT, _RIGHT, _ROW, _TOP = 260, 70, 26, 64


def chart(report: Report) -> str:
    """A bar for every workload, on a logarithmic scale, as SVG."""
    rows = []
    for workload in report["workloads"]:
        ours = times_as_good(workload, OURS, RIVAL)
        if ours and workload["unit"] != "MB":
            rows.append((workload["name"], ours, times_as_good(workload, LIMIT, RIVAL)))
    figures = [each for _, *pair in rows for each in pair if each]
    low = math.floor(math.log2(min([0.5, *figures])))
    high = math.ceil(math.log2(max([4.0, *figures])))
    bottom = _TOP + _ROW * len(rows)

    scale = drawing.LogScale(2**low, 2**high, _LEFT, drawing.WIDTH - _RIGHT)

    def bar(factor: float, style: str, y: int, height: int) -> str:
        start, end = sorted((scale.at(1), scale.at(factor)))
        return drawing.bar(start, y, end - start, height, style)

    title = f"Times as fast as {RIVAL}"
    legend = f"medians; wide bar: {OURS}; narrow, blue: {LIMIT}"
    note = f"{circumstances(report['about'])}; {legend}"
    parts = [drawing.text(12, 24, title, "title", "start")]
    parts.append(drawing.text(12, 44, note, "faint", "start"))
    for power in range(low, high + 1):
        x, style = scale.at(2**power), "one" if power == 0 else ""
        parts.append(drawing.line((x, _TOP - 4), (x, bottom), style))
        parts.append(drawing.text(x, bottom + 18, f"{2**power:g}x", "faint"))
    for number, (name, ours, hand) in enumerate(rows):
        y = _TOP + _ROW * number
        style = "green" if ours >= 1 else "red"
        parts.append(drawing.text(_LEFT - 10, y + 15, name, anchor="end"))
        parts.append(bar(ours, style, y + 3, 13))
        if hand:
            parts.append(bar(hand, "blue", y + 18, 3))
        end, figure = scale.at(max(ours, 1)), f"{ours:.2g}x"
        parts.append(drawing.text(end + 6, y + 14, figure, f"figure {style}", "start"))
    return drawing.picture(bottom + 30, title, parts)
