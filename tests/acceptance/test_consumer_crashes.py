"""A consumer whose process is killed at random goes on where it has committed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from pymongo import MongoClient
from support.consumers import PATIENCE, create
from support.consuming_process import consume
from support.forks import FORKS

from mongo_session_service import MongoSessionService

SESSIONS = 10
CHANCE = random.Random(20)  # noqa: S311  not for secrets


async def write(service: MongoSessionService, session: Session, count: int) -> None:
    for _ in range(count):
        await service.append_event(session, Event(author="x"))
        await asyncio.sleep(0.08)  # so that it lasts for all the kills


def read(uri: str, database: str, count: int, keys: set[str], *, of: int) -> None:
    """Let a process see so many events, or all that there are to be, and kill it."""
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=consume, args=(uri, database, there))
    process.start()
    there.close()
    try:
        while count and len(keys) < of:
            assert here.poll(3 * PATIENCE)
            keys.add(here.recv())
            count -= 1
    finally:
        process.kill()
        process.join()
        with suppress(EOFError):  # it may have committed what was not read yet
            while here.poll():
                keys.add(here.recv())
        here.close()


@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize(
    ("events", "kills"), [(400, 5), pytest.param(2000, 20, marks=pytest.mark.release)]
)
async def test_a_killed_consumer_loses_no_event_and_repeats_no_committed_one(
    mongodb_uri: str,
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    events: int,
    kills: int,
) -> None:
    """Killed again and again during writes, it receives each event at least once.

    Those seen twice were not committed when the process died that saw them first.
    """
    sessions = [await create(service, str(number)) for number in range(SESSIONS)]
    each = events // SESSIONS
    writing = asyncio.gather(*(write(service, session, each) for session in sessions))
    keys: set[str] = set()

    for count in [*(CHANCE.randint(1, 100) for _ in range(kills)), events]:
        await asyncio.to_thread(read, mongodb_uri, database, count, keys, of=events)
    await writing

    seen = list(admin[database].seen.find())
    expected = {
        f"{session.id}/{revision}"
        for session in sessions
        for revision in range(1, len(session.events) + 1)
    }
    assert {each["key"] for each in seen} == expected
    assert len(expected) == events
    committed = Counter(each["key"] for each in seen if each.get("committed"))
    assert max(committed.values()) == 1
    later: dict[str, bool] = {}
    for each in seen:
        assert not later.get(each["key"]), "told again after its commit"
        later[each["key"]] = each.get("committed", False)
