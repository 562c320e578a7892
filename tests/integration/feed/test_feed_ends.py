"""Backlogs, endings and documents that are out of the ordinary."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.sessions import Session
from pymongo import AsyncMongoClient, MongoClient
from support.consumers import APP, PATIENCE, append, create
from support.failpoints import failing, victim_uri
from support.subscriptions import SESSION, Follower, new_event

from mongo_session_service import HistoryLostError, MongoSessionService
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.stream import Stream
from mongo_session_service.testing import Limits


@pytest.mark.parametrize("is_borrowed", [False, True])
async def test_a_backlog_is_no_slow_reader(
    is_borrowed: bool,  # noqa: FBT001  a parameter of the test
    mongodb_uri: str,
    database: str,
    service: MongoSessionService,
    admin: MongoClient,
) -> None:
    """More changes after an outage than may wait are read by whoever reads at once."""
    uri = victim_uri(mongodb_uri)
    client: Any = AsyncMongoClient(uri) if is_borrowed else None
    victim = MongoSessionService(
        None if is_borrowed else uri,
        client=client,
        database=database,
        _limits=Limits(inbox_changes=500),
    )
    sessions = [await create(service, f"s{number}") for number in range(40)]
    async with Follower(victim.watch(APP)) as follower:
        with failing(admin, "getMore", "aggregate", errorCode=91):
            await asyncio.gather(*(append(service, each, 15) for each in sessions))
        await follower.until(lambda: len(follower.told) == 600)
    await victim.close()
    if client is not None:
        await client.close()


async def test_closing_the_service_ends_a_subscription_that_catches_up(
    service: MongoSessionService,
) -> None:
    """It opens no new stream."""
    await append(service, await create(service), 300)
    async with service.watch(**SESSION, after_revision=0) as changes:
        await anext(changes)
        await service.close()
        async with asyncio.timeout(PATIENCE):
            async for _ in changes:
                pass
    assert not service.feed_stats().is_running


async def test_a_collection_that_is_replaced_is_reported(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Renaming another onto it, as $out does, is dropping it."""
    await service.create_session(**SESSION)
    async with Follower(service.watch()) as follower:
        admin[database].other.insert_one({})
        admin[database].other.rename("events", dropTarget=True)
        assert isinstance(await follower.ended(), HistoryLostError)


async def test_a_key_set_to_nan_is_delivered_once(
    service: MongoSessionService,
) -> None:
    """A number that equals not even itself is known from the event all the same."""
    session: Session = await service.create_session(**SESSION)
    async with Follower(service.watch(**SESSION)) as follower:
        await service.append_event(session, new_event(app_n=float("nan")))
        await service.append_event(session, new_event())
        await follower.reached(2)
    assert follower.kinds == ["snapshot", "appended", "appended"]


async def test_a_feed_that_fails_ends_all_waits(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who wait for it to open have its error, and the next one starts anew."""
    await service.create_session(**SESSION)

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "latest_time", fail)
        opening = [service.watch(APP).__aenter__() for _ in range(5)]
        errors = await asyncio.gather(*opening, return_exceptions=True)
    assert [str(each) for each in errors] == [
        "The change feed failed with RuntimeError."
    ] * len(opening)
    assert len({id(each) for each in errors}) == len(opening)
    async with asyncio.timeout(PATIENCE), service.watch(APP):
        pass


async def test_closing_waits_until_a_stream_is_closed(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that ended before, and still closes its cursor, is waited for as well."""
    is_closing, may_close = asyncio.Event(), asyncio.Event()
    close = Stream.close_cursor

    async def close_late(stream: Stream) -> None:
        is_closing.set()
        await may_close.wait()
        await close(stream)

    monkeypatch.setattr(Stream, "close_cursor", close_late)
    service = MongoSessionService(
        mongodb_uri, database=database, _limits=Limits(feed_linger_seconds=0)
    )
    async with service.watch(APP):
        pass
    async with asyncio.timeout(PATIENCE):
        await is_closing.wait()
    monkeypatch.setattr(Stream, "close_cursor", close)
    async with service.watch(APP):
        closing = asyncio.create_task(service.close())
        done, _ = await asyncio.wait([closing], timeout=0.1)
        may_close.set()
        await closing
    assert not done


async def test_a_subscription_closed_before_it_is_open_has_ended(
    service: MongoSessionService,
) -> None:
    """It delivers nothing, and nothing waits for it."""
    await service.create_session(**SESSION)
    subscription = service.watch(APP)
    subscription.close()
    async with asyncio.timeout(PATIENCE), subscription as changes:
        assert [each async for each in changes] == []
