"""Time limits in the URI are those of calls, and not of what waits for changes."""

from __future__ import annotations

import asyncio
import time

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.consumers import take
from support.failpoints import failing, victim_uri
from support.subscriptions import PATIENCE, SESSION

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.testing import Limits


@pytest.mark.limits(stream_await_seconds=1.3)
@pytest.mark.parametrize("option", ["timeoutMS=1000", "socketTimeoutMS=1000"])
async def test_they_end_no_subscription_and_no_consumer(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    limits: Limits,
    admin: MongoClient,
    option: str,
) -> None:
    """Each request is held for longer than they allow, and one is not answered."""
    await service.create_session(**SESSION)
    uri = f"{victim_uri(mongodb_uri)}&{option}"
    async with (
        MongoSessionService(uri, database=database, _limits=limits) as victim,
        victim.watch(**SESSION) as changes,
        victim.consumer("c", start="now") as consumer,
        asyncio.timeout(PATIENCE),
    ):
        await anext(changes)  # the snapshot
        reading = asyncio.create_task(take(consumer, 1, commit=True))
        stalled = {"blockConnection": True, "blockTimeMS": 1500}
        with failing(admin, "getMore", "findAndModify", times=2, **stalled) as hit:
            await asyncio.to_thread(hit)
            await service.append(**SESSION, event=Event(author="x"))
            assert (await anext(changes)).revision == 1
            await reading


@pytest.mark.parametrize("what", ["fork", "trim", "redact"])
async def test_they_bound_a_write_that_reads_first(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    what: str,
) -> None:
    """What has waited so long for an answer is not repeated."""
    await service.create_session(**SESSION)
    event = await service.append(**SESSION, event=Event(author="x"))
    uri = f"{victim_uri(mongodb_uri)}&timeoutMS=600"
    async with MongoSessionService(uri, database=database) as victim:
        calls = {
            "fork": lambda: victim.fork_session(**SESSION, new_session_id="f"),
            "trim": lambda: victim.trim_session(**SESSION, keep_last=1),
            "redact": lambda: victim.redact_events(**SESSION, event_ids=[event.id]),
        }
        commands = "aggregate", "find", "update", "insert"
        with failing(admin, *commands, blockConnection=True, blockTimeMS=2000):
            started = time.monotonic()
            with pytest.raises(StorageUnavailableError):
                await calls[what]()
            assert time.monotonic() - started < 2
