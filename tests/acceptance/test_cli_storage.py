"""The command ``storage``: what is stored, in numbers and bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.cli_runner import call

from mongo_session_service import MongoSessionService


@pytest.fixture
async def _stored(service: MongoSessionService) -> None:
    """Two apps, of three sessions of four events each."""
    for app in ("shop", "trips"):
        for number in range(3):
            session = await service.create_session(
                app_name=app, user_id=f"u{number}", state={"user:n": 1}
            )
            for _ in range(4):
                await service.append_event(session, Event(author="x"))


def rows(*arguments: str) -> dict[str, Any]:
    """The rows of collections, by name."""
    done = call("storage", "--json", *arguments)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {each.pop("collection"): each for each in found}


@pytest.mark.usefixtures("_stored")
async def test_each_collection_has_a_row(
    at: tuple[str, ...], admin: MongoClient, database: str
) -> None:
    """Numbers and bytes are those that MongoDB has."""
    collections = rows(*at)

    stats = admin[database].command("collStats", "events")
    assert collections["events"] == {
        "documents": 24,
        "bytes": stats["storageSize"],
        "index_bytes": stats["totalIndexSize"],
        "average": round(stats["size"] / 24),
    }
    assert collections["sessions"]["documents"] == 6


@pytest.mark.usefixtures("_stored")
async def test_an_app_has_its_part(at: tuple[str, ...]) -> None:
    """By the number of its documents, in the collections that grow with it."""
    whole = rows(*at)
    part = rows("--app", "shop", *at)

    assert {name: each["documents"] for name, each in part.items()} == {
        "sessions": 3,
        "events": 12,
        "user_states": 3,
    }
    assert part["events"]["bytes"] == whole["events"]["bytes"] // 2


@pytest.mark.usefixtures("_stored")
async def test_people_read_a_table(at: tuple[str, ...]) -> None:
    """With sizes as people write them."""
    done = call("storage", *at)

    titles = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert titles[:3] == ["COLLECTION", "sessions", "events"]
    assert "kB" in done.stdout
