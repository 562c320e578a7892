"""Reads from a secondary that lags: three real members, one held back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient
from support.lagging_secondary import PATIENCE, Laggard, caught_up, three_members
from support.replica_set import FailingReplicaSet
from support.subscriptions import SESSION, new_event

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.model.limits import Limits

pytestmark = pytest.mark.xdist_group("secondaries")


@pytest.fixture(scope="module")
def three() -> Iterator[FailingReplicaSet]:
    """Three members, of which a secondary has a tag."""
    with three_members() as replica_set:
        yield replica_set


@pytest.fixture
def laggard(three: FailingReplicaSet) -> Iterator[Laggard]:
    """The tagged member."""
    with Laggard.of(three) as laggard:
        yield laggard


@pytest.fixture
def database(three: FailingReplicaSet) -> Iterator[str]:
    """A name of a database that is dropped after the test."""
    with MongoClient[Any](three.uri) as client:
        yield "lagging"
        client.drop_database("lagging")


@pytest.fixture
async def far(laggard: Laggard, database: str) -> AsyncIterator[MongoSessionService]:
    """A service that reads the laggard, and nobody else."""
    async with MongoSessionService(laggard.uri(), database=database) as service:
        yield service


@pytest.fixture
async def other(
    three: FailingReplicaSet, database: str
) -> AsyncIterator[MongoSessionService]:
    """Another process's service, as far as the first one knows."""
    async with MongoSessionService(three.uri, database=database) as service:
        yield service


async def events(service: MongoSessionService) -> int:
    """How many events a session has, and three ways of reading agree on its state."""
    session = await service.get_session(**SESSION)
    listed = await service.list_sessions(app_name="app", user_id="user")
    user_state = await service.get_user_state(app_name="app", user_id="user")
    assert session is not None
    assert listed.sessions[0].state == session.state
    assert user_state.get("n", 0) == session.state.get("user:n", 0)
    assert session.state.get("user:n", 0) == len(session.events)
    return len(session.events)


async def test_what_was_written_is_read(
    laggard: Laggard, far: MongoSessionService
) -> None:
    """A read waits until the secondary has what the same service has appended."""
    session = await far.create_session(**SESSION)
    assert await events(far) == 0

    with laggard.held_back():
        await far.append_event(session, new_event("x", user_n=1))

        # Somebody else knows of nothing, and is shown what the laggard has.
        async with MongoSessionService(laggard.uri(), database="lagging") as stranger:
            assert await events(stranger) == 0

        result = await caught_up(laggard, lambda: events(far))

    assert await result() == 1


@pytest.mark.parametrize("kind", [AsyncMongoClient, AsyncIOMotorClient])
async def test_a_borrowed_client_is_respected(
    laggard: Laggard, other: MongoSessionService, kind: Any
) -> None:
    """The read preference of the caller's own client is kept in the same way."""
    session = await other.create_session(**SESSION)
    client = kind(laggard.uri())
    service = MongoSessionService(client=client, database="lagging")
    await service.setup()
    with laggard.held_back():
        await service.append_event(session, new_event("x", user_n=1))
        result = await caught_up(laggard, lambda: events(service))
    assert await result() == 1

    await service.close()
    if closing := client.close():
        await closing


async def test_a_new_session_is_found(
    laggard: Laggard, far: MongoSessionService
) -> None:
    """What create_session has stored alone, without shared state, is read as well."""
    await far.create_session(app_name="app", user_id="before")
    with laggard.held_back():
        await far.create_session(**SESSION)  # which does not wait for the laggard
        result = await caught_up(laggard, lambda: events(far))

    assert await result() == 0


async def test_what_was_written_in_another_loop_is_read(
    laggard: Laggard, far: MongoSessionService
) -> None:
    """The time is the service's, whatever thread or event loop has heard of it."""
    session = await far.create_session(**SESSION)

    async def append() -> None:
        await far.append_event(session, new_event("x", user_n=1))

    with laggard.held_back():
        await asyncio.to_thread(lambda: asyncio.run(append()))
        result = await caught_up(laggard, lambda: events(far))

    assert await result() == 1


async def test_what_another_loop_wrote_is_news_to_the_secondary(
    laggard: Laggard, far: MongoSessionService
) -> None:
    """A secondary that does not know how late it is hears of it from the reader."""
    session = await far.create_session(**SESSION)
    assert await events(far) == 0

    async def append() -> None:
        await far.append_event(session, new_event("x", user_n=1))

    with laggard.cut_off():
        await asyncio.to_thread(lambda: asyncio.run(append()))
        result = await caught_up(laggard, lambda: events(far))

    assert await result() == 1


async def test_a_stale_writer_reads_what_made_it_stale(
    laggard: Laggard, far: MongoSessionService, other: MongoSessionService
) -> None:
    """Reading the session again, as the error says, never shows the old one."""
    session = await far.create_session(**SESSION)
    theirs = await other.get_session(**SESSION)
    assert theirs is not None
    with laggard.held_back():
        await other.append_event(theirs, new_event("x", user_n=1))
        with pytest.raises(StaleSessionError):
            await far.append_event(session, new_event())
        result = await caught_up(laggard, lambda: events(far))

    assert await result() == 1


async def test_what_was_pushed_is_read(
    laggard: Laggard, far: MongoSessionService, other: MongoSessionService
) -> None:
    """Who was told of a change does not read what was before it."""
    session = await other.create_session(**SESSION)
    async with far.watch(**SESSION) as changes:
        assert (await anext(changes)).kind == "snapshot"
        with laggard.held_back():
            await other.append_event(session, new_event("x", user_n=1))
            assert (await anext(changes)).revision == 1
            result = await caught_up(laggard, lambda: events(far))

    assert await result() == 1


async def test_what_was_pushed_is_news_to_the_secondary(
    laggard: Laggard, far: MongoSessionService, other: MongoSessionService
) -> None:
    """The feed, which has a client of its own, lets readers know how late it is."""
    session = await other.create_session(**SESSION)
    async with far.watch(**SESSION) as changes:
        assert (await anext(changes)).kind == "snapshot"
        assert await events(far) == 0
        with laggard.cut_off():
            await other.append_event(session, new_event("x", user_n=1))
            assert (await anext(changes)).revision == 1
            result = await caught_up(laggard, lambda: events(far))

    assert await result() == 1


async def test_pages_are_the_primarys(
    laggard: Laggard, far: MongoSessionService, other: MongoSessionService
) -> None:
    """Who reads pages waits for no secondary, and sees nothing older afterwards."""
    of_user = {"app_name": "app", "user_id": "user"}
    session = await far.create_session(**SESSION)
    assert await events(far) == 0
    with laggard.held_back():
        await other.append_event(session, new_event("x", user_n=1))
        assert await events(far) == 0
        async with asyncio.timeout(PATIENCE):
            page = await far.find_sessions(**of_user)
            log = [revision async for revision, _ in far.iter_events(**SESSION)]
            whole = [each.revision async for each in far.iter_user_events(**of_user)]
        result = await caught_up(laggard, lambda: events(far))

    assert (page.sessions[0].revision, page.sessions[0].state) == (1, {"user:n": 1})
    assert log == whole == [1]
    assert await result() == 1


async def test_the_primary_stands_in(laggard: Laggard, database: str) -> None:
    """Where it may be asked, the primary is, once a secondary has had its time."""
    uri, soon = laggard.uri("secondaryPreferred"), Limits(secondary_seconds=0.2)
    async with MongoSessionService(uri, database=database, _limits=soon) as service:
        session = await service.create_session(**SESSION)
        with laggard.held_back():
            await service.append_event(session, new_event("x", user_n=1))

            assert await events(service) == 1


async def test_a_secondary_alone_may_be_too_late(
    laggard: Laggard, database: str
) -> None:
    """Where the primary must not be asked, a read ends as unavailable, not never."""
    uri, soon = laggard.uri(), Limits(only_secondary_seconds=0.2)
    async with MongoSessionService(uri, database=database, _limits=soon) as service:
        session = await service.create_session(**SESSION)
        with laggard.held_back():
            await service.append_event(session, new_event("x", user_n=1))

            with pytest.raises(StorageUnavailableError):
                await events(service)

        async with asyncio.timeout(PATIENCE):
            assert await events(service) == 1


async def test_without_a_preference_the_primary_is_read(
    laggard: Laggard, other: MongoSessionService
) -> None:
    """By default no secondary is waited for, or read."""
    session = await other.create_session(**SESSION)
    with laggard.held_back():
        await other.append_event(session, new_event("x", user_n=1))

        assert await events(other) == 1
