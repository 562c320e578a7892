"""How much was moved, compared and exported, in words."""

from __future__ import annotations

from pathlib import Path

from google.adk.events import Event, EventActions
from support.cli_runner import call

from mongo_session_service import MongoSessionService


async def test_one_of_each_is_told_as_one(
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
    assert exported.stderr.endswith(", in clear.\n")
    assert imported.stdout.startswith("Moved 1 event from ")
    assert ": 1 new, 1 shared state.\n" in imported.stdout
    assert verified.stdout.startswith(f"Compared {one} in database {database} on ")
    assert verified.stdout.endswith(": 1 difference.\n")
