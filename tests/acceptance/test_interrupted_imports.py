"""An import that is killed or interrupted goes on, and leaves nothing in part."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from pymongo import MongoClient
from support.cli_runner import PATIENCE, call, start
from support.foreign_stores import Place, adk_mongodb, sql_sqlite, sqlite
from support.forked_processes import signalled
from support.sample_data import fill

from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import export_file
from mongo_session_service.transfer.sources import SessionHeader

SESSIONS = 8
EVENTS = 1_100
"""Of each session: more than are written at once."""
PIPED = 1_500
"""More than that by more than are drawn from a pipe at once."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of ADK's SQLite service, with long sessions and shared state."""
    path = tmp_path / "adk.db"
    asyncio.run(fill(SqliteSessionService(str(path))))
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM sessions")
        row = file.execute("SELECT * FROM events LIMIT 1").fetchone()
        event = json.loads(row[-1])
        file.execute("DELETE FROM events")
        for number in range(SESSIONS):
            key = ("app", "user", f"s{number}")
            values = (*key, '{"n": 1}', 1.5, 2.5)
            file.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", values)
            file.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    (f"{n}", *key, "inv", float(n), json.dumps(event | own))
                    for n in range(EVENTS)
                    for own in [{"id": f"{n}", "timestamp": float(n)}]
                ),
            )
    file.close()
    return path


def counts(admin: MongoClient, database: str) -> tuple[int, int]:
    stored = admin[database]
    return stored.sessions.count_documents({}), stored.events.count_documents({})


@pytest.mark.long
def test_ctrl_c_names_the_way_to_resume_an_import(
    large: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """An interrupted import ends with code 130 and the command that resumes it."""
    command = ["sqlite", str(large), mongodb_uri, "--database", database]

    with (
        admin[database].watch([{"$match": {"ns.coll": "events"}}]) as changes,
        start("import", *command) as process,
    ):
        next(changes)
        os.kill(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=PATIENCE)[1].decode()
    last = call("import", *command)

    assert process.returncode == 130
    assert "Interrupted. Progress is kept; run the same command again" in errors
    assert "Traceback" not in errors
    assert last.returncode == 0
    assert counts(admin, database) == (SESSIONS, SESSIONS * EVENTS)


@pytest.mark.release
@pytest.mark.parametrize("make", [sqlite, sql_sqlite, adk_mongodb])
async def test_an_import_may_end_at_any_moment(
    make: Any, place: Place, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """At 20 random ones, by Ctrl-C, a termination or a kill; another run ends it."""
    store = await make(place)
    command = [*store.command, mongodb_uri, "--database", database]
    chance = random.Random(28)  # noqa: S311  no secret
    codes: list[int | None] = []
    for number in range(20):
        admin.drop_database(database)
        sent = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL][number % 3]
        codes.append(
            await asyncio.to_thread(
                signalled,
                *("import", *command),
                admin=admin,
                database=database,
                changes=chance.randrange(1, 40),
                sent=sent,
            )
        )
        last = await asyncio.to_thread(call, "import", *command)
        verified = await asyncio.to_thread(call, "verify", *command, "--exact")

        assert (last.returncode, last.stderr) == (0, ""), (number, sent)
        assert (verified.returncode, verified.stderr) == (0, ""), (number, sent)
        assert counts(admin, database) == (5, 24), (number, sent)
    assert {130, -signal.SIGKILL} <= {*codes}, codes


@pytest.mark.long
def test_ctrl_c_ends_the_wait_for_an_idle_pipe(
    mongodb_uri: str, database: str, admin: MongoClient, tmp_path: Path
) -> None:
    """While it is still open, the import ends as any other; a file resumes it."""
    session = SessionHeader(SessionKey("app", "user", "s"), {}, update_time=2.5)
    events = [Event(id=f"{n}", author="x", timestamp=float(n)) for n in range(PIPED)]
    said = [export_file.HEADER, *map(export_file.encode_item, [session, *events])]
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join([*said, export_file.encode_end(1, PIPED), ""]))
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
    assert "Interrupted. Progress is kept; run the same command again" in errors
    assert "Traceback" not in errors
    assert "Fatal" not in errors
    assert (last.returncode, last.stderr) == (0, "")
    assert counts(admin, database) == (1, PIPED)
