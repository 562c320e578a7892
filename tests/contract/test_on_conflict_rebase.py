"""Writers that are behind, with a service that takes what they have to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import BaseSessionService, Session
from support.backends import FOR_SECOND_WRITERS, Backend

KEY = {"app_name": "my_app", "user_id": "user-1", "session_id": "s"}


@pytest.fixture(params=FOR_SECOND_WRITERS, ids=lambda backend: backend.name)
async def shared(
    request: pytest.FixtureRequest, mongodb_uri: str, database: str
) -> AsyncIterator[BaseSessionService]:
    backend: Backend = request.param
    async with backend.make(mongodb_uri, database) as service:
        yield service


async def read(shared: BaseSessionService) -> Session:
    found = await shared.get_session(**KEY)
    assert found is not None
    return found


async def test_a_late_event_is_stored_after_the_others(
    shared: BaseSessionService,
) -> None:
    """Copies of a session may append in turns; each delta is over the one before."""
    await shared.create_session(**KEY, state={"k": "initial", "kept": 1})
    copies = [await read(shared) for _ in range(3)]
    for number, copy in enumerate([*copies, *copies]):
        delta = {"k": number, f"app:{number}": number, "temp:t": number}
        actions = EventActions(state_delta=delta)
        await shared.append_event(copy, Event(author=str(number), actions=actions))

    stored = await read(shared)
    assert [event.author for event in stored.events] == list("012345")
    assert stored.state == {"k": 5, "kept": 1, **{f"app:{n}": n for n in range(6)}}


async def test_writers_at_once_lose_nothing(shared: BaseSessionService) -> None:
    """Each of many writers finds its events stored, in the order it wrote them."""
    await shared.create_session(**KEY)

    async def write(name: str) -> None:
        session = await read(shared)
        for number in range(5):
            await shared.append_event(session, Event(id=f"{name}{number}", author=name))

    await asyncio.gather(*map(write, "abcdef"))

    stored = await read(shared)
    for name in "abcdef":
        written = [event.id for event in stored.events if event.author == name]
        assert written == [f"{name}{number}" for number in range(5)]
