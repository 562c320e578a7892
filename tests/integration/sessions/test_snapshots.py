"""A read sees each append whole or not yet, however many are going on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.failpoints import failing

from mongo_session_service import MongoSessionService

IDS = {"app_name": "app", "user_id": "user"}
APPENDS = 100


def seen(session: Session) -> list[Any]:
    """What each part of a session says the latest append was."""
    return [session.state.get(key) for key in ("n", "user:n", "app:n")]


async def test_reads_are_never_torn(service: MongoSessionService) -> None:
    """Events and all scopes of state agree in every read, beside a busy writer."""
    session = await service.create_session(**IDS, session_id="s")
    writing = asyncio.create_task(write(service, session))
    reads: set[int] = set()

    while not writing.done():
        found = await service.get_session(**IDS, session_id="s")
        (listed,) = (await service.list_sessions(app_name="app")).sessions
        assert found is not None
        assert seen(found) == [len(found.events) or None] * 3
        assert len(set(seen(listed))) == 1
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


@pytest.mark.parametrize("how", [{"closeConnection": True}, {"errorCode": 11600}])
async def test_a_read_that_breaks_off_is_done_again(
    victim: MongoSessionService, admin: MongoClient, how: dict[str, Any]
) -> None:
    """A lost connection or a stepping down primary does not fail a read."""
    session = await victim.create_session(**IDS, session_id="s")

    with failing(admin, "aggregate", times=2, **how):
        found = await victim.get_session(**IDS, session_id="s")

    assert found == session


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
