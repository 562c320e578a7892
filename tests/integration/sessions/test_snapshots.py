"""A read sees each append whole or not yet, however many are going on."""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient

from mongo_session_service import MongoSessionService

IDS = {"app_name": "app", "user_id": "user"}
APPENDS = 100


def seen(state: dict[str, Any]) -> list[Any]:
    """What each scope of state has of the latest append."""
    return [state.get(key) for key in ("n", "user:n", "app:n")]


async def test_reads_are_never_torn(service: MongoSessionService) -> None:
    """Events and all scopes of state agree in every read, beside a busy writer."""
    session = await service.create_session(**IDS, session_id="s")
    writing = asyncio.create_task(write(service, session))
    reads: set[int] = set()

    while not writing.done():
        found = await service.get_session(**IDS, session_id="s")
        (listed,) = (await service.list_sessions(app_name="app")).sessions
        (summary,) = (await service.find_sessions(app_name="app")).sessions
        assert found is not None
        assert seen(found.state) == [len(found.events) or None] * 3
        assert len(set(seen(listed.state))) == 1
        assert seen(summary.state or {}) == [summary.revision or None] * 3
        reads.add(len(found.events))

    await writing
    assert len(reads) > APPENDS / 10, "the reads did not overlap with the writer"


async def write(service: MongoSessionService, session: Session) -> None:
    for number in range(1, APPENDS + 1):
        delta = {"n": number, "user:n": number, "app:n": number}
        event = Event(author="x", actions=EventActions(state_delta=delta))
        await service.append_event(session, event)


async def test_a_session_longer_than_one_reply_is_read_whole(
    service: MongoSessionService, admin: MongoClient
) -> None:
    """More than the 16 MB of one reply are read, and leave no cursor behind."""
    session = await service.create_session(**IDS, session_id="s")
    for number in range(3):
        event = Event(author=str(number), custom_metadata={"large": "x" * 7_000_000})
        await service.append_event(session, event)
    before = open_cursors(admin)

    found = await service.get_session(**IDS, session_id="s")

    assert found == session
    assert open_cursors(admin) == before


async def test_sessions_created_together_see_their_shared_state(
    service: MongoSessionService,
) -> None:
    """Of sessions created together each sees its own app and user, and its own copy."""
    pairs = [(app, user) for app in ("a", "b") for user in ("u", "v")]
    for app, user in pairs:
        state = {f"app:{user}": [app], "user:of": [app, user]}
        await service.create_session(app_name=app, user_id=user, state=state)

    created = await asyncio.gather(
        *(service.create_session(app_name=app, user_id=user) for app, user in pairs * 2)
    )

    for (app, user), session in zip(pairs * 2, created, strict=True):
        shared = {"app:u": [app], "app:v": [app], "user:of": [app, user]}
        assert session.state == shared
        session.state["user:of"].append("changed")
        session.state["app:u"].append("changed")


def open_cursors(admin: MongoClient) -> int:
    cursors = admin.admin.command("serverStatus")["metrics"]["cursor"]["open"]
    return int(cursors["total"])
