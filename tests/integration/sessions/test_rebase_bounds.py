"""How long a second writer tries, and how often."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from google.adk.errors import StaleSessionError
from pymongo import AsyncMongoClient, monitoring
from support.command_log import QuietListener
from support.function_calls import called, responded_and_called
from support.one_session import IDS, authors, read
from support.subscriptions import PATIENCE, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.sessions import appender
from mongo_session_service.testing import Limits


async def test_a_call_without_response_is_not_waited_for_forever(
    impatient: MongoSessionService,
) -> None:
    """Who has not seen the call is refused, unchanged; who has seen it goes on."""
    crashed = await impatient.create_session(**IDS)
    mine = await read(impatient)
    await impatient.append_event(crashed, called("a"))
    before = mine.model_copy(deep=True)

    with pytest.raises(StaleSessionError, match="no response"):
        await impatient.append_event(mine, new_event())

    assert mine == before
    reloaded = await read(impatient)
    await impatient.append_event(reloaded, new_event("me"))
    assert authors(await read(impatient)) == ["agent", "me"]


async def test_calls_that_come_and_go_are_not_waited_for_forever(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that always has a call open, and always another, starves nobody."""
    second, hasty = (
        MongoSessionService(
            mongodb_uri,
            database=database,
            on_conflict="rebase",
            _limits=Limits(response_seconds=seconds),
        )
        for seconds in (3, 0)
    )
    running = await second.create_session(**IDS)
    mine = await read(second)
    before = mine.model_copy(deep=True)
    await second.append_event(running, called("0"))
    is_refused = asyncio.Event()
    calls = 0  # who waits takes each for a second
    monkeypatch.setattr(appender, "time", SimpleNamespace(monotonic=lambda: calls))

    async def go_on(elsewhere: MongoSessionService) -> None:
        nonlocal calls
        while not is_refused.is_set():
            event = responded_and_called(f"{calls}", f"{calls + 1}")
            await elsewhere.append_event(running, event)
            calls += 1

    async with (
        asyncio.timeout(PATIENCE),
        MongoSessionService(mongodb_uri, database=database) as elsewhere,
    ):
        going_on = asyncio.create_task(go_on(elsewhere))
        with pytest.raises(StaleSessionError, match="no response"):
            await second.append_event(mine, new_event())
        is_refused.set()
        await going_on

    assert calls > 3
    assert mine == before
    async with second, hasty:
        reloaded = await read(hasty)
        await hasty.append_event(reloaded, new_event("me"))
        assert authors(await read(hasty))[-1] == "me"


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
