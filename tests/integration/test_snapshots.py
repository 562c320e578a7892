"""A read sees each append whole or not yet, however many are going on."""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session

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
