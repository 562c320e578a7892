"""Contents of a database, as the command line looks at them."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from pymongo import MongoClient
from support.one_session import IDS

from mongo_session_service import MongoSessionService
from mongo_session_service.admin import stored_contents
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions.search import AppCount


async def test_apps_are_counted_without_reading_sessions(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """An index has all that is needed; only what has expired is looked at as well.

    What another tool has stored under no app's name is not counted, nor what an import
    or a removal has begun and not finished.
    """
    await service.setup()
    stored = [
        {
            "_id": {"app_name": app, "user_id": user, "session_id": f"s{number}"},
            "state": {"large": "x" * 100},
            "revision": 0,
            "create_time": 1e9,
            "update_time": 1e9,
            **({"expire_time": 1e9} if number < 2 else {}),
        }
        for app in ("a", "b")
        for user in ("ada", "bob")
        for number in range(50)
    ]
    foreign = [{"_id": "x"}, {"_id": {**stored[0]["_id"], "app_name": 7}}]
    unfinished = [
        {"_id": stored[0]["_id"] | {"session_id": name}, "expire_time": at, "steps": 0}
        for name, at in (("import", time.time() + 3600), ("removal", 0.0))
    ]
    admin[database].sessions.insert_many([*stored, *foreign, *unfinished])
    admin[database].command("profile", 2)

    counted = await stored_contents.count_apps(service, None)

    admin[database].command("profile", 0)
    of_one = await stored_contents.count_apps(service, "ada")
    wanted = {"op": "command", "command.aggregate": "sessions"}
    (profiled,) = admin[database]["system.profile"].find(wanted)
    assert counted == [AppCount("a", 2, 96), AppCount("b", 2, 96)]
    assert of_one == [AppCount("a", 1, 48), AppCount("b", 1, 48)]
    expired = 9
    assert profiled["docsExamined"] <= 2 * expired  # MongoDB counts a union twice
    assert "IXSCAN" in profiled["planSummary"]


async def test_a_log_is_that_of_the_session_looked_at(
    service: MongoSessionService,
) -> None:
    """Later events are left out, and those of a session that was recreated."""
    for author in ("first", "second"):
        session = await service.create_session(**IDS)
        await service.append_event(session, Event(author=author))
        seen = await stored_contents.load_summary(service, SessionKey(**IDS))
        await service.append_event(session, Event(author="later"))
        read = [
            each async for each in stored_contents.iter_stored_events(service, seen, 0)
        ]
        await service.delete_session(**IDS)

        assert [event and event.author for _, event in read] == [author]
    await service.create_session(**IDS)
    with pytest.raises(SessionNotFoundError):
        _ = [
            each async for each in stored_contents.iter_stored_events(service, seen, 0)
        ]


async def test_an_event_loop_may_end_amid_a_log(service: MongoSessionService) -> None:
    """It closes what a command that nobody reads has left open, in any order."""
    session = await service.create_session(**IDS)
    await service.append_event(session, Event(author="agent"))
    seen = await stored_contents.load_summary(service, SessionKey(**IDS))
    begun: list[AsyncGenerator[Any]] = []
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(begun.append)
    try:
        await anext(stored_contents.iter_stored_events(service, seen, 0))
    finally:
        sys.set_asyncgen_hooks(*hooks)

    for each in reversed(begun):
        await each.aclose()
