"""A picture of growth: a panel for each thing that grows, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from benchmark import drawing
from benchmark.report import Report, circumstances

COLOURS: Final = ("blue", "green", "purple", "amber", "red")
_COLUMN, _ROW, _TOP = 379, 262, 84
_LEFT, _RIGHT, _ABOVE, _BELOW = 56, 112, 46, 44  # of a panel, around its curves
_NUMBERS: Final = 7
"""Beside each other on an axis, at most."""
_LINE: Final = 15
"""Between two labels."""
_LEGEND: Final = "A level line is a cost that does not grow."
_DECADES: Final = 2
"""Beyond which an axis has a tick for each decade only."""

Curve = tuple[str, Sequence[tuple[int, float]]]
"""What it is called, and its points."""


@dataclass(frozen=True)
class Panel:
    """What is drawn side by side: microseconds, over what grows."""

    title: str
    what: str
    axis: str
    curves: Sequence[Curve]


def picture(report: Report) -> str:
    """All panels, two in a row, as SVG."""
    found = list(panels(report["growth"]))
    title = "What a call costs as work grows"
    note = f"logarithmic axes; medians; {circumstances(report['about'])}"
    parts = [drawing.text(12, 24, title, "title", "start")]
    for y, told in ((44, _LEGEND), (62, note)):
        parts.append(drawing.text(12, y, told, "faint", "start"))
    for number, panel in enumerate(found):
        row, column = divmod(number, 2)
        parts += _drawn(panel, column * _COLUMN, _TOP + row * _ROW)
    rows = math.ceil(len(found) / 2)
    return drawing.picture(_TOP + rows * _ROW, title, parts)


def panels(growth: Sequence[Mapping[str, Any]]) -> Iterator[Panel]:
    """What to draw: CPU, and of calls that wait for each other also the time."""
    for each in growth:
        if len(each["lines"]) > 1:
            curves = [
                (line["name"], [(p["at"], p["client"] + p["server"]) for p in points])
                for line in each["lines"]
                if (points := line["points"])
            ]
            yield Panel(each["name"], "CPU, client + MongoDB", each["axis"], curves)
            continue
        (line,) = each["lines"]
        for what, names in _ALONE.items():
            curves = [
                (label, [(p["at"], p[figure] * times) for p in line["points"]])
                for label, (figure, times) in names.items()
            ]
            yield Panel(each["name"], what, each["axis"], curves)


_ALONE: Final = {
    "CPU of each": {"client": ("client", 1), "MongoDB": ("server", 1)},
    "time of each": {"median": ("ms", 1000), "slowest 1 %": ("p99", 1000)},
}


def _drawn(panel: Panel, left: float, top: float) -> Iterator[str]:
    """The parts of a panel."""
    start, end = left + _LEFT, left + _COLUMN - _RIGHT
    high, low = top + _ABOVE, top + _ROW - _BELOW
    values = [value for _, points in panel.curves for _, value in points]
    ticks = _ticks(min(values), max(values))
    levels = sorted({at for _, points in panel.curves for at, _ in points})
    x = drawing.LogScale(levels[0], levels[-1], start, end)
    y = drawing.LogScale(ticks[0], ticks[-1], low, high)
    yield drawing.text(left + 12, top + 14, panel.title, "panel", "start")
    yield drawing.text(left + 12, top + 31, panel.what, "faint", "start")
    for tick in ticks:
        at = y.at(tick)
        yield drawing.line((start, at), (end, at))
        yield drawing.text(start - 6, at + 4, _time(tick), "faint", "end")
    for level in levels[:: -(-len(levels) // _NUMBERS)]:
        yield drawing.text(x.at(level), low + 16, _number(level), "faint")
    yield drawing.text((start + end) / 2, low + 33, panel.axis, "faint")
    places = _spread([y.at(points[-1][1]) + 4 for _, points in panel.curves], low)
    for (name, points), place, colour in zip(
        panel.curves, places, COLOURS, strict=False
    ):
        yield drawing.curve(((x.at(at), y.at(value)) for at, value in points), colour)
        yield drawing.text(end + 8, place, name, colour, "start")


def _ticks(least: float, most: float) -> list[float]:
    """Round values around the others: a decade of them, so that noise looks small."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    if high - low > _DECADES:
        return [10.0**power for power in range(low, high + 1)]
    powers = range(low, high + 2)
    fine = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    first = max(each for each in fine if each <= least)
    last = min(each for each in fine if each >= max(most, 9.9 * first))
    return [each for each in fine if first <= each <= last]


def _spread(wanted: Sequence[float], lowest: float) -> list[float]:
    """Places of labels near those wanted, of which none touches another."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    places = [wanted[number] for number in order]
    for one, other in pairwise(range(len(places))):
        places[other] = max(places[other], places[one] + _LINE)
    places[-1] = min(places[-1], lowest + 4)
    for other, one in pairwise(reversed(range(len(places)))):
        places[one] = min(places[one], places[other] - _LINE)
    return [places[order.index(number)] for number in range(len(wanted))]


def _time(microseconds: float) -> str:
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:g} {unit}"
    return f"{microseconds:g} µs"


def _number(count: int) -> str:
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if count >= size and not count % size:
            return f"{count // size}{unit}"
    return f"{count}"
