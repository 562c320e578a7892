"""Forks: copied by the server, whole or not there, cut short or overtaken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import AsyncMongoClient, MongoClient
from support.command_log import CommandsSent
from support.failpoints import failing
from support.long_sessions import event, left_in, store_long_session
from support.subscriptions import SESSION as IDS
from support.subscriptions import Follower, new_event

from mongo_session_service import (
    MongoSessionService,
    StorageError,
    StorageUnavailableError,
    Subject,
    UnknownOutcomeError,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import backends_of
from mongo_session_service.sessions import deletion, queries
from mongo_session_service.sessions import fork as copying
from mongo_session_service.sessions.deletion import Reservations

KEY = SessionKey(**IDS)
FORK = KEY._replace(session_id="fork")


async def fork(service: MongoSessionService, **how: Any) -> None:
    await service.fork_session(**IDS, new_session_id="fork", **how)


async def test_the_server_copies(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """A fork at an early revision reads and copies no more than comes before it."""
    await store_long_session(service, admin, database, KEY, 5000)
    sent = CommandsSent()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[sent]) as client:
        borrowing = MongoSessionService(client=client, database=database)
        await borrowing.setup()
        sent.clear()
        forked = await borrowing.fork_session(**IDS, at_revision=50)

    assert [event.id for event in forked.events] == [f"e{n}" for n in range(1, 51)]
    assert forked.state == {"n": 50, "kept": "yes"}
    assert left_in(admin, database) == {"sessions": 2, "events": 5050}
    assert sent.names.count("aggregate") == 5
    assert "getMore" not in sent.names
    wanted = queries.events_after(KEY, 0, 50)
    explain = {"explain": {"find": "events", "filter": wanted}}
    stats = admin[database].command({**explain, "verbosity": "executionStats"})
    assert stats["executionStats"]["totalDocsExamined"] == 50


async def test_a_fork_is_delivered_once_it_is_whole(
    stepping: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Its events come as those of any log, and then its creation."""
    await store_long_session(stepping, admin, database, KEY, 25)
    async with Follower(stepping.watch(KEY.app_name)) as follower:
        await fork(stepping)
        await stepping.append_event(
            await stepping.get_session(**FORK.id),  # type: ignore[arg-type]
            new_event(done=True),
        )
        await follower.until(lambda: len(follower.told) == 27)

    assert follower.kinds == ["appended"] * 25 + ["created", "appended"]
    assert {change.session_id for change in follower.told} == {"fork"}
    created = follower.told[25]
    assert (created.revision, created.state_delta) == (25, {"n": 25, "kept": "yes"})


async def test_a_failed_fork_leaves_nothing(
    victim: MongoSessionService,
    stepping: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """After an error in the middle the id is free, and nothing of the copy is left.

    Who was told its events is told that they are gone.
    """
    await store_long_session(victim, admin, database, KEY, 25)
    async with Follower(stepping.watch(KEY.app_name)) as follower:
        # The first aggregate reads the source, the second copies events.
        for command, skip in (("aggregate", 1), ("commitTransaction", 0)):
            failure = failing(admin, command, skip=skip, errorCode=2)
            with failure, pytest.raises(StorageError):
                await fork(victim)
            pruned = await victim.prune()
            assert left_in(admin, database) == {"sessions": 1, "events": 25}, pruned

        await fork(victim)

        assert left_in(admin, database) == {"sessions": 2, "events": 50}
        await follower.until(lambda: "created" in follower.kinds)
    log = ["appended"] * 25
    assert follower.kinds == [*log, "deleted", *log, "created"]


async def test_large_events_are_copied_in_smaller_steps(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """A step for which the server has no time is done again, as several."""
    await store_long_session(service, admin, database, KEY, 25)
    too_slow = {"configureFailPoint": "maxTimeAlwaysTimeOut"}
    admin.admin.command({**too_slow, "mode": {"times": 2}})
    try:
        forked = await service.fork_session(**IDS)
    finally:
        admin.admin.command({**too_slow, "mode": "off"})

    assert [event.id for event in forked.events] == [f"e{n}" for n in range(1, 26)]


async def test_an_unfinished_fork_is_not_shown(
    stepping: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If its process dies, a minute later it is gone."""
    await store_long_session(stepping, admin, database, KEY, 25)

    async def die(*_: object) -> None:
        raise StorageUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(copying.Fork, "store_session", die)
        patch.setattr(copying.Fork, "remove_copy", lambda *_: asyncio.sleep(0))
        with pytest.raises(StorageUnavailableError):
            await fork(stepping)

    assert left_in(admin, database) == {"sessions": 2, "events": 50}
    assert await stepping.get_session(**FORK.id) is None
    listed = await stepping.list_sessions(app_name=KEY.app_name)
    assert [each.id for each in listed.sessions] == [KEY.session_id]
    with pytest.raises(AlreadyExistsError):
        await stepping.create_session(**FORK.id)
    await stepping.prune()
    assert left_in(admin, database) == {"sessions": 2, "events": 50}

    later = {"$inc": {"expire_time": -copying.FORK_LIFETIME}}
    admin[database].sessions.update_one({"_id": FORK.id}, later)
    created = await stepping.create_session(**FORK.id)

    assert created.events == []
    assert left_in(admin, database) == {"sessions": 2, "events": 25}


async def test_large_initial_states_are_stored_apart(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Two of 15 MB fit, and are deleted with their session, events or not."""
    for number, state in enumerate(({"x": "x" * 15_000_000}, {"x": "x" * 10_000})):
        key = {**IDS, "session_id": str(number)}
        session = await service.create_session(**key, state=state)
        for _ in range(number):
            await service.append_event(session, new_event(x=1))
        found = await service.get_session_at(**key, revision=0)
        assert found is not None
        assert found.state == state
        assert left_in(admin, database) == {"sessions": 1, "events": 1 + number}
        reread = await service.get_session(**key)
        assert reread is not None
        assert len(reread.events) == number
        told = service.iter_user_events(app_name=KEY.app_name, user_id=KEY.user_id)
        assert [each.event async for each in told] == reread.events
        await service.delete_session(**key)
        assert left_in(admin, database) == {"sessions": 0, "events": 0}


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
