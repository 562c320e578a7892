"""What the benchmark tells of figures made by hand: it must not flatter."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
QUIET = {"quick": False, "rounds": 5, "cpus": 2, "load_before": [1.9, 3.0, 3.0]}
QUICK = {**QUIET, "quick": True, "rounds": 2}


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def reported(about: dict[str, Any], run: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The report of a run of these figures, by unit and workload, and by contestant."""
    from benchmark.measure import Result, Turn  # noqa: PLC0415  not on the path before
    from benchmark.report import report  # noqa: PLC0415

    results = {}
    for unit_and_name, figures in run.items():
        unit, name = unit_and_name.split(" ", 1)
        results[name] = {
            contestant: Result(
                unit, [Turn([1.0] * value, 1.0) if unit == "/s" else Turn([value])]
            )
            for contestant, value in figures.items()
        }
    return report(results, about)


ALONE = {"ms append alone": {"ours": 2.0, "adk mongo": 4.0, "hand-written": 1.0}}


def texts(report: dict[str, Any]) -> tuple[str, str, str]:
    """The table, the goals and the picture."""
    from benchmark.chart import chart  # noqa: PLC0415
    from benchmark.tables import table, targets  # noqa: PLC0415

    return table(report), targets(report), chart(report)


def test_full_run_is_judged() -> None:
    """Five rounds on a machine with nothing else to do are held against the goals."""
    report = reported(QUIET, ALONE)
    table, goals, picture = texts(report)

    assert [each["reached"] for each in report["targets"]] == [True, False]
    assert "<= 0.72x the time of adk mongo" in goals
    assert goals.endswith("1 of 2 reached.")
    assert table.startswith("Side by side, 5 rounds\n")
    assert ">5 rounds; medians" in picture


@pytest.mark.parametrize(
    ("about", "rounds"),
    [(QUICK, "2 rounds"), ({**QUIET, "rounds": 1}, "1 round")],
)
def test_rough_run_is_not_judged(about: dict[str, Any], rounds: str) -> None:
    """Few rounds are called rough wherever figures are shown, and reach no goal."""
    report = reported(about, ALONE)
    table, goals, picture = texts(report)

    assert [each["reached"] for each in report["targets"]] == [None, None]
    assert "reached" not in goals
    assert "MISSED" not in goals
    assert table.startswith(f"Side by side, rough: {rounds}\n")
    assert f">rough: {rounds}; medians" in picture


def test_busy_machine_is_told_of() -> None:
    """More load than CPUs before the run is in the heading and in the picture."""
    about = {**QUIET, "load_before": [2.1, 0.0, 0.0]}
    table, _, picture = texts(reported(about, ALONE))

    busy = "5 rounds; busy: load average 2.1 on 2 CPUs at its start"
    assert table.startswith(f"Side by side, {busy}\n")
    assert busy in picture


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "times"),
    [("ms", 2.0, 4.0, 2), ("/s", 40, 20, 2), ("MB", 4.0, 2.0, 0.5)],
)
def test_more_is_better(unit: str, ours: float, theirs: float, times: float) -> None:
    """A ratio above 1 is good news, whatever the unit."""
    from benchmark.report import times_as_good  # noqa: PLC0415

    report = reported(QUIET, {f"{unit} it": {"ours": ours, "adk mongo": theirs}})
    (workload,) = report["workloads"]

    assert times_as_good(workload, "ours", "adk mongo") == times


def test_every_figure_has_a_unit() -> None:
    """The JSON names the units of all that it tells of a contestant's calls."""
    report = reported(QUIET, ALONE)
    (workload,) = report["workloads"]

    others = {"calls", "rounds", "note"}
    assert report["units"].keys() | others == workload["contestants"]["ours"].keys()


@pytest.mark.parametrize("ours", [1.01, 1.4, 2.0, 3.9, 31.0, 0.9, 0.51])
@pytest.mark.parametrize("hand", [0.51, 0.9, 1.01, 1.45, 2.1, 31.0])
def test_figures_stand_at_their_bars(ours: float, hand: float) -> None:
    """A bar's figure is at its end, in its colour, and touches nothing else."""
    times = {"ours": 1000 / ours, "adk mongo": 1000.0, "hand-written": 1000 / hand}
    _, _, picture = texts(reported(QUIET, {"ms it": times}))
    drawn = ET.fromstring(picture)  # noqa: S314  by this very project
    wide, narrow = (each for each in drawn if each.tag.endswith("rect"))
    (figure,) = (each for each in drawn if "figure" in each.get("class", ""))

    assert figure.text == f"{ours:.2g}x"
    assert figure.get("class", "").split() == ["figure", wide.get("class")]
    left, baseline = float(figure.attrib["x"]), float(figure.attrib["y"])
    end = float(wide.attrib["x"]) + float(wide.attrib["width"])
    assert 0 < left - end < 10
    assert float(wide.attrib["y"]) < baseline < float(narrow.attrib["y"]) - 2
    assert left + 34 < 760


def drawn_growth(ends: list[float]) -> ET.Element:
    """The picture of curves that begin at 1 ms and end there, of ten and a thousand."""
    from benchmark.panels import picture  # noqa: PLC0415  not on the path before

    lines = [
        {
            "name": f"line {number}",
            "points": [
                {"at": at, "client": micros / 2, "server": micros / 2}
                for at, micros in ((10, 1000.0), (1000, end))
            ],
        }
        for number, end in enumerate(ends)
    ]
    growth = [{"name": "Things", "axis": "things", "note": "", "lines": lines}]
    drawn = picture({"about": QUIET, "growth": growth})
    return ET.fromstring(drawn)  # noqa: S314  by this very project


@pytest.mark.parametrize(
    "ends",
    [
        [1000.0] * 5,
        [1000.0, 990.0, 1010.0, 1.0],
        [1e7, 9.9e6, 1000.0, 300.0, 0.5],
        [5000.0, 2000.0],
    ],
)
def test_curves_can_be_told_apart(ends: list[float]) -> None:
    """Each has a name beside its end, none touches another, all are in the picture."""
    drawn = drawn_growth(ends)
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    names = [each for each in drawn if (each.text or "").startswith("line ")]
    places = sorted(float(each.attrib["y"]) for each in names)

    assert len(names) == len(ends)
    assert len({each.attrib["class"] for each in names}) == len(ends)
    assert all(b - a >= 14 for a, b in pairwise(places))
    assert places[-1] < height
    assert places[0] > 0
    for each in drawn.iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 < float(each.attrib["cx"]) < width
        assert 0 < float(each.attrib["cy"]) < height


def test_level_curve_is_level() -> None:
    """What costs the same is drawn as level; what costs ten times as much rises."""
    level, rising = (
        [float(pair.split(",")[1]) for pair in each.attrib["points"].split()]
        for each in drawn_growth([1000.0, 10_000.0])
        if each.tag.endswith("polyline")
    )

    assert level[0] == level[1] == rising[0]
    assert rising[1] < rising[0] - 50


@pytest.mark.parametrize(
    ("spans", "trips"),
    [
        ([], 0),
        ([(1.0, 2.0), (2.5, 3.0)], 2),
        ([(1.0, 2.0), (1.1, 1.9), (1.2, 4.0)], 1),
        ([(1.0, 2.0), (1.5, 3.0), (2.5, 4.0), (5.0, 6.0)], 3),
    ],
)
def test_commands_at_once_are_one_round_trip(
    spans: list[tuple[float, float]], trips: int
) -> None:
    """Only what begins when the one before has ended is a round trip more."""
    from benchmark.starts import Commands  # noqa: PLC0415  not on the path before

    commands = Commands()
    commands.spans = spans[::-1]

    assert commands.round_trips() == trips
