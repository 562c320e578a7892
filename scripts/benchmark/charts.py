"""Charts of figures, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from benchmark.circumstances import described

GOOD, BAD, OTHER = "#2a9d5c", "#c8442f", "#3b6fb6"
# The same figures make the same file.
STYLE = {
    "svg.hashsalt": "bench",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_services(report: Mapping[str, Any], file: Path) -> None:
    """Draw how many times as fast this package is, by workload.

    As ADK's MongoDB service, beside hand-written code; or as the package was before.
    """
    rows = [(each["name"], each["contestants"]) for each in report["workloads"]]
    is_before = any("before" in row for _, row in rows)
    than = "before" if is_before else "adk mongo"
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.6, 1.2 + 0.32 * len(rows)))
        for at, (_, row) in enumerate(rows):
            ours = _times(row, "ours", than)
            hand = _times(row, "hand-written", than)
            if ours:
                color = GOOD if ours >= 1 else BAD
                axes.barh(at, ours - 1, left=1, height=0.6, color=color)
                axes.annotate(
                    f"{ours:.2g}x",
                    (1.01, at),
                    xycoords=("axes fraction", "data"),
                    va="center",
                    color=color,
                )
            if hand:
                axes.plot(hand, at, marker="D", color=OTHER, markersize=5)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}x"))
        axes.margins(x=0.15)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.invert_yaxis()
        axes.set_title(f"Times as fast as {than}", loc="left", fontweight="bold")
        note = described(report["about"])
        if not is_before:
            note += "; bars: this package; diamonds: hand-written"
        axes.set_xlabel(note)
        figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)


def _times(row: Mapping[str, Any], name: str, than: str) -> float | None:
    times: Mapping[str, float] = row.get(name, {}).get("times_as_good_as", {})
    return times.get(than)
