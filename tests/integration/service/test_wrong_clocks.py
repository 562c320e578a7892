"""Machines whose clocks are ten minutes ahead or behind: they decide nothing."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from pymongo import MongoClient
from support.fake_clock import machine_ahead
from support.one_session import IDS, read
from support.subscriptions import APP, Follower, new_event

from mongo_session_service import LeaseLostError, MongoSessionService, Pruned
from mongo_session_service.testing import Limits

WRONG = 600.0
TTL = 300.0
MANY = {f"k{number}": number for number in range(501)}
"""As much state as is merged by a pipeline."""


@pytest.fixture(params=[WRONG, -WRONG], ids=["ahead", "behind"], autouse=True)
def ahead(request: pytest.FixtureRequest) -> Iterator[float]:
    """Whatever this process does, it does by a clock that is wrong."""
    seconds: float = request.param
    with machine_ahead(seconds):
        yield seconds


@pytest.fixture
async def wrong(
    ahead: float,  # noqa: ARG001  before the service begins
    mongodb_uri: str,
    database: str,
    limits: Limits,
) -> AsyncIterator[MongoSessionService]:
    """A service of such a machine that removes nothing unasked."""
    limits = replace(limits, sweep_interval=math.inf)
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=limits
    ) as service:
        yield service


def ends_in(admin: MongoClient, database: str, seconds: float) -> None:
    """Have the session end by the server's clock."""
    ends = {"$set": {"expire_time": time.time() + seconds}}
    admin[database].sessions.update_one({"_id": IDS}, ends)


def lives(admin: MongoClient, database: str, session_id: str = "s") -> float:
    """Seconds that a session still lives."""
    session = admin[database].sessions.find_one(
        {"_id": {**IDS, "session_id": session_id}}
    )
    assert session is not None
    left: float = session["expire_time"] - time.time()
    return left


async def test_a_time_to_live_is_counted_by_the_server(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """From creation on, by the first call as well, and again from each append on."""
    service = MongoSessionService(mongodb_uri, database=database)
    session = await service.create_session(**IDS, ttl=TTL)
    assert lives(admin, database) == pytest.approx(TTL, abs=5)
    for delta in ({"a": 1}, MANY):
        ends_in(admin, database, 20)
        await service.append_event(
            session, Event(author="x", actions=EventActions(state_delta=delta))
        )
        assert lives(admin, database) == pytest.approx(TTL, abs=5)
    await service.fork_session(**IDS, new_session_id="fork")
    assert lives(admin, database, "fork") == pytest.approx(TTL, abs=5)
    await service.close()
    elsewhere = MongoSessionService(mongodb_uri, database=database)
    await elsewhere.update_session(**IDS, ttl=100)
    assert lives(admin, database) == pytest.approx(100, abs=5)
    await elsewhere.close()
    writing = MongoSessionService(mongodb_uri, database=database)
    await writing.create_session(**{**IDS, "session_id": "new"}, ttl=TTL)
    assert lives(admin, database, "new") == pytest.approx(TTL, abs=5)
    await writing.close()


async def test_a_wrong_clock_removes_no_session(
    wrong: MongoSessionService,
    mongodb_uri: str,
    admin: MongoClient,
    database: str,
) -> None:
    """By every read, a watch, a sweep, a prune and a new session of the same id."""
    session = await wrong.create_session(**IDS, ttl=TTL)
    ends_in(admin, database, 60)
    async with (
        MongoSessionService(mongodb_uri, database=database) as sweeping,
        Follower(sweeping.watch(APP)) as all_of_app,
        Follower(sweeping.watch(**IDS)) as follower,
    ):
        assert await wrong.prune() == Pruned()
        with pytest.raises(AlreadyExistsError):
            await wrong.create_session(**IDS)
        assert [it.id for it in (await wrong.list_sessions(app_name=APP)).sessions]
        assert (await wrong.find_sessions(app_name=APP)).sessions
        assert await wrong.get_session(**IDS) is not None
        await sweeping.create_session(app_name=APP, user_id="u", ttl=0.1)
        await all_of_app.until(lambda: all_of_app.gone)  # so there was a sweep
        await wrong.append_event(session, new_event())
        await follower.reached(1)
    assert "s" not in all_of_app.gone
    assert follower.kinds == ["snapshot", "appended"]


async def test_an_expired_session_takes_no_event(
    wrong: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Every write is refused, every read finds nothing, and the id is free."""
    session = await wrong.create_session(**IDS, ttl=TTL)
    await wrong.append_event(session, new_event())
    ends_in(admin, database, -1)

    for refused in (
        wrong.append_event(session, new_event()),
        wrong.append(**IDS, event=new_event()),
        wrong.update_session(**IDS, ttl=None),
        wrong.fork_session(**IDS, new_session_id="fork"),
        wrong.trim_session(**IDS, keep_last=1),
        wrong.wait_for(**IDS, revision=1),
        wrong.turn(**IDS).__aenter__(),
    ):
        with pytest.raises(SessionNotFoundError):
            await refused
    assert await wrong.get_session(**IDS) is None
    assert (await wrong.list_sessions(app_name=APP)).sessions == []
    assert (await wrong.find_sessions(app_name=APP)).sessions == []
    await wrong.create_session(**IDS)
    assert (await read(wrong)).events == []


async def test_idle_sessions_are_judged_by_the_servers_clock(
    wrong: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A session was last used when its events were stored by that clock."""
    now = time.time()
    for session_id, age in (("used", 250.0), ("idle", 350.0)):
        where = {**IDS, "session_id": session_id}
        session = await wrong.create_session(**where)
        event = Event(author="x", timestamp=now - age)
        await wrong.append_event(session, event)
        old = {"create_time": now - 1000, "update_time": now - age}
        admin[database].sessions.update_one({"_id": where}, {"$set": old})

    assert await wrong.prune(idle_for=TTL) == Pruned(sessions=1, events=1)
    used = {**IDS, "session_id": "used"}
    assert await wrong.get_session(**used) is not None
    assert await wrong.trim_session(**used, older_than=TTL) == 0
    assert await wrong.trim_session(**used, older_than=200) == 1


@pytest.mark.limits(lease_seconds=1.0, lease_renewal_seconds=0.1)
async def test_a_held_turn_stays_held(
    wrong: MongoSessionService, service: MongoSessionService
) -> None:
    """Those who wait keep their order; who was overtaken appends nothing."""
    await service.create_session(**IDS)
    async with service.turn(**IDS) as session:
        with pytest.raises(TimeoutError):
            async with wrong.turn(**IDS, wait=1.5):
                pass
        await service.append_event(session, new_event())
        assert [it.status for it in await wrong.find_turns()] == ["running"]
    async with wrong.turn(**IDS, wait=0) as session:
        await wrong.append_event(session, new_event())
    assert len((await read(service)).events) == 2


@pytest.mark.limits(lease_seconds=0.2, lease_renewal_seconds=3600)
async def test_a_turn_that_was_not_renewed_is_free(
    wrong: MongoSessionService, service: MongoSessionService
) -> None:
    """Whatever the clock of the next one says."""
    await service.create_session(**IDS)
    async with service.turn(**IDS) as session:
        async with wrong.turn(**IDS) as following:
            await wrong.append_event(following, new_event("next"))
        with pytest.raises(LeaseLostError):
            await service.append_event(session, new_event("late"))


async def test_a_consumer_keeps_its_name(
    wrong: MongoSessionService, service: MongoSessionService
) -> None:
    """Nobody else reads under it while its lease is renewed."""
    session = await service.create_session(**IDS)
    await service.append_event(session, new_event())
    async with service.consumer("c") as consumer:
        await anext(consumer)
        async with wrong.consumer("c"):
            (status,) = await wrong.consumers()
            assert (status.is_active, status.epoch) == (True, 1)
        await consumer.commit()
