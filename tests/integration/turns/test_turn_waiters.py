"""Those who wait for a turn: in order in an event loop, and gone without a trace."""

from __future__ import annotations

import asyncio
from contextvars import Context
from datetime import UTC, datetime

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import MongoClient
from support.failpoints import failing
from support.one_session import IDS
from support.waiters import in_line

from mongo_session_service import MongoSessionService, MongoSessionServiceError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.lease import Lease, LeaseRenewer
from mongo_session_service.turns import waiting_line

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def waiting(service: MongoSessionService, wait: float = 30) -> asyncio.Task[str]:
    """A task that waits for a turn, and ends it at once; the id of its session."""

    async def take() -> str:
        async with service.turn(**IDS, wait=wait) as session:
            return session.id

    return asyncio.create_task(take(), context=Context())


async def test_waiters_of_each_process_follow_in_order(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """All have the turn; between processes there is no order."""
    await service.create_session(**IDS)
    order: list[str] = []

    async def wait(name: str, elsewhere: MongoSessionService) -> None:
        async with elsewhere.turn(**IDS):
            order.append(name)

    async with (
        MongoSessionService(mongodb_uri, database=database) as other,
        MongoSessionService(mongodb_uri, database=database) as third,
        asyncio.timeout(60),
    ):
        places = {"a": other, "1": third, "b": other, "2": third, "c": other}
        async with service.turn(**IDS):
            tasks = [
                asyncio.create_task(wait(*place), context=Context())
                for place in places.items()
            ]
            await in_line(other, 3)
            await in_line(third, 2)
            assert order == []
        await asyncio.gather(*tasks)
    for own in ("abc", "12"):
        assert [each for each in order if each in own] == [*own]


@pytest.mark.limits(turn_poll_seconds=3600)
async def test_who_tries_once_is_not_before_one_that_waits(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Though the turn is free by then."""
    await service.create_session(**IDS)
    async with service.turn(**IDS):
        waiter = waiting(service)
        await in_line(service, 1)
        admin[database].sessions.update_one({"_id": IDS}, {"$unset": {"turn": ""}})
        with pytest.raises(TimeoutError):
            await waiting(service, wait=0)
    await waiter


async def test_waiters_of_a_deleted_session_fail(
    service: MongoSessionService,
) -> None:
    """Each gets SessionNotFoundError; the turn that was held ends without an error."""
    await service.create_session(**IDS)

    async with service.turn(**IDS):
        tasks = [waiting(service) for _ in range(3)]
        await in_line(service, 3)
        await service.delete_session(**IDS)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in errors] == [SessionNotFoundError] * 3


async def test_a_waiter_of_a_recreated_session_fails(
    service: MongoSessionService,
) -> None:
    """It gets SessionNotFoundError; a waiter of the new session gets its turn."""
    await service.create_session(**IDS)

    async with asyncio.timeout(60), service.turn(**IDS):
        outlived = waiting(service)
        await in_line(service, 1)
        await service.delete_session(**IDS)
        await service.create_session(**IDS)
        assert await waiting(service) == IDS["session_id"]
        with pytest.raises(SessionNotFoundError):
            await outlived


async def test_a_closed_service_waits_for_no_turn(
    service: MongoSessionService,
) -> None:
    """Its waiters get an error; what it holds is released at the end of the body."""
    await service.create_session(**IDS)

    async with service.turn(**IDS):
        waiter = waiting(service)
        await in_line(service, 1)
        await service.close()
        with pytest.raises(MongoSessionServiceError, match="closed"):
            await waiter
    async with service.turn(**IDS, wait=0):
        pass


async def test_a_waiter_that_gives_up_leaves_nothing(
    service: MongoSessionService,
    victim: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if MongoDB does not answer then: no turn was held that could be left."""
    await service.create_session(**IDS)
    async with service.turn(**IDS):
        waiter = waiting(victim)
        await in_line(victim, 1)
        with failing(admin, "findAndModify", errorCode=8000):
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
    assert not [it for it in caplog.records if it.levelname == "WARNING"]
    assert admin[database].leases.count_documents({}) == 0


async def test_any_number_of_sessions_with_long_ids_is_looked_at(
    service: MongoSessionService,
) -> None:
    """Their ids take 17 MB, more than a command."""
    key = SessionKey(*(letter * 4096 for letter in "aus"))
    await service.create_session(**key.id)
    backend = await service._backends.backend()  # noqa: SLF001
    many = [key._replace(session_id=f"{n:04}" * 1024) for n in range(1400)]
    found = await waiting_line.load_turn_states(backend.storage, [*many, key])
    assert [*found] == [key]


async def test_many_leases_of_long_ids_are_renewed(
    service: MongoSessionService,
) -> None:
    """The thread cuts its command as well."""
    backend = await service._backends.backend()  # noqa: SLF001
    connection = backend.storage
    held = []
    for number in range(1400):
        lease = Lease(connection, "sessions", {"id": f"{number:04}" * 3072}, "turn.")
        held.append(lease)
    stored = [
        {
            "_id": each.id,
            "turn": {"holder": {"token": each.token}, "renewed_at": LONG_AGO},
        }
        for each in held
    ]
    sessions = connection.collection("sessions")
    await sessions.insert_many(stored)
    renewer = LeaseRenewer()
    for each in held:
        renewer.keep_renewing(each)
    fresh = {"turn.renewed_at": {"$gt": LONG_AGO}}
    async with asyncio.timeout(60):
        while await sessions.count_documents(fresh) < len(held):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    for each in held:
        renewer.stop_renewing(each)
    await renewer.end_thread()
