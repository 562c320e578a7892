"""What is moved does not begin to expire, whatever the service's default is."""

from __future__ import annotations

from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.transfers import IDS, compared, moved_copy, say

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import (
    Problem,
    ServiceSource,
    StoreSource,
    move,
    verify,
)


async def test_moved_sessions_have_no_end(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """The default is for new sessions; they verify as equal."""
    old = InMemorySessionService()
    await old.create_session(**IDS)
    await say(old, "hello")
    found: list[Problem] = []
    async with (
        MongoSessionService(mongodb_uri, database=database, default_ttl=60) as service,
        ServiceSource(old, ["weather"]) as source,
    ):
        await move(source, service)
        async with StoreSource(service) as target:
            await verify(source, target, on_difference=found.append)

    (session,) = admin[database].sessions.find()
    assert session["revision"] == 1
    assert session.get("ttl") is None
    assert session.get("expire_time") is None
    assert found == []


async def test_a_session_that_has_grown_lives_as_long_as_in_its_source(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """As with any append, its time to live begins anew."""
    await service.create_session(**IDS, ttl=60)
    async with moved_copy(service, mongodb_uri, database) as copy:
        await say(service, "more")
        async with StoreSource(service) as source:
            assert (await move(source, copy)).caught_up == 1

        assert await compared(service, copy) == []
