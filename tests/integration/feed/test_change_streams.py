"""A change stream that is far behind, and one whose server has gone quiet."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing, suppress

import pytest
from bson.timestamp import Timestamp
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import MongoClient
from support.failpoints import failing
from support.subscriptions import SESSION, change_streams, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.changes import decoder
from mongo_session_service.service import backends_of
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.stream import Stream
from mongo_session_service.testing import Limits

SILENCE = 0.4
QUICK = {"stream_await_seconds": 0.05, "stream_silence_seconds": SILENCE}
"""A server that is silent for a moment is taken for dead."""

pytestmark = pytest.mark.limits(**QUICK)


@pytest.fixture
async def connection(victim: MongoSessionService) -> Storage:
    """Of a service with a session."""
    await victim.create_session(**SESSION)
    opened = await backends_of(victim).backend()
    return opened.storage


def opened_at(connection: Storage, at: Timestamp) -> Stream:
    return decoder.follow(connection, decoder.pipeline(connection), at)


async def test_a_long_search_in_the_oplog_is_waited_for(
    connection: Storage, admin: MongoClient
) -> None:
    """A server that takes long to find an old point is not asked again and again."""
    changes = opened_at(connection, await connection.latest_time())
    blocked = {"blockConnection": True, "blockTimeMS": 1000}
    with failing(admin, "aggregate", "getMore", times=1, **blocked):
        start = time.monotonic()
        change = await changes.next_change()
        assert time.monotonic() - start > 2 * SILENCE
    assert change is not None
    assert change["operationType"] == "insert"
    assert changes.reopened == 0
    await changes.close_cursor()


async def test_a_silent_server_is_given_up(
    victim: MongoSessionService, connection: Storage, admin: MongoClient
) -> None:
    """Once a stream has caught up, a reply that does not come is not waited for."""
    changes = opened_at(connection, await connection.latest_time())
    while await changes.next_change() is not None:
        pass
    before = changes.reopened
    blocked = {"blockConnection": True, "blockTimeMS": 5000}
    with failing(admin, "getMore", times=1, **blocked) as hit:
        reading = asyncio.create_task(changes.next_change())
        await asyncio.to_thread(hit)
        session = await victim.get_session(**SESSION)
        assert session is not None
        await victim.append_event(session, new_event())
        async with asyncio.timeout(4.7):
            while (change := await reading) is None:
                reading = asyncio.create_task(changes.next_change())
    assert change["ns"]["coll"] == "events"
    assert changes.reopened > before
    await changes.close_cursor()


async def test_a_stream_cancelled_at_its_opening_leaves_no_cursor(
    mongodb_uri: str, database: str, admin: MongoClient, limits: Limits
) -> None:
    """Motor opens it in a thread, which goes on when its caller is cancelled."""
    with closing(AsyncIOMotorClient(mongodb_uri)) as client:
        service = MongoSessionService(client=client, database=database, _limits=limits)
        await service.create_session(**SESSION)
        opened = await backends_of(service).backend()
        now = await opened.storage.latest_time()
        for milliseconds in range(10):
            changes = opened_at(opened.storage, now)
            with suppress(TimeoutError):
                async with asyncio.timeout(milliseconds / 1000):
                    await changes.next_change()
            await changes.close_cursor()
            assert change_streams(admin, database) == set()
