"""Long reads: other tasks of the event loop run while a read is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import (
    CommandSucceededEvent,
)
from support.command_log import QuietListener
from support.long_sessions import store_long_session

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage import tasks
from mongo_session_service.testing import Limits

COUNT = 60
KEY = SessionKey("app", "ada", "long")
OF_APP = {"app_name": "app", "user_id": "ada"}


@pytest.fixture
async def service(
    mongodb_uri: str, database: str, admin: MongoClient[Any]
) -> AsyncIterator[MongoSessionService]:
    """One with a session of many events, and many sessions."""
    limits = Limits(block_events=1)
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=limits
    ) as service:
        await store_long_session(service, admin, database, KEY, COUNT)
        for number in range(COUNT):
            await service.create_session(**OF_APP, session_id=f"s{number}")
        yield service


Read = Callable[[MongoSessionService], Awaitable[Any]]
READS: dict[str, Read] = {
    "get_session": lambda service: service.get_session(**KEY.id),
    "get_session_at": lambda service: service.get_session_at(**KEY.id, revision=COUNT),
    "list_sessions": lambda service: service.list_sessions(**OF_APP),
    "find_sessions": lambda service: service.find_sessions(**OF_APP, limit=COUNT),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_other_tasks_run_during_a_read(
    service: MongoSessionService, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice of its decoding is followed by a turn of the others."""
    monkeypatch.setattr(tasks, "_SLICE", -1.0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await read(service)  # connects
    task = asyncio.create_task(others())
    await read(service)
    task.cancel()

    assert turns > COUNT


@pytest.mark.usefixtures("service")
async def test_no_reply_is_long(mongodb_uri: str, database: str) -> None:
    """What one holds is split at once, which nothing else can run in."""
    replies = RepliesReceived()
    async with AsyncMongoClient[Any](mongodb_uri, event_listeners=[replies]) as client:
        limits = Limits(reply_documents=7)
        short = MongoSessionService(client=client, database=database, _limits=limits)

        await short.setup()
        replies.sizes.clear()
        session = await short.get_session(**KEY.id)

    assert session is not None
    assert [event.id for event in session.events] == [
        f"e{number}" for number in range(1, COUNT + 1)
    ]
    assert max(replies.sizes) == 7


class RepliesReceived(QuietListener):
    """How many documents each reply had."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def succeeded(self, event: CommandSucceededEvent) -> None:
        cursor = event.reply.get("cursor", {})
        batch = cursor.get("firstBatch") or cursor.get("nextBatch") or ()
        self.sizes.append(len(batch))
