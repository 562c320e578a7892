"""The command ``storage``: what is stored, in numbers and bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.cli_runner import call

from mongo_session_service import MongoSessionService

DAY = 86_400.0


@pytest.fixture
def at(mongodb_uri: str, database: str) -> tuple[str, ...]:
    """The options that name the database."""
    return ("--uri", mongodb_uri, "--database", database)


@pytest.fixture
async def _stored(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Two apps, of three sessions of four events each, one of them idle for long."""
    for app in ("shop", "trips"):
        for number in range(3):
            session = await service.create_session(
                app_name=app, user_id=f"u{number}", state={"user:n": 1}
            )
            for _ in range(4):
                await service.append_event(session, Event(author="x"))
    old = {"_id.user_id": "u0"}
    earlier = session.last_update_time - 100 * DAY
    admin[database].sessions.update_many(old, {"$set": {"update_time": earlier}})
    admin[database].events.update_many(old, {"$set": {"event.timestamp": earlier}})


def rows(*arguments: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of collections and of commands, by name."""
    done = call("storage", "--json", *arguments)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return (
        {each.pop("collection"): each for each in found if "collection" in each},
        {each.pop("command"): each for each in found if "command" in each},
    )


@pytest.mark.usefixtures("_stored")
async def test_each_collection_has_a_row(
    at: tuple[str, ...], admin: MongoClient, database: str
) -> None:
    """Numbers and bytes are those that MongoDB has."""
    collections, commands = rows(*at)

    stats = admin[database].command("collStats", "events")
    assert collections["events"] == {
        "documents": 24,
        "bytes": stats["storageSize"],
        "index_bytes": stats["totalIndexSize"],
        "average": round(stats["size"] / 24),
    }
    assert collections["sessions"]["documents"] == 6
    assert commands["prune --idle-for 90d"]["documents"] == 2 + 2 * 4
    assert commands["prune --idle-for 365d"]["documents"] == 0
    assert commands["trim APP --older-than 30d"]["documents"] == 8


@pytest.mark.usefixtures("_stored")
async def test_an_app_has_its_part(at: tuple[str, ...]) -> None:
    """By the number of its documents, in the collections that grow with it."""
    whole, _ = rows(*at)
    part, commands = rows("--app", "shop", *at)

    assert {name: each["documents"] for name, each in part.items()} == {
        "sessions": 3,
        "events": 12,
        "user_states": 3,
    }
    assert part["events"]["bytes"] == whole["events"]["bytes"] // 2
    assert commands["prune --app shop --idle-for 90d"]["documents"] == 1 + 4
    assert commands["trim shop --older-than 90d"]["documents"] == 4


@pytest.mark.usefixtures("_stored")
async def test_people_read_two_tables(at: tuple[str, ...]) -> None:
    """What is stored, and the commands that would remove something."""
    done = call("storage", *at)

    titles = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert titles[:3] == ["COLLECTION", "sessions", "events"]
    assert "COMMAND" in done.stdout
    assert "365d" not in done.stdout
    assert "kB" in done.stdout


def test_an_empty_database_has_none(mongodb_uri: str, new_database: str) -> None:
    """Nothing is created to look at."""
    done = call("storage", "--uri", mongodb_uri, "--database", new_database)

    assert (done.returncode, done.stdout) == (0, "")
    assert "Nothing is stored" in done.stderr
