"""How long a second writer tries, and how often."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.adk.errors import StaleSessionError
from pymongo import AsyncMongoClient, monitoring
from support.command_log import QuietListener
from support.function_calls import called
from support.one_session import IDS, authors, read
from support.subscriptions import PATIENCE, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits


async def test_a_call_without_response_holds_nobody_up_for_long(
    second: MongoSessionService,
) -> None:
    """After ten seconds, who has read it goes on: its writer may be dead."""
    crashed = await second.create_session(**IDS)
    mine = await read(second)
    for age in (0, 5, 11):
        call = called(f"{age}")
        call.timestamp -= age
        await second.append_event(crashed, call)
        with pytest.raises(StaleSessionError, match="no response yet"):
            await second.append_event(mine, new_event("mine"))
    assert mine.events == []

    reloaded = await read(second)
    await second.append_event(reloaded, new_event("me"))

    assert authors(await read(second)) == ["agent", "agent", "agent", "me"]


class Overtaking(QuietListener):
    """Appends in another loop whenever a client has been told of a session."""

    def __init__(self, uri: str, database: str) -> None:
        self._where = (uri, database)
        self.times = 0

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        if event.command_name == "aggregate":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, self._append()).result(PATIENCE)

    async def _append(self) -> None:
        uri, database = self._where
        async with MongoSessionService(uri, database=database) as other:
            await other.append_event(await read(other), new_event("other"))
        self.times += 1


async def test_an_append_is_not_overtaken_for_ever(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
) -> None:
    """Whose every attempt comes too late is refused in the end, unchanged."""
    others = await service.create_session(**IDS)
    mine = await read(service)
    await service.append_event(others, new_event("other"))
    before = mine.model_copy(deep=True)
    overtaking = Overtaking(mongodb_uri, database)
    async with AsyncMongoClient(mongodb_uri, event_listeners=[overtaking]) as client:
        late = MongoSessionService(
            client=client,
            database=database,
            on_conflict="rebase",
            _limits=Limits(rebase_attempts=3),
        )
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StaleSessionError, match="modified in storage"):
                await late.append_event(mine, new_event("me"))

    assert overtaking.times >= 3
    assert mine == before
    assert set(authors(await read(service))) == {"other"}
