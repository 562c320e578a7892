"""A picture of a run: how ours compares to ADK's MongoDB service."""

from __future__ import annotations

import math
from html import escape

from benchmark.plan import LIMIT, OURS, RIVAL
from benchmark.report import Report, circumstances, times_as_good

_LEFT, _RIGHT, _ROW, _TOP = 260, 70, 26, 64
_WIDTH = 760
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.faint { fill: #656d76; font-size: 12px }
.title { font-size: 15px; font-weight: 600 }
.figure { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
line { stroke: #d8dee4 }
.one { stroke: #656d76 }
.ours { fill: #1a7f37 }
.slower { fill: #cf222e }
.hand { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .faint { fill: #8d96a0 }
  .figure { stroke: #0d1117 }
  line { stroke: #30363d }
  .one { stroke: #8d96a0 }
  .ours { fill: #3fb950 }
  .slower { fill: #f85149 }
  .hand { fill: #58a6ff }
}
"""


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

    def at(factor: float) -> float:
        share = (math.log2(factor) - low) / (high - low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def bar(factor: float, style: str, y: int, height: int) -> str:
        start, end = sorted((at(1), at(factor)))
        size = f'width="{max(end - start, 1):.1f}" height="{height}"'
        return f'<rect class="{style}" x="{start}" y="{y}" rx="1.5" {size}/>'

    legend = f"medians; wide bar: {OURS}; narrow, blue: {LIMIT}"
    note = f"{circumstances(report['about'])}; {legend}"
    parts = [_text(12, 24, f"Times as fast as {RIVAL}", "title", "start")]
    parts.append(_text(12, 44, note, "faint", "start"))
    for power in range(low, high + 1):
        style = "one" if power == 0 else ""
        parts.append(_line(at(2**power), _TOP - 4, bottom, style))
        parts.append(_text(at(2**power), bottom + 18, f"{2**power:g}x", "faint"))
    for number, (name, ours, hand) in enumerate(rows):
        y = _TOP + _ROW * number
        style = "ours" if ours >= 1 else "slower"
        parts.append(_text(_LEFT - 10, y + 15, name, anchor="end"))
        parts.append(bar(ours, style, y + 3, 13))
        if hand:
            parts.append(bar(hand, "hand", y + 18, 3))
        end, figure = at(max(ours, 1)), f"{ours:.2g}x"
        parts.append(_text(end + 6, y + 14, figure, f"figure {style}", "start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 30}"'
        f' role="img" aria-label="Times as fast as {escape(RIVAL)}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _text(
    x: float, y: float, text: str, style: str = "", anchor: str = "middle"
) -> str:
    place = f'x="{x}" y="{y}" text-anchor="{anchor}"'
    return f'<text class="{style}" {place}>{escape(text)}</text>'


def _line(x: float, top: float, bottom: float, style: str) -> str:
    ends = f'x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"'
    return f'<line class="{style}" {ends}/>'
