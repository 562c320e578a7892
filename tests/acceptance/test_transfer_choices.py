"""What is moved, and what becomes of conflicts and errors, as the options say."""

from __future__ import annotations

import sqlite3

from pymongo import MongoClient
from support.cli_runner import call
from support.foreign_stores import Place, sqlite
from support.transfers import IDS, NAMED


async def test_a_conflict_fails_or_is_skipped(
    place: Place, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """As --on-conflict has it, by default it fails; exit code and output name which."""
    store = await sqlite(place)
    command = [*store.command, mongodb_uri, "--database", database]
    call("import", *command)
    changed = {"$set": {"event.invocation_id": "changed"}}
    admin[database].events.update_one({"_id": {**IDS, "revision": 6}}, changed)
    conflict = (
        "session 's1' of user 'ada' in app 'weather': event 6 ('s1-2-agent') differs"
    )

    failed = call("import", *command)
    skipped = call("import", *command, "--on-conflict", "skip")
    kept = call("verify", *command)

    assert failed.returncode == 1
    assert f"Error: The target holds something else: {conflict}." in failed.stderr
    assert failed.stderr.endswith(" To continue without it: --on-conflict skip.\n")
    assert "Policies" not in failed.stderr
    assert (skipped.returncode, skipped.stderr) == (3, f"  {conflict}\n")
    assert "4 unchanged, 1 left out for a conflict" in skipped.stdout
    assert kept.returncode == 3


async def test_unreadable_sessions_fail_an_import_or_are_skipped(
    place: Place, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """All are reported, also by a dry run; --on-error decides what follows."""
    store = await sqlite(place)
    with sqlite3.connect(place.folder / "sessions.db") as file:
        file.execute("UPDATE events SET event_data = '{' WHERE id = 's2-1-agent'")
        file.execute("UPDATE sessions SET state = '[]' WHERE user_id = 'bob/x'")
    file.close()
    command = [*store.command, mongodb_uri, "--database", database]
    broken = {
        f"  event 's2-1-agent' of {NAMED.format('s2', 'ada')}: it holds broken JSON",
        f"  {NAMED.format('s/3', 'bob/x')}: a JSON object was expected, not a list",
    }

    tried = call("import", *command, "--dry-run")
    untouched = admin[database].list_collection_names()
    failed = call("import", *command)
    skipped = call("import", *command, "--on-error", "skip")
    verified = call("verify", *command)

    for done, told in ((tried, "Would move 17 events"), (skipped, "Moved 17 events")):
        assert done.returncode == 3
        assert set(done.stderr.splitlines()) == broken
        assert told in done.stdout
        assert "2 problems" in done.stdout
    assert untouched == []
    assert failed.returncode == 1
    assert failed.stderr.startswith("Error: Cannot be moved: ")
    assert failed.stderr.endswith(" To continue without it: --on-error skip.\n")
    assert failed.stderr.count("\n") == 1
    assert verified.returncode == 3
    assert "2 differences" in verified.stdout
