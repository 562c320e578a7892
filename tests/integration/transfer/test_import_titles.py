"""Titles and display names through imports, exports and verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import InMemorySessionService
from support.subscriptions import Follower
from support.transfers import (
    IDS,
    compared,
    differences,
    exported,
    imported,
    moved,
    moved_copy,
)

from mongo_session_service import MongoSessionService

KEY = "__session_metadata__"


def named(name: str) -> dict[str, Any]:
    """A state whose display name this is."""
    return {KEY: {"displayName": name}}


async def rename(service: Any, name: str) -> None:
    """Append what ADK's web interface appends."""
    session = await service.get_session(**IDS)
    actions = EventActions(state_delta=named(name))
    await service.append_event(session, Event(author="user", actions=actions))


async def title(service: MongoSessionService) -> str | None:
    """The title that the session is found with."""
    (found,) = (await service.find_sessions(app_name=IDS["app_name"])).sessions
    return found.title


async def test_display_names_become_titles(service: MongoSessionService) -> None:
    """An import gives a title, and a later one a new title; a rename here stays."""
    old = InMemorySessionService()
    await old.create_session(**IDS)
    await rename(old, "A")
    await moved(old, service)
    assert await title(service) == "A"
    await rename(old, "B")
    await moved(old, service)
    assert await title(service) == "B"
    assert await differences(old, service) == []

    await service.update_session(**IDS, title="C")
    session = await old.get_session(**IDS)
    assert session is not None
    await old.append_event(session, Event(author="user"))
    await moved(old, service)

    assert await title(service) == "C"
    (told,) = await differences(old, service)
    assert told.endswith(": title differs")


async def test_a_file_keeps_titles(
    service: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """A title, one that was removed, and a display name alone are the same there."""
    path = tmp_path / "x.jsonl"
    await service.create_session(**IDS, state=named("A"))
    await rename(service, "B")
    for expected in (None, "C"):
        await service.update_session(**IDS, title=expected)
        text = await exported(service, path)
        await copy.delete_session(**IDS)
        await imported(path, copy)
        assert await title(copy) == expected
        assert await compared(service, copy) == []
        assert (await imported(path, copy)).unchanged == 1
        assert await exported(copy, path) == text
    path.write_bytes(text.replace(b'"title": "C", ', b""))  # as of earlier releases
    await copy.delete_session(**IDS)
    await imported(path, copy)
    assert await title(copy) == "B"
    assert (await imported(path, copy)).unchanged == 1


async def test_subscribers_receive_imported_details(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """What an import changes of a session's details is announced, after its events."""
    path = tmp_path / "x.jsonl"
    await service.create_session(**IDS, title="A", labels={"l": "1"})
    async with (
        moved_copy(service, mongodb_uri, database) as copy,
        Follower(copy.watch(**IDS)) as follower,
    ):
        await rename(service, "B")
        await exported(service, path)
        await imported(path, copy)
        await imported(path, copy)
        await rename(copy, "C")
        await follower.until(lambda: follower.kinds.count("updated") == 2)

    told = [(each.kind, each.title, each.labels) for each in follower.told[1:]]
    assert told == [
        ("appended", None, None),
        ("updated", "B", {"l": "1"}),
        ("appended", None, None),
        ("updated", "C", {"l": "1"}),
    ]
