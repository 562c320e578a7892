"""The benchmark: what it tells, and that a fast wrong answer is not a good one."""

from __future__ import annotations

import json
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
