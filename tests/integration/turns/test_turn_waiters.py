"""Those who wait for a turn: called at once, in order, and gone without a trace."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from contextvars import Context
from datetime import UTC, datetime
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import MongoClient
from support.failpoints import failing
from support.one_session import IDS

from mongo_session_service import MongoSessionService, MongoSessionServiceError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import Lease, LeaseRenewer
from mongo_session_service.turns import waiting_line

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def waiters(admin: MongoClient, database: str) -> list[dict[str, Any]]:
    return list(admin[database].leases.find({}, {"_id": 1}).sort("_id", 1))


async def queued(admin: MongoClient, database: str, count: int) -> None:
    async with asyncio.timeout(60):
        while len(waiters(admin, database)) != count:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


def waiting(service: MongoSessionService) -> asyncio.Task[str]:
    """A task that waits for a turn, and ends it at once; the id of its session."""

    async def take() -> str:
        async with service.turn(**IDS) as session:
            return session.id

    return asyncio.create_task(take(), context=Context())


async def test_waiters_elsewhere_follow_in_order(
    service: MongoSessionService, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Whichever service of which process they wait in."""
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
        tasks = []
        holding = service.turn(**IDS)
        await holding.__aenter__()
        for count, (name, each) in enumerate(
            (("a", other), ("b", third), ("c", other)), 1
        ):
            tasks.append(asyncio.create_task(wait(name, each)))
            await queued(admin, database, count)
        assert order == []
        await holding.__aexit__(None, None, None)
        await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    assert waiters(admin, database) == []


@pytest.mark.parametrize("wait", [0, 30])
async def test_a_dead_waiter_delays_no_other(
    service: MongoSessionService, admin: MongoClient, database: str, wait: float
) -> None:
    """It is passed over, and its document is removed in the end."""
    await service.create_session(**IDS)
    stored, where = admin[database], {"_id": IDS}
    dead = {"_id": {**IDS, "ticket": 1}, "renewed_at": LONG_AGO}
    stored.leases.insert_one(dead)
    stored.sessions.update_one(
        where, {"$set": {"turn": {"epoch": 7, "ticket": 1, "is_awaited": True}}}
    )

    async with service.turn(**IDS, wait=wait):
        pass

    assert waiters(admin, database) == []
    session = stored.sessions.find_one(where)
    assert session is not None
    assert session["turn"].keys() == {"epoch", "ticket", "ended"}


async def test_waiters_of_a_deleted_session_fail(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Each gets SessionNotFoundError; the turn that was held ends without an error."""
    await service.create_session(**IDS)

    async with service.turn(**IDS):
        tasks = [waiting(service) for _ in range(3)]
        await queued(admin, database, 3)
        await service.delete_session(**IDS)
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in errors] == [SessionNotFoundError] * 3
    assert waiters(admin, database) == []


async def test_a_waiter_of_a_recreated_session_fails(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """It gets SessionNotFoundError; a waiter of the new session gets its turn."""
    await service.create_session(**IDS)

    async with asyncio.timeout(60), service.turn(**IDS):
        outlived = waiting(service)
        await queued(admin, database, 1)
        await service.delete_session(**IDS)
        await service.create_session(**IDS)
        assert await waiting(service) == IDS["session_id"]
        with pytest.raises(SessionNotFoundError):
            await outlived
    assert waiters(admin, database) == []


async def test_a_closed_service_waits_for_no_turn(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Its waiters get an error; what it holds is released at the end of the body."""
    await service.create_session(**IDS)

    async with service.turn(**IDS):
        waiter = waiting(service)
        await queued(admin, database, 1)
        await service.close()
        with pytest.raises(MongoSessionServiceError, match="closed"):
            await waiter
    async with service.turn(**IDS, wait=0):
        pass
    assert waiters(admin, database) == []


async def test_a_waiter_that_never_had_the_turn_does_not_end_one(
    service: MongoSessionService,
    victim: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A waiter that gives up, and cannot leave the line, leaves a ticket behind."""
    await service.create_session(**IDS)
    async with service.turn(**IDS):
        waiter = waiting(victim)
        await queued(admin, database, 1)
        with failing(admin, "findAndModify", errorCode=8000):
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
    (record,) = (it for it in caplog.records if it.levelname == "WARNING")
    assert record.getMessage().startswith("A ticket is left, and expires by itself.")


async def test_erasing_and_pruning_leave_no_waiter(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A user's are erased with the user, dead ones of anybody are pruned."""
    leases = admin[database].leases
    dead = [
        {"_id": {**IDS, "user_id": user, "ticket": 1}, "renewed_at": LONG_AGO}
        for user in ("user", "other", "third")
    ]
    leases.insert_many(dead)
    leases.insert_one({"_id": "a consumer", "owner": None})
    await service.delete_user(app_name=IDS["app_name"], user_id="user")
    assert [each["_id"] for each in waiters(admin, database)] == [
        "a consumer",
        dead[1]["_id"],
        dead[2]["_id"],
    ]
    await service.prune()
    assert [each["_id"] for each in waiters(admin, database)] == ["a consumer"]


async def test_a_long_line_of_long_ids_dies_of_no_size(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """Their ids take 17 MB, more than a command: all are looked for and renewed."""
    parts = {name: letter * 4096 for name, letter in zip(IDS, "aus", strict=True)}
    await service.create_session(**parts)
    backend = await service._backends.backend()  # noqa: SLF001
    connection = backend.storage
    key = SessionKey(**parts)
    async with service.turn(**parts):
        first = await waiting_line.draw_ticket(connection, key, interrupts=False)
        line = [first._replace(number=number) for number in range(1, 1401)]
        stored = [{"_id": each.id, "renewed_at": LONG_AGO} for each in line]
        await connection.collection("leases").insert_many(stored[1:])
        renewed_by = asyncio.create_task(renewed(connection, len(line)))
        line_here = waiting_line.WaitingLine(connection)
        with ExitStack() as joined:
            waiters = [joined.enter_context(line_here.join(it)) for it in line]
            await renewed_by
            many = [key._replace(session_id=f"{n:04}" * 1024) for n in range(1400)]
            assert list(
                await waiting_line.load_turn_states(connection, [*many, key])
            ) == [key]
            assert await waiting_line.load_heads(connection, [*many, key]) == {
                key: (1, 0)
            }
            line_here.fail_all()
            for each in waiters:
                with pytest.raises(MongoSessionServiceError, match="closed"):
                    await each.wait_until_called()
    assert not caplog.records


async def renewed(connection: Storage, count: int) -> None:
    """Return when so many waiters have renewed their tickets."""
    fresh = {"renewed_at": {"$gt": LONG_AGO}}
    async with asyncio.timeout(60):
        while await connection.collection("leases").count_documents(fresh) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.limits(lease_seconds=6.0, lease_renewal_seconds=0.1)
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
        renewer.add_lease(each)
    fresh = {"turn.renewed_at": {"$gt": LONG_AGO}}
    async with asyncio.timeout(60):
        while await sessions.count_documents(fresh) < len(held):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    for each in held:
        renewer.discard_lease(each)
    await renewer.end_thread()
