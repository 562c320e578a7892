"""The demo, as a newcomer starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pymongo import MongoClient
from support.patience import PATIENCE

DEMO = Path(__file__).parents[2] / "scripts" / "demo_agent.py"


def demo(*arguments: str) -> list[str | Path]:
    """The command that starts the demo."""
    return [sys.executable, DEMO, *arguments]


def database_of(output: str) -> str:
    """The name of the database a demo worked in."""
    named = re.search(r"a new database, (adk_demo_\w+)\.", output)
    assert named is not None
    return named[1]


@pytest.mark.long
def test_demo_continues_a_session_in_a_new_process() -> None:
    """Without a URI, it does so on a MongoDB of its own.

    That it drops its database elsewhere, too, is seen where it is interrupted.
    """
    environment = {k: v for k, v in os.environ.items() if k != "MONGODB_URI"}

    result = subprocess.run(
        demo(),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert (result.returncode, result.stderr) == (0, "")
    assert "Starting a throw-away MongoDB" in result.stdout
    processes = re.findall(r"== The (first|second) process, (\d+) ", result.stdout)
    assert [part for part, _ in processes] == ["first", "second"]
    assert len({pid for _, pid in processes}) == 2
    before, after = result.stdout.split("== The second process")
    pushed = re.findall(r"pushed after \d+ ms: (r\d) sets", before)
    assert pushed == ["r3", "r4", "r7", "r8"]
    assert "\n9 changes were pushed, typically " in before
    assert "Session 'monday' is there, with 8 events" in after
    assert "  state  {'app:forecasts_given': 2, 'user:home_city': 'Lisbon'}\n" in after
    assert "sessions     monday, with 12 in events; its state:\n" in after
    assert "sessions     tuesday, with 4 in events; its state:\n" in after
    assert 'db.sessions.find({"state.forecast.sky": "rain"}, {_id: 1})\n    ' in after
    assert "- session_service = InMemorySessionService()\n+ session_service" in after
    commands = re.findall(r"\n\S+/mongo-session-service (.*)", after)
    assert commands == ["mongod", "live", "doctor"]
    assert result.stdout.count("\n") <= 64
    assert "\033" not in result.stdout
    assert f"Database {database_of(before)} is dropped again.\n" in after


@pytest.mark.release
def test_demo_keeps_its_database_when_asked(
    mongodb_uri: str, admin: MongoClient
) -> None:
    """With --keep, what the demo stored can be looked at afterwards."""
    result = subprocess.run(
        demo("--uri", mongodb_uri, "--keep"),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )

    database = database_of(result.stdout)
    assert f"mongo-session-service --database {database} watch\n" in result.stdout
    try:
        assert admin[database].events.count_documents({}) == 16
    finally:
        admin.drop_database(database)


@pytest.mark.long
def test_demo_interrupted_leaves_nothing(mongodb_uri: str, admin: MongoClient) -> None:
    """Ctrl-C ends the demo's processes and drops its database."""
    with subprocess.Popen(
        demo("--uri", mongodb_uri),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output = ""
            while not (found := re.search(r"first process, (\d+) ", output)):
                line = process.stdout.readline()
                assert line, output
                output += line
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()

    assert (process.returncode, errors) == (130, "\ndemo: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[1]), 0)
    assert database_of(output) not in admin.list_database_names()
