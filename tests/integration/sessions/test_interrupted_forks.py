"""Forks that are cut short, or overtaken: nothing of them is left, or all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import AsyncMongoClient, MongoClient
from support.command_log import CommandsSent
from support.failpoints import failing, is_at
from support.long_sessions import event, left_in, store_long_session
from support.subscriptions import SESSION as IDS
from support.subscriptions import new_event

from mongo_session_service import (
    MongoSessionService,
    StorageUnavailableError,
    Subject,
    UnknownOutcomeError,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import backends_of
from mongo_session_service.sessions import deletion
from mongo_session_service.sessions import fork as copying
from mongo_session_service.sessions.deletion import Reservations

KEY = SessionKey(**IDS)
FORK = KEY._replace(session_id="fork")


async def fork(service: MongoSessionService, **how: Any) -> None:
    await service.fork_session(**IDS, new_session_id="fork", **how)


async def test_a_cancelled_fork_leaves_nothing(
    victim: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Once the call has ended, the server does not go on with the copy."""
    await store_long_session(victim, admin, database, KEY, 25)
    slowly = {"blockConnection": True, "blockTimeMS": 1500}
    with failing(admin, "aggregate", skip=1, **slowly) as hit:
        forking = asyncio.create_task(fork(victim))
        await asyncio.to_thread(hit)
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking

        assert not is_at(admin, "aggregate")
    assert left_in(admin, database) == {"sessions": 1, "events": 25}


async def test_a_fork_without_answer_may_be_copying_still(
    victim: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Nothing is removed while the server may add to it, and all a minute later."""
    await store_long_session(victim, admin, database, KEY, 25)
    unanswered = failing(admin, "aggregate", skip=1, closeConnection=True)
    with unanswered, pytest.raises(StorageUnavailableError):
        await fork(victim)

    assert left_in(admin, database) == {"sessions": 2, "events": 25}
    late = [event(FORK, number) for number in range(1, 26)]
    admin[database].events.insert_many(late)
    later = {"$inc": {"expire_time": -copying.FORK_LIFETIME}}
    admin[database].sessions.update_one({"_id": FORK.id}, later)
    await victim.prune()
    assert left_in(admin, database) == {"sessions": 1, "events": 25}


@pytest.mark.parametrize("how", ["deleted", "pruned"])
async def test_a_place_is_lost_meanwhile(
    stepping: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """What is no session yet is not deleted; one that took too long leaves nothing."""
    await store_long_session(stepping, admin, database, KEY, 25)
    copy_events = copying.Fork.copy_events

    async def overtaken(*arguments: Any) -> None:
        if how == "deleted":
            await stepping.delete_session(**FORK.id)
        else:
            later = {"$inc": {"expire_time": -copying.FORK_LIFETIME}}
            admin[database].sessions.update_one({"_id": FORK.id}, later)
            await stepping.prune()
        await copy_events(*arguments)

    monkeypatch.setattr(copying.Fork, "copy_events", overtaken)
    if how == "deleted":
        await fork(stepping)
        assert left_in(admin, database) == {"sessions": 2, "events": 50}
    else:
        with pytest.raises(StorageUnavailableError, match="too long"):
            await fork(stepping)
        assert left_in(admin, database) == {"sessions": 1, "events": 25}


async def test_the_past_is_of_one_point_in_time(
    mongodb_uri: str, database: str, service: MongoSessionService
) -> None:
    """What is read of a session cannot be torn by a delete: its state is as of then."""
    session = await service.create_session(**IDS, state={"large": "x" * 10_000})
    await service.append_event(session, new_event(k=1))
    sent = CommandsSent()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[sent]) as client:
        borrowing = MongoSessionService(client=client, database=database)
        await borrowing.setup()
        sent.clear()
        past = await borrowing.get_session_at(**IDS, revision=1)
        assert sent.names == ["aggregate", "aggregate"]
        (_, first), (_, then) = sent.sent
        assert "atClusterTime" not in first["readConcern"]
        assert "atClusterTime" in then["readConcern"]

    assert past == session


async def test_a_fork_that_cannot_be_read_back_has_an_unknown_outcome(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """A session that is stored is not reported as refused, whatever fails then."""

    def after_load(_: Any, subject: Subject) -> Any:
        raise ValueError(subject)

    await service.create_session(**IDS, state={"k": 1})
    async with MongoSessionService(
        mongodb_uri, database=database, after_load=after_load
    ) as unable:
        with pytest.raises(UnknownOutcomeError, match="stored, but"):
            await fork(unable)
        with pytest.raises(UnknownOutcomeError, match="stored, but"):
            await unable.create_session(app_name="a", user_id="u", state={"k": 1})

    assert await service.get_session(**FORK.id) is not None


async def test_the_source_is_deleted_meanwhile(
    stepping: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No fork has the events of two sessions, or some of those of one."""
    await store_long_session(stepping, admin, database, KEY, 25)
    copy_events = copying.Fork.copy_events

    async def recreate(*arguments: Any) -> None:
        await copy_events(*arguments)
        await stepping.delete_session(**KEY.id)
        await store_long_session(stepping, admin, database, KEY, 30)

    monkeypatch.setattr(copying.Fork, "copy_events", recreate)
    with pytest.raises(SessionNotFoundError):
        await fork(stepping)

    assert left_in(admin, database) == {"sessions": 1, "events": 30}


async def test_a_late_removal_leaves_the_next_reservation(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """A sweep that has found the one before, which somebody else removed, does not."""
    storage = (await backends_of(service).backend()).storage
    await service.setup()
    before, after = (
        {"_id": FORK.id, **Reservations("held_by", 60).new_fields(storage)}
        for _ in range(2)
    )
    admin[database].sessions.insert_one(after)

    removal = deletion._remove_placeholder(storage, before, None)  # noqa: SLF001
    assert [each async for each in removal] == []

    assert admin[database].sessions.find_one() == after
