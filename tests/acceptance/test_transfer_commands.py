"""Import, verify and export, from the command line."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.cli_runner import call, run
from support.encryption_hooks import (
    CANARY,
    KEY,
    SEALED,
    STATE,
    canary_event,
    clear_text,
    cluster_time,
)
from support.foreign_stores import Place, sql_postgresql, sqlite
from support.sample_data import fill

from mongo_session_service import MongoSessionService


async def test_verify_names_an_empty_target_once(
    place: Place, mongodb_uri: str, database: str
) -> None:
    """A misspelt database is named in one line, and the differences are counted."""
    store = await sqlite(place)

    done = call("verify", *store.command, mongodb_uri, "--database", database)

    assert done.returncode == 3
    assert done.stderr.startswith("The target holds no session of this selection. ")
    assert done.stderr.count("\n") == 1
    assert done.stdout.endswith(" differences.\n")


async def test_an_export_goes_through_a_pipe_and_back(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """What an export prints is what it writes, and what an import reads."""
    await fill(service)
    path = tmp_path / "sessions.jsonl"

    piped = call("export", mongodb_uri, "--database", database)
    filed = call("export", mongodb_uri, "--database", database, "--to", str(path))
    other = [mongodb_uri, "--database", database, "--prefix", "copy_"]
    imported = run("import", "jsonl", "-", *other, stdin=piped.stdout.encode())
    verified = run("verify", "jsonl", str(path), *other)

    assert (piped.returncode, filed.returncode) == (0, 0)
    assert path.read_text() == piped.stdout
    assert "Exported 5 sessions with 24 events" in piped.stderr
    assert "5 new" in imported.stdout
    assert (verified.returncode, imported.stderr) == (0, "")


def test_a_misspelt_database_is_named_and_not_created(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """An export of nothing is not taken for a backup, and leaves nothing behind."""
    done = call("export", mongodb_uri, "--database", database)

    assert done.returncode == 3
    assert f"from database {database} on " in done.stderr
    assert "Check the database, --prefix, --app" in done.stderr
    assert admin[database].list_collection_names() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sql", "no url"], "cannot be used"),
        (["sql", "postgresql://u:secret@127.0.0.1:1/x"], "are host and port"),
        (["sql", "mysql://u:secret@127.0.0.1/x"], "pip install aiomysql"),
        (["sql", "sqlite:////nowhere.db"], "no SQLite database at"),
        (["sqlite", "/nowhere.db"], "no SQLite database at"),
        (["adk-mongodb", "secret"], "MongoDB URI cannot be used"),
        (["jsonl", "/nowhere.jsonl"], "No such file"),
        (["jsonl", __file__], "Line 1: this is not a file of exported sessions"),
        (["sqlite", "{empty}"], "does not hold the tables"),
        (["sql", "sqlite:///{empty}"], "holds no ADK sessions"),
    ],
)
def test_errors_are_one_line_with_a_remedy(
    mongodb_uri: str, tmp_path: Path, arguments: list[str], told: str
) -> None:
    """A source that cannot be used ends in one line, without secrets, and code 1."""
    empty = tmp_path / "empty.db"
    empty.touch()
    arguments = [each.format(empty=empty) for each in arguments]

    command = ["import", *arguments, mongodb_uri, "--database", "never_made"]

    done = call(*command)
    in_full = call(*command, "--debug")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert told in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" in in_full.stderr


async def test_secrets_come_from_the_environment(
    place: Place, mongodb_uri: str, database: str
) -> None:
    """URLs and passwords need not be on the command line, nor are they shown."""
    store = await sql_postgresql(place)
    url = store.command[1].replace("postgres:@", "postgres@")
    hidden = {
        "SOURCE_URL": url,
        "SOURCE_PASSWORD": "s3cr3t",
        "MONGODB_URI": mongodb_uri,
    }

    done = call("import", "sql", "--database", database, **hidden)

    assert (done.returncode, done.stderr) == (0, "")
    assert "5 new" in done.stdout
    assert "s3cr3t" not in done.stdout


async def test_one_conversation_is_brought_back_from_a_backup(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """With all its events; others, and the state that it shared, stay as they are."""
    await fill(service)
    path, place = str(tmp_path / "all.jsonl"), (mongodb_uri, "--database", database)
    one = ("--app", "weather", "--user", "ada", "--session", "s1")
    before = await service.get_session(
        app_name="weather", user_id="ada", session_id="s1"
    )
    assert before is not None
    call("export", *place, "--to", path)
    await service.delete_session(app_name="weather", user_id="ada", session_id="s1")
    await service.create_session(
        app_name="weather", user_id="ada", state={"user:city": "Rome"}
    )

    exported = call("export", *place, *one[:-1], "s2")
    restored = call("import", "jsonl", path, *place, *one)
    verified = call("verify", "jsonl", path, *place, *one)

    assert exported.stdout.count('{"session":') == 1
    assert not re.search('^{"(app|user)_state"', exported.stdout, re.MULTILINE)
    assert restored.stdout.endswith("1 new.\n")  # a file has nothing to catch up with
    assert verified.stdout.endswith("no differences.\n")
    after = await service.get_session(
        app_name="weather", user_id="ada", session_id="s1"
    )
    assert after is not None
    assert after.events == before.events
    assert after.state == before.state | {"user:city": "Rome"}


async def test_a_conversation_that_has_gone_on_is_not_brought_back(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """The command says what to do, and does not count as done; that done, it is."""
    ids = {"app_name": "weather", "user_id": "ada", "session_id": "s1"}
    path, place = str(tmp_path / "one.jsonl"), (mongodb_uri, "--database", database)
    one = ("--app", "weather", "--user", "ada", "--session", "s1")
    await service.create_session(**ids)
    await service.append(**ids, event=Event(id="e", author="x"))
    call("export", *place, *one, "--to", path)
    await service.append(**ids, event=Event(id="later", author="x"))

    refused = call("import", "jsonl", path, *place, *one)
    call("erase", *ids.values(), "--uri", *place, "--yes")
    restored = call("import", "jsonl", path, *place, *one)

    assert (refused.returncode, restored.returncode) == (3, 0)
    assert "1 continued here" in refused.stdout
    assert "`erase` the session first" in refused.stderr
    session = await service.get_session(**ids)
    assert session is not None
    assert [each.id for each in session.events] == ["e"]


async def test_an_export_has_events_of_a_later_adk_as_they_are_stored(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
    tmp_path: Path,
) -> None:
    """They end no export, are counted, and are a problem of who imports them here."""
    await fill(service)
    later = {"n": [1, b"\xff"]}
    events = admin[database]["events"]
    events.update_one({"event.id": "s2-1-user"}, {"$set": {"event.later": later}})
    own = {"event.actions.later": later}  # of which ADK can read no event at all
    events.update_one({"event.id": "s2-2-user"}, {"$set": own})
    path, place = str(tmp_path / "all.jsonl"), (mongodb_uri, "--database", database)

    exported = call("export", *place, "--to", path)
    imported = call(
        "import", "jsonl", path, *place, "--prefix", "c_", "--on-error", "skip"
    )

    assert exported.returncode == 0
    assert (
        "2 events that this release of ADK cannot read: exported as" in exported.stderr
    )
    assert "with 24 events" in exported.stderr
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    found = {it["event"]["id"]: it["event"] for it in lines if "event" in it}
    written = {"n": [1, {"%bytes": "/w=="}]}
    assert found["s2-1-user"]["later"] == written
    assert found["s2-2-user"]["actions"]["later"] == written
    assert imported.returncode == 3
    assert "no event that this release of ADK can read" in imported.stderr
    assert "Moved 22 events" in imported.stdout


async def test_an_export_leaves_out_what_it_may_skip(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """A document that another tool has changed ends it, or is named and left out."""
    await fill(service)
    broken = {"$set": {"state": "text"}}
    admin[database]["sessions"].update_one({"_id.session_id": "s2"}, broken)
    exporting = ("export", mongodb_uri, "--database", database)

    ended = call(*exporting)
    skipping = call(*exporting, "--on-error", "skip")

    assert ended.returncode == 1
    assert "To continue without it: --on-error skip" in ended.stderr
    assert skipping.returncode == 3
    assert (
        "session 's2' of user 'ada' in app 'weather': it is not as" in skipping.stderr
    )
    assert skipping.stdout.count('{"session":') == 4


async def test_sealed_content_is_exported_only_by_its_hook(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Without it there is no line of output; what is not selected keeps nobody away."""
    async with MongoSessionService(mongodb_uri, database=database, **SEALED) as sealed:
        session = await sealed.create_session(app_name="secret", user_id="ada")
        await sealed.append_event(session, canary_event())
    open_one = await service.create_session(app_name="open", user_id="ada")
    await service.append_event(open_one, Event(author="x"))
    # A time is rounded to microseconds, perhaps up.
    since = datetime.fromtimestamp(open_one.last_update_time - 1e-6, UTC).isoformat()
    exporting = ("export", mongodb_uri, "--database", database)

    refused = call(*exporting)
    hook = ("--after-load", "support.encryption_hooks:unseal")
    opened = call(*exporting, *hook, "--app", "secret")
    others = call(*exporting, "--app", "open")
    later = call(*exporting, "--since", since)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: Nothing was exported: session ")
    assert "--after-load" in refused.stderr
    assert refused.stderr.endswith(" see docs/guide/exporting.md#sealed-content.\n")
    assert CANARY in opened.stdout
    for each in (opened, others, later):
        assert each.returncode == 0, each.stderr
    assert CANARY not in others.stdout + later.stdout
    assert open_one.id in others.stdout
    assert open_one.id in later.stdout


async def test_an_export_is_imported_sealed(
    mongodb_uri: str, database: str, admin: MongoClient, tmp_path: Path
) -> None:
    """Given the app's hooks, nothing of it is in clear, and it is verified as such."""
    since = cluster_time(admin)
    async with MongoSessionService(mongodb_uri, database=database, **SEALED) as sealed:
        session = await sealed.create_session(**KEY, state=STATE)
        await sealed.append_event(session, canary_event())
    path = str(tmp_path / "export.jsonl")
    after_load = ("--after-load", "support.encryption_hooks:unseal")
    hooks = ("--before-store", "support.encryption_hooks:seal", *after_load)
    place = (mongodb_uri, "--database", database)
    copy = ("jsonl", path, *place, "--prefix", "copy_")

    call("export", *place, *after_load, "--to", path)
    other = tmp_path / "other.jsonl"
    own = f'"session_id": "{KEY["session_id"]}"'
    other.write_text(Path(path).read_text().replace(own, '"session_id": "other"'))
    clear = call("import", "jsonl", str(other), *place, "--session", "other")
    done = [call("import", *copy, *hooks), call("import", *copy, *hooks)]
    done.append(call("verify", *copy, *hooks))

    assert clear.returncode == 1
    assert "--before-store" in clear.stderr
    assert [each.returncode for each in done] == [0, 0, 0]
    assert list(clear_text(admin, [database], since)) == []
    notes = admin[database].copy_imports.find()
    assert [each["digest"] for each in notes] == [None, None]
