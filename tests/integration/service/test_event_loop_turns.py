"""How often a call waits for the event loop, beyond what the driver's commands take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService

USER = {"app_name": "app", "user_id": "user"}


@pytest.fixture
def fewest_turns(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[int]]:
    """Count the loop's iterations of the quickest of some calls."""

    async def count(call: Callable[[], Awaitable[object]]) -> int:
        loop: Any = asyncio.get_running_loop()
        run_once, turns = loop._run_once, 0  # noqa: SLF001

        def counted() -> None:
            nonlocal turns
            turns += 1
            run_once()

        counts = []
        with monkeypatch.context() as patched:
            patched.setattr(loop, "_run_once", counted)
            for _ in range(25):
                before = turns
                await call()
                counts.append(turns - before)
        return min(counts)

    return count


async def test_a_call_waits_hardly_more_often_than_its_commands(
    mongodb_uri: str, database: str, fewest_turns: Callable[..., Awaitable[int]]
) -> None:
    """An append hands over to its batch and back; a read and a list to nobody."""
    async with AsyncMongoClient[dict[str, Any]](mongodb_uri) as client:
        service = MongoSessionService(client=client, database=database)
        async with service:
            session = await service.create_session(**USER)
            key, newest = {**USER, "session_id": session.id}, GetSessionConfig()
            newest.num_recent_events = 0
            actions = EventActions(state_delta={"n": 1})

            async def append_one() -> None:
                event = Event(author="a", actions=actions)
                await service.append_event(session, event)

            command = await fewest_turns(lambda: client.admin.command("ping"))
            append = await fewest_turns(append_one)
            read = await fewest_turns(lambda: service.get_session(**key, config=newest))
            whole = await fewest_turns(lambda: service.get_session(**key))
            listed = await fewest_turns(lambda: service.list_sessions(**USER))
            created = await fewest_turns(lambda: service.create_session(**USER))

    assert append <= 3 * command + 3  # two statements and the commit
    assert max(read, whole, listed) <= command + 1
    assert created <= 2 * command + 3  # one after the other
