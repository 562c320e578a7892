"""The sweep: who removes expired sessions, when, and whom it leaves alone."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import MongoClient
from support.command_log import CommandsSent
from support.failpoints import failing, victim_uri
from support.fake_clock import Clock
from support.limits import NO_SWEEP, QUICK_SWEEP
from support.long_sessions import left_in, store_long_session
from support.subscriptions import APP, ID, IDS, SESSION, Follower, new_event, until

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey

NOTHING = {"sessions": 0, "events": 0}
HELD: dict[str, Any] = {"blockConnection": True, "blockTimeMS": 3000, "times": 1}


async def test_expired_sessions_are_removed_whole(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Nobody has to watch or to prune, and what never expires stays."""
    kept = await service.create_session(**IDS, ttl=1000)
    await store_long_session(service, admin, database, SessionKey(**SESSION), 2500)
    await service.update_session(**SESSION, ttl=0.2)
    short = await service.create_session(**IDS, ttl=0.2)
    await service.append_event(short, new_event())

    await until(lambda: left_in(admin, database) == {"sessions": 1, "events": 0})

    assert await service.get_session(**IDS, session_id=kept.id) is not None


@pytest.mark.limits(removed_events=10, sweep_interval=0.2)
async def test_interrupted_deletes_are_finished(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """A tombstone goes with the events that are left of its session."""
    key = SessionKey(**SESSION)
    await store_long_session(service, admin, database, key, 35)
    tombstone = {"_id": key.id, "expire_time": 0.0, "steps": 0}
    admin[database].sessions.replace_one({"_id": key.id}, tombstone)

    await until(lambda: left_in(admin, database) == NOTHING)


@pytest.mark.limits(sweep_interval=math.inf)
async def test_several_sweeps_remove_each_session_once(
    service: MongoSessionService, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Each session is ``deleted`` once, though five services sweep."""
    Clock.behind(100)
    for number in range(120):
        await service.create_session(**IDS, session_id=str(number), ttl=10)
    sweepers = [
        MongoSessionService(mongodb_uri, database=database, _limits=QUICK_SWEEP)
        for _ in range(5)
    ]
    async with Follower(service.watch(APP)) as follower:
        for each in sweepers:
            async with each.watch(APP):  # who watches looks at once
                pass
        await follower.until(lambda: len(follower.told) >= 120)
        await service.create_session(**SESSION)
        await follower.until(lambda: follower.kinds[-1] == "created")

    assert left_in(admin, database) == {"sessions": 1, "events": 0}
    assert len(follower.gone) == 120
    for each in sweepers:
        await each.close()


def looks(log: CommandsSent) -> list[Any]:
    """The commands that look for what expires next."""
    return [each for each in log.sent if "$toDouble" in str(each)]


@pytest.mark.limits(sweep_rest=0.1, sweep_patience=0.2)
async def test_a_late_append_keeps_its_session(
    mongodb_uri: str, database: str, admin: MongoClient, service: MongoSessionService
) -> None:
    """An append that began in time renews its session, however late it is committed.

    Sessions that expire at the same time do not wait for the one that it has locked.
    """
    uri = victim_uri(mongodb_uri)
    async with (
        MongoSessionService(uri, database=database, _limits=NO_SWEEP) as writer,
        Follower(service.watch(APP)) as follower,
    ):
        clock = Clock.behind(100)
        session = await writer.create_session(**SESSION, ttl=101)
        await writer.create_session(**IDS, session_id="other", ttl=101)
        clock.catch_up()
        with failing(admin, "commitTransaction", **HELD):
            appending = asyncio.create_task(writer.append_event(session, new_event()))
            await follower.until(lambda: follower.gone == ["other"])
            assert not appending.done()
            event = await appending
        await follower.until(lambda: "appended" in follower.kinds)
        stored = await service.get_session(**SESSION)

    assert follower.gone == ["other"]
    assert stored is not None
    assert stored.events == [event]


@pytest.mark.limits(sweep_rest=0.1, sweep_patience=0.2)
async def test_an_append_after_a_delivered_deletion_is_refused(
    mongodb_uri: str, database: str, admin: MongoClient, service: MongoSessionService
) -> None:
    """It began in time, and wrote too late."""
    uri = victim_uri(mongodb_uri)
    async with (
        MongoSessionService(uri, database=database, _limits=NO_SWEEP) as writer,
        Follower(service.watch(APP)) as follower,
    ):
        session = await writer.create_session(**SESSION, ttl=0.5)
        with failing(admin, "update", **HELD):
            appending = asyncio.create_task(writer.append_event(session, new_event()))
            await follower.until(lambda: follower.gone == [ID])
            assert not appending.done()
            with pytest.raises(SessionNotFoundError):
                await appending

    assert follower.kinds == ["created", "deleted"]


async def test_strange_documents_stop_no_sweep(
    service: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """Another tool's documents are left alone, and are not in the way."""
    strange: list[Any] = [1, {"app_name": 1, "user_id": 2}]
    admin[database].sessions.insert_many(
        {"_id": each, "revision": 0, "expire_time": 5.0} for each in strange
    )
    async with Follower(service.watch(APP)) as follower:
        await service.create_session(**SESSION, ttl=0.1)
        await follower.until(lambda: follower.gone == [ID])

    assert left_in(admin, database)["sessions"] == 2


async def test_without_transactions_sessions_expire_as_well(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """They go with their events."""
    async with MongoSessionService(
        mongodb_uri, database=database, transactions=False
    ) as service:
        session = await service.create_session(**SESSION, ttl=0.5)
        await service.append_event(session, new_event())
        await until(lambda: left_in(admin, database) == NOTHING)
