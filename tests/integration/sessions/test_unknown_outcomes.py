"""When nobody knows whether a write was done: it is said, and trying again is safe."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.sessions import Session
from pymongo import MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.write_concern import WriteConcern
from support.failpoints import VICTIM, failing, open_transactions, victim_uri
from support.long_sessions import event as stored_event
from support.one_session import IDS, read
from support.replica_set import FailingReplicaSet

from mongo_session_service import (
    MongoSessionService,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.testing import Limits

UNREPLICATED = {"writeConcernError": {"code": 64, "errmsg": "waiting timed out"}}
UNSATISFIABLE = {"writeConcernError": {"code": 100, "errmsg": "not enough members"}}
UNANSWERED = {
    "errorCode": 50,
    "errorLabels": ["UnknownTransactionCommitResult"],
}
SILENT = {"blockConnection": True, "blockTimeMS": 1000}


@pytest.mark.parametrize("how", [UNREPLICATED, {"closeConnection": True}])
async def test_a_create_without_answer_has_an_unknown_outcome(
    victim: MongoSessionService, admin: MongoClient, how: dict[str, Any]
) -> None:
    """A session that may have been stored is not reported as refused."""
    with failing(admin, "insert", **how), pytest.raises(UnknownOutcomeError):
        await victim.create_session(**IDS)

    if "writeConcernError" in how:
        with pytest.raises(AlreadyExistsError):
            await victim.create_session(**IDS)
    else:
        await victim.create_session(**IDS)


async def test_an_update_and_a_delete_without_answer_may_be_done_again(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """The error reports that the outcome is unknown, and nothing stays open."""
    await victim.create_session(**IDS)

    for call in (
        lambda: victim.update_session(**IDS, title="new"),
        lambda: victim.delete_session(**IDS),
    ):
        with (
            failing(admin, "commitTransaction", times=1, **UNANSWERED),
            pytest.raises(UnknownOutcomeError),
        ):
            await call()
        assert open_transactions(admin) == 0
        await call()

    assert await victim.get_session(**IDS) is None


async def test_a_commit_that_may_be_lost_has_an_unknown_outcome(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """An event that is stored, but perhaps on no majority, is recognised later."""
    session = await victim.create_session(**IDS)
    event = Event(author="x")

    with (
        failing(admin, "commitTransaction", **UNSATISFIABLE),
        pytest.raises(UnknownOutcomeError),
    ):
        await victim.append_event(session, event)
    assert session.events == []
    await victim.append_event(session, event)

    assert session.events == [event]
    assert (await read(victim)).events == [event]


async def test_a_commit_repeated_on_a_starting_member_has_an_unknown_outcome(
    victim: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may have been stored, whatever error the driver reports."""
    commit = AsyncClientSession.commit_transaction

    async def committed(driver_session: AsyncClientSession) -> None:
        await commit(driver_session)
        # PyMongo has no other way to say that a member has only just been started.
        message = "Sessions are not supported by this MongoDB deployment"
        raise DriverConfigurationError(message)

    session = await victim.create_session(**IDS)
    event = Event(author="x")
    with monkeypatch.context() as patched:
        patched.setattr(AsyncClientSession, "commit_transaction", committed)
        with pytest.raises(UnknownOutcomeError):
            await victim.append_event(session, event)
    await victim.append_event(session, event)

    assert session.events == (await read(victim)).events == [event]


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_a_session_from_json_is_shown_what_was_stored(
    victim: MongoSessionService, admin: MongoClient, before: int
) -> None:
    """It has no marker, and shows an event that is recognised all the same."""
    session = await victim.create_session(**IDS)
    for _ in range(before):
        await victim.append_event(session, Event(author="x"))
    rebuilt = Session.model_validate_json(session.model_dump_json())
    event = Event(author="y")

    with (
        failing(admin, "commitTransaction", **UNSATISFIABLE),
        pytest.raises(UnknownOutcomeError),
    ):
        await victim.append_event(rebuilt, event)
    for _ in range(2):
        await victim.append_event(rebuilt, event)

    assert rebuilt.events == (await read(victim)).events == [*session.events, event]
    await victim.append_event(rebuilt, Event(author="z"))
    assert rebuilt.events == (await read(victim)).events


@pytest.mark.parametrize("command", ["update", "commitTransaction"])
@pytest.mark.parametrize("limited_by", ["us", "the URI"])
async def test_a_write_is_given_up_in_time(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    command: str,
    limited_by: str,
) -> None:
    """A server that does not answer is not waited for for ever; nothing stays open."""
    uri, limits = victim_uri(mongodb_uri), Limits()
    if limited_by == "us":
        limits = Limits(write_seconds=0.3)
    else:
        uri += "&timeoutMS=300"
    async with MongoSessionService(mongodb_uri, database=database) as calm:
        session = await calm.create_session(**IDS)
    async with MongoSessionService(uri, database=database, _limits=limits) as hasty:
        with (
            failing(admin, command, **SILENT),
            pytest.raises(Exception, match=r"unknown|unavailable") as caught,
        ):
            await hasty.append_event(session, Event(author="x"))
        is_unknown = isinstance(caught.value, UnknownOutcomeError)
        assert is_unknown == (command == "commitTransaction")
        assert open_transactions(admin) == 0
        await hasty.append_event(session, Event(author="x"))
        assert len((await read(hasty)).events) == 1


async def test_one_limit_bounds_retries_and_rebasing(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """An append that is refused, and then reads what it has missed, ends in time."""
    async with (
        MongoSessionService(mongodb_uri, database=database) as calm,
        MongoSessionService(
            victim_uri(mongodb_uri),
            database=database,
            on_conflict="rebase",
            _limits=Limits(write_seconds=2.0),
        ) as hasty,
    ):
        session = await hasty.create_session(**IDS)
        copy = await read(calm)
        await calm.append_event(copy, Event(author="other"))
        slow = {"blockConnection": True, "blockTimeMS": 1500}
        began = time.monotonic()
        with (
            failing(admin, "update", "aggregate", "find", **slow),
            pytest.raises(StorageUnavailableError, match="within 2 seconds"),
        ):
            await hasty.append_event(session, Event(author="x"))
        # The server may be at one command, or two, when the time is over.
        assert 1.9 < time.monotonic() - began < 5.0
        assert open_transactions(admin) == 0
        await hasty.append_event(session, Event(author="x"))
        assert [each.author for each in (await read(calm)).events] == ["other", "x"]


@pytest.mark.xdist_group("heavy")
async def test_an_event_without_a_majority_is_not_reported_as_stored() -> None:
    """An event found on a primary that is cut off may be lost: it is waited for.

    No fork has what was lost with it.
    """
    async with FailingReplicaSet(members=3) as replica_set:
        uri = f"{replica_set.uri}&heartbeatFrequencyMS=500&appName={VICTIM}"
        async with (
            MongoSessionService(uri) as first,
            MongoSessionService(uri) as second,
        ):
            session = await first.create_session(**IDS)
            copy, event = session.model_copy(deep=True), Event(author="x")
            lost = SessionKey("app", "user", "lost")
            await first.create_session(**lost.id)
            primary = await asyncio.to_thread(lambda: replica_set.primary)
            others = [pid for n, pid in enumerate(replica_set.pids) if n != primary]
            for pid in others:
                os.kill(pid or 0, signal.SIGSTOP)
            # It is stored on the primary, which waits for a second member to have it.
            one = asyncio.create_task(first.append_event(session, event))
            with MongoClient(replica_set.uri) as admin:
                events = admin.adk.events
                async with asyncio.timeout(60):
                    # No signal comes from the server.
                    while not await asyncio.to_thread(  # noqa: ASYNC110
                        events.count_documents, {}
                    ):
                        await asyncio.sleep(0.01)
                alone = admin.get_database("adk", write_concern=WriteConcern(1))
                alone.events.insert_one(stored_event(lost, 1))
                append = {"$set": {"revision": 1, "state.n": 1}}
                alone.sessions.update_one({"_id": lost.id}, append)
            forking = asyncio.create_task(second.fork_session(**lost.id))
            other = asyncio.create_task(second.append_event(copy, event))
            done, _ = await asyncio.wait([other], timeout=0.5)
            assert not done, "acknowledged what only one member has"
            await asyncio.to_thread(replica_set.stop_member, primary, kill=True)
            for pid in others:
                os.kill(pid or 0, signal.SIGCONT)
            # What was lost with the primary is stored again, by whoever is first.
            async with asyncio.timeout(60):
                await asyncio.gather(one, other)
                fork = await forking
            assert (await read(first)).events == [event]
            (found,) = (await first.find_sessions(app_name="app", limit=1)).sessions
            assert (found.id, found.revision, found.state) == (fork.id, 0, {})
