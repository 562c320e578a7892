"""How much was moved, compared and exported, in words and in JSON."""

from __future__ import annotations

import json
from pathlib import Path

from google.adk.events import Event, EventActions
from support.cli_runner import call

from mongo_session_service import MongoSessionService


async def test_counts_of_one_are_singular(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Sessions, events, shared states and differences are plural when they are many."""
    session = await service.create_session(app_name="a", user_id="u")
    actions = EventActions(state_delta={"app:k": 1})
    await service.append_event(session, Event(author="x", actions=actions))
    path = str(tmp_path / "sessions.jsonl")
    other = [mongodb_uri, "--database", database, "--prefix", "copy_"]

    exported = call("export", mongodb_uri, "--database", database, "--to", path)
    imported = call("import", "jsonl", path, *other)
    await service.update_session(
        app_name="a", user_id="u", session_id=session.id, title="new"
    )
    call("export", mongodb_uri, "--database", database, "--to", path)
    verified = call("verify", "jsonl", path, *other)

    one = "1 session with 1 event and 1 shared state"
    assert exported.stderr.startswith(f"Exported {one} from database {database} on ")
    assert exported.stderr.endswith(", not encrypted.\n")
    assert imported.stdout.startswith("Moved 1 event from ")
    assert ": 1 new, 1 shared state.\n" in imported.stdout
    assert verified.stdout.startswith(f"Compared {one} in database {database} on ")
    assert verified.stdout.endswith(": 1 difference.\n")


async def test_figures_are_printed_as_json(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """One object each on standard output; differences are on standard error."""
    session = await service.create_session(app_name="a", user_id="u")
    for _ in range(2):
        await service.append_event(session, Event(author="x"))
    path = str(tmp_path / "sessions.jsonl")
    here = ["--json", "--database", database]
    other = [mongodb_uri, *here, "--prefix", "copy_"]

    exported = call("export", mongodb_uri, *here, "--to", path)
    foretold = call("import", "jsonl", path, *other, "--dry-run")
    imported = call("import", "jsonl", path, *other)
    since = json.loads(imported.stdout)["since"]
    later = call("import", "jsonl", path, *other, "--since", since)
    await service.append_event(session, Event(author="x"))
    call("export", mongodb_uri, *here, "--to", path)
    verified = call("verify", "jsonl", path, *other)
    confused = call("export", mongodb_uri, *here)

    contents = {"sessions": 1, "events": 2, "states": 0}
    assert json.loads(exported.stdout) == {**contents, "problems": 0}
    nothing = ("ahead", "caught_up", "expired", "problems", "skipped")
    moved = {**contents, **dict.fromkeys(nothing, 0), "new": 1, "read": 2}
    moved |= {"since": since, "unchanged": 0, "ahead_states": 0, "skipped_states": 0}
    assert json.loads(imported.stdout) == moved
    assert json.loads(foretold.stdout) == moved | {"since": None}
    assert json.loads(later.stdout)["unchanged"] == 1
    differences = json.loads(verified.stdout)["differences"]
    assert verified.stderr.count("\n") == differences > 0
    assert session.id in verified.stderr
    assert (confused.returncode, confused.stdout) == (2, "")
    assert "--json needs --to" in confused.stderr
