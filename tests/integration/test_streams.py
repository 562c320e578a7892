"""A change stream that is far behind, and one whose server has gone quiet."""

from __future__ import annotations

import asyncio
import time

import pytest
from bson.timestamp import Timestamp
from faults import failing
from pymongo import MongoClient
from watching import SESSION, new_event

from mongo_session_service import MongoSessionService, history
from mongo_session_service.changes import items, stream
from mongo_session_service.changes.stream import Stream
from mongo_session_service.database import Connection

SILENCE = 0.2


@pytest.fixture
async def connection(
    victim: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> Connection:
    """Of a service with a session, for streams that soon take a server for dead."""
    monkeypatch.setattr(stream, "_SILENCE", SILENCE)
    monkeypatch.setattr(stream, "AWAIT_MS", 50)
    await victim.create_session(**SESSION)
    async with victim._opened() as opened:  # noqa: SLF001  below what is public
        return opened.connection


def opened_at(connection: Connection, at: Timestamp) -> Stream:
    names = items.Names.of(connection)
    return Stream(connection, names, items.pipeline(names), at)


async def test_a_long_search_in_the_oplog_is_waited_for(
    connection: Connection, admin: MongoClient
) -> None:
    """A server that takes long to find an old point is not asked again and again."""
    changes = opened_at(connection, await history.now(connection))
    blocked = {"blockConnection": True, "blockTimeMS": 1000}
    with failing(admin, "aggregate", "getMore", times=1, **blocked):
        start = time.monotonic()
        change = await changes.next()
        assert time.monotonic() - start > 2 * SILENCE
    assert change is not None
    assert change["operationType"] == "insert"
    assert changes.reopened == 0
    await changes.close()


async def test_a_silent_server_is_given_up(
    victim: MongoSessionService, connection: Connection, admin: MongoClient
) -> None:
    """Once a stream has caught up, a reply that does not come is not waited for."""
    changes = opened_at(connection, await history.now(connection))
    while await changes.next() is not None:
        pass
    blocked = {"blockConnection": True, "blockTimeMS": 2000}
    with failing(admin, "getMore", times=1, **blocked) as hit:
        reading = asyncio.create_task(changes.next())
        await asyncio.to_thread(hit)
        session = await victim.get_session(**SESSION)
        assert session is not None
        await victim.append_event(session, new_event())
        async with asyncio.timeout(1.7):
            while (change := await reading) is None:
                reading = asyncio.create_task(changes.next())
    assert change["ns"]["coll"] == "events"
    assert changes.reopened == 1
    await changes.close()
