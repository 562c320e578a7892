"""Turns that wait for a person and go on after the process has died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from support.patience import PATIENCE
from support.scripted_model import revisions, stored, texts_of

from mongo_session_service import MongoSessionService

# What is started once for all tests here is started by one worker.
pytestmark = pytest.mark.xdist_group("resumed")

SCRIPT = Path(__file__).parents[1] / "support" / "paused_turns.py"

BY_ADK = {
    "hint": (
        "Please approve or reject the tool call send() by responding with a"
        " FunctionResponse with an expected ToolConfirmation payload."
    ),
    "confirmed": False,
}
BY_TOOL = {
    "hint": "How much may be sent?",
    "confirmed": False,
    "payload": {"approved": 0, "$of": 50},
}


@dataclass(frozen=True)
class TwoHalves:
    """What two processes left behind, one after the other."""

    database: str
    paused: dict[str, dict[str, Any]]
    """Each session's state when the first process had died."""
    ends: dict[str, dict[str, Any]]
    """What the second process saw and told the model."""


@pytest.fixture(scope="module")
def halves(mongodb_uri: str, admin: MongoClient[Any]) -> Iterator[TwoHalves]:
    """Begins every case in a process that is killed, and ends it in another."""
    database = f"test_{uuid.uuid4().hex}"

    def run(half: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, SCRIPT, database, half],
            env={
                **os.environ,
                "MONGODB_URI": mongodb_uri,
                "PYTHONPATH": str(SCRIPT.parents[1]),
            },
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE,
        )

    try:
        begun = run("begin")
        assert begun.returncode == -signal.SIGKILL, begun.stderr
        sessions = admin[database].sessions.find()
        paused = {found["_id"]["session_id"]: found["state"] for found in sessions}
        finished = run("finish")
        assert finished.returncode == 0, finished.stderr
        yield TwoHalves(database, paused, json.loads(finished.stdout))
    finally:
        admin.drop_database(database)


REJECTED = {"error": "This tool call is rejected."}
CONFIRMATION = "adk_request_confirmation"


@pytest.mark.parametrize(
    ("case", "waited", "asked", "told", "changed"),
    [
        ("approved", CONFIRMATION, BY_ADK, {"sent": 50}, {"balance": 50}),
        ("approved, resumable", CONFIRMATION, BY_ADK, {"sent": 50}, {"balance": 50}),
        ("rejected", CONFIRMATION, BY_ADK, REJECTED, {}),
        ("payload", CONFIRMATION, BY_TOOL, {"sent": 20}, {"balance": 80}),
        ("long running", "apply_for", None, {"status": "granted"}, {"applied": 50}),
    ],
    ids=["approved", "resumable app", "rejected", "payload", "long running"],
)
async def test_resuming_in_another_process(
    halves: TwoHalves,
    mongodb_uri: str,
    admin: MongoClient[Any],
    *,
    case: str,
    waited: str,
    asked: dict[str, Any] | None,
    told: dict[str, Any],
    changed: dict[str, Any],
) -> None:
    """A call that awaits a person's answer is carried out by a later process, once."""
    assert halves.paused[case]["balance"] == 100
    assert halves.ends[case] == {"waited": waited, "asked": asked, "told": [told]}

    async with MongoSessionService(mongodb_uri, database=halves.database) as service:
        session = await stored(service, case)
    assert session.state == {"balance": 100, "user:sent": 120, **changed}
    (invocation,) = {event.invocation_id for event in session.events}
    assert invocation
    answers = [event for event in session.events if texts_of(event.content)]
    assert texts_of(answers[-1].content) == ["Done."]
    last, log = revisions(admin, halves.database, case)
    assert log == list(range(1, last + 1))
