"""A feeder that is interrupted at random loses nothing and repeats no memory."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.integrations.mongodb import MongoDbMemoryService
from google.adk.memory import InMemoryMemoryService
from pymongo import MongoClient
from support.consumers import PATIENCE
from support.feeding_process import feed as feed_until_killed
from support.forks import FORKS
from support.memory_services import append_all, feed, said

from mongo_session_service import MongoSessionService

CHANCE = random.Random(20)  # noqa: S311  not for secrets


def turn(name: str) -> list[Event]:
    return [said("user", f"{name} asks", name), *answers(name)]


def answers(name: str) -> list[Event]:
    """Two agents' responses in a turn: the first ends it."""
    return [said(author, f"{author} {name}", name) for author in ("first", "second")]


class Interrupting(InMemoryMemoryService):
    """Cancels who feeds it: before or after it has remembered, or not at all."""

    feeding: asyncio.Task[None]
    interruptions = 0

    async def add_events_to_memory(
        self, *, events: Sequence[Event], **scope: Any
    ) -> None:
        """Remember a turn, unless it is interrupted before."""
        when = CHANCE.choice(["before", "after", "never"])
        self.interruptions += when != "never"
        if when == "before":
            self.feeding.cancel()
            await asyncio.sleep(0)
        await super().add_events_to_memory(events=events, **scope)
        if when == "after":
            self.feeding.cancel()
            await asyncio.sleep(0)

    def texts(self) -> Counter[str]:
        """How often each text is remembered."""
        return Counter(
            str(each.content.parts[0].text)
            for sessions in self._session_events.values()
            for events in sessions.values()
            for each in events
            if each.content and each.content.parts
        )


async def test_a_cancelled_feeder_resumes(service: MongoSessionService) -> None:
    """Each event of a finished turn is remembered once, whenever it is cancelled."""
    log = [event for number in range(15) for event in turn(str(number))]
    await append_all(service, *log, said("user", "nobody answers", "last"))
    memory = Interrupting()
    is_over = asyncio.Event()

    async def run() -> None:
        await feed(service, memory)
        is_over.set()

    while not is_over.is_set():
        memory.feeding = asyncio.create_task(run())
        await asyncio.wait([memory.feeding])

    wanted = [str(event.content.parts[0].text) for event in log if event.content]
    assert memory.texts() == Counter(wanted)
    assert memory.interruptions > 5


def kill_after(uri: str, database: str, count: int) -> None:
    """Let a process be given so many changes, and kill it at the last of them."""
    here, there = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=feed_until_killed, args=(uri, database, there))
    process.start()
    there.close()
    try:
        for _ in range(count):
            assert here.poll(PATIENCE)
            here.recv()
    finally:
        process.kill()
        process.join()
        here.close()


@pytest.mark.release
@pytest.mark.xdist_group("heavy")
async def test_a_killed_feeder_resumes(
    mongodb_uri: str, service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Killed again and again while turns are written, it misses no event of them."""
    logs = {
        name: [event for number in range(30) for event in turn(f"{name}{number}")]
        for name in ("a", "b", "c", "d", "e", "f")
    }

    async def write(name: str) -> None:
        await append_all(service, *logs[name], session_id=name)

    writing = asyncio.gather(*map(write, logs))
    for count in [CHANCE.randint(1, 40) for _ in range(12)]:
        await asyncio.to_thread(kill_after, mongodb_uri, database, count)
    await writing
    memory = MongoDbMemoryService(connection_string=mongodb_uri, database_name=database)
    await feed(service, memory)
    await memory.close()

    found = Counter(each["_id"]["event_id"] for each in admin[database].memories.find())
    assert found == Counter(event.id for log in logs.values() for event in log)
