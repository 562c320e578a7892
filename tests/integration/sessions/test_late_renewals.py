"""Expiry is one moment: a session is renewed in time, or it is deleted for good."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as platform_time
from pymongo import MongoClient
from support.failpoints import failing, victim_uri
from support.fake_clock import Clock
from support.subscriptions import APP, ID, IDS, SESSION, USER, Follower, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.sessions import deletion

SCOPES = [(APP, USER, ID), (APP, USER)]
HELD: dict[str, Any] = {"blockConnection": True, "blockTimeMS": 700, "times": 1}


@pytest.fixture
async def checks(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """Receives how many sessions were over, whenever a subscription has checked."""
    checks, ended = asyncio.Queue[int](), deletion.ended
    loop = asyncio.get_running_loop()

    async def checking(connection: Any, ids: list[Any], now: float) -> Any:
        found = await ended(connection, ids, now)
        if ids:  # a feed has a loop of its own
            loop.call_soon_threadsafe(checks.put_nowait, len(found))
        return found

    monkeypatch.setattr(deletion, "ended", checking)
    return checks


@pytest.mark.parametrize("scope", SCOPES)
async def test_nobody_is_told_of_an_end_that_an_append_prevents(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    service: MongoSessionService,
    clock: Clock,
    checks: asyncio.Queue[int],
    scope: tuple[str, ...],
) -> None:
    """An append that began in time renews its session, however late it is committed."""
    platform_time.set_time_provider(clock)
    uri = victim_uri(mongodb_uri)
    async with MongoSessionService(uri, database=database) as writer:
        session = await writer.create_session(**SESSION, ttl=0.2)
        async with Follower(service.watch(*scope)) as follower:
            await service.create_session(**IDS)
            await follower.until(lambda: follower.told)
            clock.now += 0.19
            with failing(admin, "commitTransaction", **HELD) as wait_until_held:
                appending = asyncio.create_task(
                    writer.append_event(session, new_event())
                )
                await asyncio.to_thread(wait_until_held)
                clock.now += 0.02
                while not checks.empty():
                    checks.get_nowait()
                assert await checks.get() == 0
                assert not appending.done()
                event = await appending
            await follower.until(lambda: "appended" in follower.kinds)
            assert "deleted" not in follower.kinds
            stored = await service.get_session(**SESSION)
            assert stored is not None
            assert stored.events == [event]

            clock.now += 1
            await follower.until(lambda: "deleted" in follower.kinds)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("ttl", [0.2, None])
async def test_an_append_finds_no_session_that_is_told_to_be_deleted(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    service: MongoSessionService,
    clock: Clock,
    scope: tuple[str, ...],
    ttl: float | None,
) -> None:
    """An append that began in time, and wrote too late, is refused."""
    platform_time.set_time_provider(clock)
    uri = victim_uri(mongodb_uri)
    moment = datetime.fromtimestamp(clock.now + 0.2, tz=UTC)
    end: dict[str, Any] = {"ttl": ttl} if ttl else {"expire_time": moment}
    async with MongoSessionService(uri, database=database) as writer:
        session = await writer.create_session(**SESSION, **end)
        async with Follower(service.watch(*scope)) as follower:
            await service.create_session(**IDS)
            await follower.until(lambda: follower.told)
            clock.now += 0.19
            with failing(admin, "update", **{**HELD, "blockTimeMS": 1500}) as wait:
                appending = asyncio.create_task(
                    writer.append_event(session, new_event())
                )
                await asyncio.to_thread(wait)
                clock.now += 0.02
                await follower.until(lambda: "deleted" in follower.kinds)
                assert not appending.done()
                with pytest.raises(SessionNotFoundError):
                    await appending
        assert "appended" not in follower.kinds
        assert await service.get_session(**SESSION) is None
        with pytest.raises(SessionNotFoundError):
            await writer.update_session(**SESSION, ttl=10)


async def test_a_locked_session_does_not_hold_up_the_end_of_others(
    service: MongoSessionService, admin: MongoClient, database: str, clock: Clock
) -> None:
    """Another writer's open transaction may yet renew one of the sessions that end."""
    platform_time.set_time_provider(clock)
    names = [str(number) for number in range(7)]
    for name in names:
        await service.create_session(**IDS, session_id=name, ttl=0.2)
    locked, *others = names
    async with Follower(service.watch(APP, USER)) as follower:
        with admin.start_session() as txn:
            txn.start_transaction()
            where, change = {"_id.session_id": locked}, {"$set": {"locked": True}}
            admin[database].sessions.update_one(where, change, session=txn)
            clock.now += 1
            await follower.until(lambda: len(follower.told) == len(others))
            assert {each.session_id for each in follower.told} == {*others}
            txn.abort_transaction()
        await follower.until(lambda: follower.told[-1].session_id == locked)
    assert {each.kind for each in follower.told} == {"deleted"}
