"""``mongo-session-service prune``."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.cli_runner import call, start
from support.fake_clock import Clock
from support.long_sessions import store_long_session

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey


async def fill(service: MongoSessionService) -> None:
    """Give it two sessions that have expired, with three events, and one that not."""
    Clock.set().now = 1e9  # long ago for the command
    ids = {"app_name": "app", "user_id": "ada"}
    await service.create_session(**ids)
    for number in range(1, 3):
        session = await service.create_session(**ids)
        for _ in range(number):
            await service.append_event(session, Event(author="x"))
        await service.update_session(**ids, session_id=session.id, ttl=1)


@pytest.mark.release
@pytest.mark.limits(sweep_interval=math.inf)
async def test_an_interrupted_prune_tells_what_went(
    mongodb_uri: str,
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """And to run it again; what was removed by half goes as what has expired."""
    Clock.set().now = 1e9
    key = SessionKey("app", "ada", "long")
    await store_long_session(service, admin, database, key, 20_000)
    pruning = ("prune", "--created-before", "2002-01-01", "--uri", mongodb_uri)
    pruning += ("--database", database)
    with admin[database].watch() as stream:
        process = await asyncio.to_thread(start, *pruning)
        await asyncio.to_thread(next, stream)
        process.send_signal(signal.SIGINT)
    _, said = await asyncio.to_thread(process.communicate)

    again = call(*pruning)
    call("prune", *pruning[3:])  # as every process does soon for what is half removed

    assert process.returncode == 130
    assert re.fullmatch(
        rb"Interrupted: removed .*\. Run it again for the rest\.\n", said
    ), said
    assert again.returncode == 0
    assert admin[database].events.count_documents({}) == 0


@pytest.mark.limits(sweep_interval=math.inf)
async def test_prune_takes_criteria(
    at: tuple[str, ...], service: MongoSessionService
) -> None:
    """What is idle or old is counted and removed, of one app or of all."""
    await fill(service)
    await service.create_session(app_name="app2", user_id="ada")
    idle = ("--idle-for", "90d")
    old = ("--created-before", "2001-09-09T02:00Z", "--app", "app2")

    counted = call("prune", *idle, "--dry-run", "--json", *at)
    of_one = call("prune", *old, *at)
    of_all = call("prune", *idle, "--json", *at)

    assert json.loads(counted.stdout) == {"sessions": 2, "events": 0}
    assert of_one.stderr.startswith("Removed 1 session and 0 events in ")
    assert json.loads(of_all.stdout) == {"sessions": 1, "events": 0}
