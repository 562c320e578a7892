"""Two processes that prune one database."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.fake_clock import Clock
from support.forks import FORKS
from support.limits import NO_SWEEP
from support.long_sessions import left_in, store_long_session

from mongo_session_service import MongoSessionService, Pruned
from mongo_session_service.model.records import SessionKey

OF_USER = {"app_name": "app", "user_id": "user"}
SHORT, LONG = 60, 95  # sessions of one event each, and events of another
PATIENCE = 60.0


def work(
    uri: str, database: str, meeting: Barrier, results: SimpleQueue[Pruned]
) -> None:
    """Prune in small steps, in a process of its own."""
    results.put(asyncio.run(prune(uri, database, meeting)))


async def prune(uri: str, database: str, meeting: Barrier) -> Pruned:
    """Prune, and wait after the first step until the other has done one as well."""
    steps: list[Pruned] = []

    def meet(pruned: Pruned) -> None:
        steps.append(pruned)
        if len(steps) == 1:
            meeting.wait(PATIENCE)

    limits = replace(NO_SWEEP, removed_events=10)
    async with MongoSessionService(uri, database=database, _limits=limits) as service:
        return await service.prune(meet)


@pytest.mark.limits(sweep_interval=math.inf)
async def test_two_processes_prune_together(
    service: MongoSessionService, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Each removes a part, both together all, once; what has not expired stays."""
    clock = Clock.set()
    clock.now = 1e9  # long ago
    await store_long_session(
        service, admin, database, SessionKey(**OF_USER, session_id="long"), LONG
    )
    await service.update_session(**OF_USER, session_id="long", ttl=1)

    async def create(ttl: float | None) -> None:
        session = await service.create_session(**OF_USER)
        await service.append_event(session, Event(author="x"))
        await service.update_session(**OF_USER, session_id=session.id, ttl=ttl)

    await asyncio.gather(*(create(1) for _ in range(SHORT)), create(None))
    meeting, results = FORKS.Barrier(2), FORKS.SimpleQueue()
    processes = [
        FORKS.Process(target=work, args=(mongodb_uri, database, meeting, results))
        for _ in range(2)
    ]
    for each in processes:
        each.start()
    for each in processes:
        await asyncio.to_thread(each.join, PATIENCE)

    assert [each.exitcode for each in processes] == [0, 0]
    pruned = [results.get() for _ in processes]
    assert sum(each.sessions for each in pruned) == SHORT + 1
    assert sum(each.events for each in pruned) == SHORT + LONG
    assert all(each.sessions + each.events for each in pruned)
    assert left_in(admin, database) == {"sessions": 1, "events": 1}
