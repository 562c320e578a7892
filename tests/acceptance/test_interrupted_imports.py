"""An import that is killed or interrupted goes on, and leaves nothing in part."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from commands import PATIENCE, call, start
from filling import fill
from google.adk.events import Event
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from pymongo import MongoClient

from mongo_session_service.records import SessionKey
from mongo_session_service.transfer import lines
from mongo_session_service.transfer.items import SessionHeader

SESSIONS = 8
EVENTS = 1_500
"""Of each session: more than are written at once."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of ADK's SQLite service, its sessions made long."""
    path = tmp_path_factory.mktemp("large") / "adk.db"
    asyncio.run(fill(SqliteSessionService(str(path))))
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM sessions")
        row = file.execute("SELECT * FROM events LIMIT 1").fetchone()
        file.execute("DELETE FROM events")
        for number in range(SESSIONS):
            key = ("app", "user", f"s{number}")
            values = (*key, '{"n": 1}', 1.5, 2.5)
            file.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", values)
            file.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (f"{n}", *key, "inv", float(n), row[-1].replace(row[0], f"{n}"))
                    for n in range(EVENTS)
                ),
            )
    file.close()
    return path


def counts(admin: MongoClient, database: str) -> tuple[int, int]:
    stored = admin[database]
    return stored.sessions.count_documents({}), stored.events.count_documents({})


def interrupt(
    process: subprocess.Popen[bytes],
    admin: MongoClient,
    database: str,
    after: int,
    how: signal.Signals,
) -> str:
    """Signal an import as soon as so many events are stored; what it said last."""
    with process, admin[database].watch([{"$match": {"ns.coll": "events"}}]) as changes:
        for _ in range(after):
            next(changes)
        os.kill(process.pid, how)
        _, errors = process.communicate(timeout=60)
    return errors.decode()


def test_a_killed_import_goes_on(
    large: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Killed again and again, it ends with every event once, and none in part."""
    command = ["sqlite", str(large), mongodb_uri, "--database", database]

    for after in (1, 1_001, 2_500):
        process = start("import", *command)
        interrupt(process, admin, database, after, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        for session in admin[database].sessions.find({"revision": {"$gte": 0}}):
            assert session["revision"] == EVENTS
    last = call("import", *command)
    verified = call("verify", *command, "--exact")

    assert (last.returncode, last.stderr) == (0, "")
    assert counts(admin, database) == (SESSIONS, SESSIONS * EVENTS)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_ctrl_c_says_how_to_go_on(
    large: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """An interrupted import ends with code 130 and a word on how to go on."""
    command = ["sqlite", str(large), mongodb_uri, "--database", database]

    process = start("import", *command)
    errors = interrupt(process, admin, database, 1, signal.SIGINT)
    last = call("import", *command)

    assert process.returncode == 130
    assert "Interrupted. What was done stays; the same command goes on" in errors
    assert "Traceback" not in errors
    assert last.returncode == 0
    assert counts(admin, database) == (SESSIONS, SESSIONS * EVENTS)


def test_ctrl_c_ends_the_wait_for_a_silent_pipe(
    mongodb_uri: str, database: str, admin: MongoClient, tmp_path: Path
) -> None:
    """While it is still open, the import ends as any other; a file goes on with it."""
    session = SessionHeader(SessionKey("app", "user", "s"), {}, update_time=2.5)
    events = [Event(id=f"{n}", author="x", timestamp=float(n)) for n in range(EVENTS)]
    said = [lines.as_text(lines.HEADER), *map(lines.to_line, [session, *events])]
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join([*said, lines.end_line(1, EVENTS), ""]))
    target = [mongodb_uri, "--database", database]
    theirs, ours = os.pipe()

    with (
        admin[database].watch([{"$match": {"ns.coll": "events"}}]) as changes,
        start("import", "jsonl", "-", *target, stdin=theirs) as process,
        os.fdopen(ours, "wb") as pipe,
    ):
        os.close(theirs)
        pipe.write("\n".join([*said, ""]).encode())
        pipe.flush()
        for _ in range(1_000):
            next(changes)
        os.kill(process.pid, signal.SIGINT)
        process.wait(PATIENCE)
        errors = process.stderr.read().decode() if process.stderr else ""
    last = call("import", "jsonl", str(path), *target)

    assert process.returncode == 130
    assert "Interrupted. What was done stays; the same command goes on" in errors
    assert "Traceback" not in errors
    assert "Fatal" not in errors
    assert (last.returncode, last.stderr) == (0, "")
    assert counts(admin, database) == (1, EVENTS)
