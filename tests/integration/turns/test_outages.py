"""MongoDB is away for longer than a lease: nobody could renew what they hold."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.consumers import take
from support.conversations import runner_of, start
from support.one_session import IDS, authors, read
from support.patience import PATIENCE
from support.spoken_model import SpokenModel
from support.waiters import in_line

from mongo_session_service import (
    LeaseLostError,
    MongoSessionService,
    StorageUnavailableError,
)
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.storage import database, lease
from mongo_session_service.storage.clients import DEFAULT_DATABASE
from mongo_session_service.testing import Limits

LIMITS = Limits(
    lease_seconds=2.0,
    lease_renewal_seconds=0.2,
    recovery_seconds=0.05,
    consumer_poll_seconds=0.05,
)
AWAY = LIMITS.lease_seconds + 0.2
BREAK = 0.5


@pytest.fixture
def replica_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedReplicaSet]:
    """MongoDB, of which an outage is noticed that lasts as long as these leases."""
    monkeypatch.setattr(database, "_BREAK", BREAK)
    with EmbeddedReplicaSet() as replica_set:
        yield replica_set


async def freeze(replica_set: EmbeddedReplicaSet, seconds: float = AWAY) -> None:
    """Have MongoDB not answer for longer than a lease."""
    (pid,) = replica_set.pids
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def expire_all(replica_set: EmbeddedReplicaSet) -> None:
    """Make all leases look as if MongoDB had been away for longer."""
    long_ago = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    with MongoClient[Any](replica_set.uri) as client:
        for name, path in ("sessions", "turn."), ("leases", ""):
            setting = {"$set": {f"{path}renewed_at": long_ago}}
            client[DEFAULT_DATABASE][name].update_many({}, setting)


async def test_a_living_process_keeps_its_turns_and_consumers(
    replica_set: EmbeddedReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if all who want them ask before it has renewed them."""
    # Its leases are set back, so that it has ten seconds to renew them afterwards.
    limits = dataclasses.replace(LIMITS, lease_seconds=20.0)
    has_asked, may_renew, has_renewed = (threading.Event() for _ in range(3))
    renew, load_expired = lease._renew_due, lease.Lease._load_expired  # noqa: SLF001
    seen = set[str]()

    def renew_when_others_have_looked(*arguments: Any) -> None:
        has_asked.set()
        may_renew.wait(PATIENCE)
        renew(*arguments)
        has_renewed.set()

    async def look(self: lease.Lease, storage: Any) -> Any:
        found = await load_expired(self, storage)
        if found is not None:
            seen.add(self.collection)
        if seen == {"sessions", "leases"}:
            may_renew.set()
        return found

    monkeypatch.setattr(lease.Lease, "_load_expired", look)
    async with (
        MongoSessionService(replica_set.uri, _limits=limits) as holder,
        MongoSessionService(replica_set.uri, _limits=limits) as other,
    ):
        await holder.create_session(**IDS)
        model = SpokenModel()
        running = await start(holder, model)
        reader = holder.consumer("c")
        await take(reader, 1)

        async def append_in_turn() -> None:
            async with other.turn(**IDS) as session:
                await other.append_event(session, Event(author="waiter"))

        waiting = asyncio.create_task(append_in_turn())
        await in_line(other, 1)
        standing_by = asyncio.create_task(take(other.consumer("c"), 1))
        recovering = [
            asyncio.create_task(each.recover_turns(runner_of(each, model)))
            for each in (holder, other)
        ]
        monkeypatch.setattr(lease, "_renew_due", renew_when_others_have_looked)
        await asyncio.to_thread(has_asked.wait, PATIENCE)
        for each in (holder, other):  # as if it had answered them for long
            (await each._backends.storage()).contact._begun_at = -math.inf  # noqa: SLF001
        await freeze(replica_set, BREAK + 0.2)
        expire_all(replica_set)
        await asyncio.to_thread(has_renewed.wait, PATIENCE)
        model.say("fine")
        model.end_answer()
        (answer,) = await running.result()
        await reader.commit()
        assert not standing_by.done()
        await reader.close()
        await standing_by
        await waiting
        assert not any(each.done() for each in recovering)
        for each in recovering:
            each.cancel()
        stored = await read(holder)
    assert authors(stored) == ["user", "agent", "waiter"]
    assert stored.events[1].id == answer.id


async def test_a_dead_turn_is_recovered_after_an_outage(
    replica_set: EmbeddedReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once MongoDB has answered for half a lease's time."""
    async with (
        MongoSessionService(replica_set.uri, _limits=LIMITS) as holder,
        MongoSessionService(replica_set.uri, _limits=LIMITS) as other,
    ):
        await holder.create_session(**IDS)
        monkeypatch.setattr(lease, "_renew_due", lambda *_: None)
        async with holder.turn(**IDS) as session:
            await holder.append_event(session, Event(author="dead"))
            runner = runner_of(other, SpokenModel())
            recovering = asyncio.create_task(other.recover_turns(runner))
            await freeze(replica_set)
            back = time.monotonic()
            async with asyncio.timeout(LIMITS.lease_seconds + 2):
                while await other.find_turns():
                    assert not recovering.done()
            assert time.monotonic() - back > LIMITS.lease_seconds / 2
            recovering.cancel()
            with pytest.raises(LeaseLostError):
                await holder.append_event(session, Event(author="late"))


async def test_an_append_names_the_outage(replica_set: EmbeddedReplicaSet) -> None:
    """Nobody listens any more: it reports that, and the service closes soon."""
    (pid,) = replica_set.pids
    assert pid is not None
    limits = Limits(write_seconds=0.5)
    async with MongoSessionService(replica_set.uri, _limits=limits) as service:
        session = await service.create_session(**IDS)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StorageUnavailableError, match="refused.* mongod is runn"):
            await service.append_event(session, Event(author="x"))
        began = time.monotonic()
    assert time.monotonic() - began < 10.0  # the driver looks for a server for 30
