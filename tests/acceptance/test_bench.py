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

ROOT = Path(__file__).parents[2]
WORKLOAD = "append, 32 at once"
ON_MONGODB = ("ours", "before", "adk mongo", "hand-written", "bare loop")


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmark", *arguments],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.mark.release
def test_every_contestant_is_measured(
    mongodb_uri: str, admin: MongoClient, tmp_path: Path
) -> None:
    """A table, JSON and a chart say how fast each is, and nothing is left behind."""
    contestants = [*ON_MONGODB, "adk sqlite", "adk in-memory"]
    figures, chart = tmp_path / "bench.json", tmp_path / "bench.svg"
    done = run(
        *("services", "--quick", "--only", WORKLOAD, "--seconds", "0.05"),
        *("--uri", mongodb_uri, "--against", ROOT, "--json", figures, "--svg", chart),
        *("--contestants", ",".join(contestants)),
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Side by side, rough: 2 rounds")
    report = json.loads(figures.read_text())
    (workload,) = report["workloads"]
    measured = workload["contestants"]
    assert set(contestants) == measured.keys()
    for name, each in measured.items():
        assert f"  {name} " in done.stdout
        assert each["median"] > 0 < each["p99"]
        assert each["client"] > 0
        assert (each["server"] or 0) > 0 or name not in ON_MONGODB
    drawn = ET.parse(chart)  # noqa: S314  by this very project
    assert drawn.getroot().tag.endswith("svg")
    left = [each for each in admin.list_database_names() if "adk_bench" in each]
    assert left == []


async def test_a_fast_wrong_answer_is_found(mongodb_uri: str, tmp_path: Path) -> None:
    """A service that forgets an event fails the check of what is stored."""
    from benchmark.contestants import Ours, Servers  # noqa: PLC0415  not on the path
    from benchmark.figures import WrongError  # noqa: PLC0415
    from benchmark.workloads import make_workloads  # noqa: PLC0415

    class Forgetful(Ours):
        async def make(self) -> Any:
            service = await super().make()
            append, left = service.append_event, [3]

            async def append_most(session: Session, event: Event) -> Event:
                left[0] -= 1
                return await append(session, event) if left[0] else event

            service.append_event = append_most
            return service

    contestant = Forgetful(Servers(mongodb_uri, "forgetful", str(tmp_path)))
    await contestant.open()
    workload = make_workloads()[WORKLOAD]
    try:
        await workload.prepare(contestant)
        await workload.sample(0)
        with pytest.raises(WrongError, match="31 events are stored, 32 were appended"):
            await workload.check()
    finally:
        await contestant.close()


@pytest.mark.release
def test_the_feed_is_measured(tmp_path: Path) -> None:
    """The program checks what it measures, and writes its figures."""
    figures = tmp_path / "bench.json"
    done = run("feed", "--subscriptions", "100", "--quick", "--json", figures)

    assert done.returncode == 0, done.stderr
    assert "rough: 2 rounds" in done.stdout
    assert json.loads(figures.read_text())["about"]["quick"]
