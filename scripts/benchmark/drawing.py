"""Parts of pictures, as SVG that is readable on light and on dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Final

WIDTH: Final = 760
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.faint { fill: #656d76; font-size: 12px }
.title { font-size: 15px; font-weight: 600 }
.panel { font-weight: 600 }
.figure { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
line { stroke: #d8dee4 }
.one { stroke: #656d76 }
.green, .red, .blue, .purple, .amber { fill: currentColor }
.green { color: #1a7f37 }
.red { color: #cf222e }
.blue { color: #0969da }
.purple { color: #8250df }
.amber { color: #9a6700 }
.curve { fill: none; stroke: currentColor; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .faint { fill: #8d96a0 }
  .figure { stroke: #0d1117 }
  line { stroke: #30363d }
  .one { stroke: #8d96a0 }
  .green { color: #3fb950 }
  .red { color: #f85149 }
  .blue { color: #58a6ff }
  .purple { color: #bc8cff }
  .amber { color: #d29922 }
}
"""


class LogScale:
    """Where values are drawn, from one end of an axis to the other."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = math.log(low), start
        self._per_unit = (end - start) / (math.log(high) - self._low)

    def at(self, value: float) -> float:
        """The coordinate of a value."""
        return round(self._start + (math.log(value) - self._low) * self._per_unit, 1)


def picture(height: float, title: str, parts: Iterable[str]) -> str:
    """All of it; the title is for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' role="img" aria-label="{escape(title)}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def text(
    x: float, y: float, content: str, style: str = "", anchor: str = "middle"
) -> str:
    """A line of text; the anchor is where on it `x` lies: start, middle or end."""
    place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(content)}</text>'


def line(start: tuple[float, float], end: tuple[float, float], style: str = "") -> str:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{style}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'


def bar(x: float, y: float, width: float, height: float, style: str) -> str:
    """A filled bar, its left upper corner at `x` and `y`."""
    size = f'width="{max(width, 1):.1f}" height="{height}"'
    return f'<rect class="{style}" x="{x}" y="{y}" rx="1.5" {size}/>'


def curve(points: Iterable[tuple[float, float]], style: str) -> str:
    """Points, and what joins them."""
    found = list(points)
    path = " ".join(f"{x},{y}" for x, y in found)
    dots = [f'<circle class="{style}" cx="{x}" cy="{y}" r="2.5"/>' for x, y in found]
    return "\n".join([f'<polyline class="{style} curve" points="{path}"/>', *dots])
