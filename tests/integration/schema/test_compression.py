"""The events of a new database are compressed as well as MongoDB can."""

from __future__ import annotations

import re

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.failpoints import failing, victim_uri
from support.subscriptions import SESSION

from mongo_session_service import MongoSessionService


def compressors(admin: MongoClient, database: str) -> set[str]:
    """What compresses the events, and each of their indexes."""
    stats = admin[database].command("collStats", "events", indexDetails=True)
    created = [stats["wiredTiger"], *stats["indexDetails"].values()]
    found = [
        re.search(r"block_compressor=(\w*)", each["creationString"]) for each in created
    ]
    return {each[1] for each in found if each}


async def test_events_and_their_indexes_are_compressed_by_zstd(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """They are nearly all that a database holds."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        await service.setup()

    assert compressors(admin, database) == {"zstd"}


@pytest.mark.parametrize("code", [2, 72, 8000])
async def test_a_server_that_refuses_it_stores_them_as_usual(
    mongodb_uri: str, database: str, admin: MongoClient, code: int
) -> None:
    """Another storage engine, or a small cluster of Atlas, knows no such option."""
    with failing(admin, "create", times=1, errorCode=code):
        async with MongoSessionService(
            victim_uri(mongodb_uri), database=database
        ) as service:
            session = await service.create_session(**SESSION)
            await service.append_event(session, Event(author="x"))

    assert "zstd" not in compressors(admin, database)
