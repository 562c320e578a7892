"""The benchmark: what it tells, and that a fast wrong answer is not a good one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from pymongo import MongoClient

SCRIPTS = Path(__file__).parents[2] / "scripts"
WORKLOAD = "append, 8 at once"


def test_every_contestant_is_measured(
    mongodb_uri: str, admin: MongoClient, tmp_path: Path
) -> None:
    """A table, JSON and a picture say how fast each is, and nothing is left behind."""
    figures, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmark", "--quick", "--only", WORKLOAD),
            *("--uri", mongodb_uri, "--json", figures, "--svg", picture),
        ],
        cwd=SCRIPTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Side by side, rough: 2 rounds")
    report = json.loads(figures.read_text())
    (workload,) = report["workloads"]
    assert workload["name"] == WORKLOAD
    measured = workload["contestants"]
    names = {"ours", "ours on Motor", "adk mongo", "hand-written"}
    assert names | {"adk sqlite", "adk in-memory"} == measured.keys()
    for name, each in measured.items():
        assert f"  {name} " in done.stdout
        assert report["units"].keys() < each.keys()
        assert each["median"] > 0 < each["p99"]
        assert each["client"] > 0
        assert (each["server"] or 0) > 0 or name not in names
    drawn = ET.parse(picture)  # noqa: S314  by this very project
    assert drawn.getroot().tag.endswith("svg")
    left = [each for each in admin.list_database_names() if "adk_bench" in each]
    assert left == []


async def test_a_fast_wrong_answer_is_found(
    mongodb_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a service that forgets an event the benchmark says so, and fails."""
    monkeypatch.syspath_prepend(SCRIPTS)
    from benchmark.contestants import Ours, Place  # noqa: PLC0415  not on the path
    from benchmark.run import Pace, Run  # noqa: PLC0415
    from benchmark.services import chosen  # noqa: PLC0415

    class Forgetful(Ours):
        async def make(self) -> Any:
            service = await super().make()
            append, left = service.append_event, [3]

            async def append_most(session: Session, event: Event) -> Event:
                left[0] -= 1
                return await append(session, event) if left[0] else event

            service.append_event = append_most
            return service

    place = Place(mongodb_uri, "forgetful", str(tmp_path))
    contestant = Forgetful(place)
    await contestant.open()
    run = Run([contestant], Pace(rounds=1, budget=0.01, is_quick=True))
    try:
        await run.run(chosen(place, WORKLOAD))
    finally:
        await contestant.drop()
        await contestant.close()

    (wrong,) = run.wrong
    assert wrong.startswith(f"{WORKLOAD}, ours: ")
    assert "events are stored" in wrong


async def measured(mongodb_uri: str, *subjects: str) -> list[dict[str, Any]]:
    """What the curves tell of little work, measured once."""
    from benchmark import curves  # noqa: PLC0415  not on the path
    from benchmark.contestants import Place  # noqa: PLC0415
    from benchmark.run import Pace  # noqa: PLC0415

    place, pace = Place(mongodb_uri, "curves", ""), Pace(1, 0.01, is_quick=True)
    return await curves.measure(place, pace, subjects, owns_server=False)


async def test_every_amount_of_work_is_measured(
    mongodb_uri: str, admin: MongoClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curves have each amount of what grows, and nothing is left behind."""
    monkeypatch.syspath_prepend(SCRIPTS)
    from benchmark.curves import QUICK  # noqa: PLC0415  not on the path

    growth = await measured(mongodb_uri, *QUICK)

    amounts = [
        [point["at"] for point in line["points"]]
        for each in growth
        for line in each["lines"]
    ]
    lines = {"sessions": 4, "events": 5, "subscribers": 2, "appends": 1}
    assert amounts == [[*QUICK[each]] for each in QUICK for _ in range(lines[each])]
    for each in growth:
        for line in each["lines"]:
            for point in line["points"]:
                assert all(figure > 0 for figure in point.values()), line["name"]
    left = [each for each in admin.list_database_names() if "adk_bench" in each]
    assert left == []


async def test_a_wrong_answer_ends_the_curves(
    mongodb_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads less than was stored is not measured."""
    monkeypatch.syspath_prepend(SCRIPTS)
    from benchmark.measure import WrongError  # noqa: PLC0415  not on the path
    from benchmark.stored import Stored  # noqa: PLC0415

    async def lose_the_first(stored: Stored) -> None:
        await stored.ours.database.events.delete_many({"_id.revision": 1})

    monkeypatch.setattr(Stored, "settle", lose_the_first)

    with pytest.raises(WrongError, match="0 events of session"):
        await measured(mongodb_uri, "sessions")


@pytest.mark.release
@pytest.mark.parametrize("what", ["curves", "starts"])
def test_command_reports(mongodb_uri: str, tmp_path: Path, what: str) -> None:
    """A table, JSON and, of curves, a picture."""
    figures, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    command = [sys.executable, "-m", "benchmark", what, "--quick", "--json", figures]
    done = subprocess.run(
        [*command, *(("--svg", picture) if what == "curves" else ())],
        cwd=SCRIPTS,
        env={**os.environ, "MONGODB_URI": mongodb_uri},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert "rough: 2 rounds" in done.stdout
    assert json.loads(figures.read_text())["about"]["quick"]
    if what == "curves":
        drawn = ET.parse(picture)  # noqa: S314  by this very project
        assert "What a call costs" in drawn.getroot().attrib["aria-label"]
