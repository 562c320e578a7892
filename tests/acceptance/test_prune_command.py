"""``mongo-session-service prune``."""

from __future__ import annotations

import json

from google.adk.events import Event
from support.cli_runner import call
from support.fake_clock import Clock

from mongo_session_service import MongoSessionService


async def fill(service: MongoSessionService) -> None:
    """Give it two sessions that have expired, with three events, and one that not."""
    Clock.set().now = 1e9  # long ago for the command
    ids = {"app_name": "app", "user_id": "ada"}
    await service.create_session(**ids)
    for number in range(1, 3):
        session = await service.create_session(**ids, ttl=1)
        for _ in range(number):
            await service.append_event(session, Event(author="x"))


async def test_prune_removes_and_tells(
    mongodb_uri: str, service: MongoSessionService, database: str
) -> None:
    """It counts, removes what it counted, and then finds nothing more."""
    await fill(service)
    place = ("--uri", mongodb_uri, "--database", database)

    counted = call(*place, "prune", "--dry-run")
    pruned = call(*place, "prune")
    again = call(*place, "prune", "--json")

    assert [each.returncode for each in (counted, pruned, again)] == [0, 0, 0]
    where = f"database {database} on {mongodb_uri[10:].partition('/')[0]}"
    found = f"2 sessions and 3 events in {where}.\n"
    assert (counted.stdout, counted.stderr) == ("", f"Would remove {found}")
    assert (pruned.stdout, pruned.stderr) == ("", f"Removed {found}")
    assert json.loads(again.stdout) == {"sessions": 0, "events": 0}
    assert len((await service.list_sessions(app_name="app")).sessions) == 1


def test_prune_fails_in_one_line() -> None:
    """Without a server it says so and exits with 1; wrong usage exits with 2."""
    nowhere = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300"

    failed, wrong = call("prune", "--uri", nowhere), call("prune", "--all")

    assert (failed.returncode, wrong.returncode) == (1, 2)
    assert failed.stderr.startswith("Error: MongoDB is unavailable")
    assert failed.stderr.count("\n") == 1
