"""Measures how fast durable consumers handle changes, and whether they keep up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import AsyncMongoClient

from benchmark.circumstances import show_progress
from benchmark.figures import WrongError, quantile
from benchmark.processes import new_processes, play
from benchmark.report import Report
from mongo_session_service import Change, Consumer, MongoSessionService

SESSIONS = 50
SLOW = 2000
"""Changes that are enough of a way that handles one at a time."""
WAIT = 0.005
"""Seconds of a handler that asks another service."""
SECONDS = 10
"""Duration of appends at a fixed rate."""
PATIENCE = 300.0
DATABASE = "consumers"
RATES = (500, 2000)
"""Appends a second."""


async def append(uri: str, count: int, rate: float | None) -> float:
    """Append to all sessions in turns; how many a second there were."""
    async with MongoSessionService(uri, database=DATABASE) as service:
        keys = [
            {"app_name": "bench", "user_id": "u", "session_id": str(number)}
            for number in range(SESSIONS)
        ]
        sessions = [
            await service.get_session(**key) or await service.create_session(**key)
            for key in keys
        ]
        said = types.Content(role="model", parts=[types.Part(text="word " * 40)])
        started, numbers = time.monotonic(), iter(range(count))

        async def append_some() -> None:
            for number in numbers:
                if rate is not None:
                    await asyncio.sleep(started + number / rate - time.monotonic())
                event = Event(author="model", content=said)
                await service.append_event(sessions[number % SESSIONS], event)

        await asyncio.gather(*(append_some() for _ in range(SESSIONS)))
        return count / (time.monotonic() - started)


class Counter:
    """A handler that counts, and closes its consumer after so many changes."""

    def __init__(self, consumer: Consumer, last: int) -> None:
        self.count = 0
        self._consumer = consumer
        self._last = last

    async def count_change(self, _: Change) -> None:
        """Do nothing else."""
        self.count += 1
        if self.count == self._last:
            await self._consumer.close()

    async def insert(self, change: Change, txn: Any) -> None:
        """Write one document in the transaction."""
        copy = {"session": change.session_id, "revision": change.revision}
        await txn.client[DATABASE]["copies"].insert_one(copy, session=txn)
        await self.count_change(change)

    async def wait(self, change: Change) -> None:
        """Take as long as a request to another service."""
        await asyncio.sleep(WAIT)
        await self.count_change(change)


WAYS: dict[str, tuple[Callable[[Consumer, int], Awaitable[None]], bool]] = {
    "run()": (lambda it, last: it.run(Counter(it, last).count_change), False),
    "waiting 5 ms, concurrency=16": (
        lambda it, last: it.run(Counter(it, last).wait, concurrency=16),
        True,
    ),
    "transactional, an insert": (
        lambda it, last: it.run(Counter(it, last).insert, transactional=True),
        False,
    ),
}
"""How changes are handled, and whether that is so slow that fewer will do."""


async def catch_up(
    service: MongoSessionService, source: str, count: int, report: Report
) -> None:
    """How fast everything that is stored already is handled."""
    for way, (handle, is_slow) in WAYS.items():
        show_progress(f"consumer from the {source}, {way}")
        wanted = min(count, SLOW) if is_slow else count
        started = time.perf_counter()
        async with asyncio.timeout(PATIENCE):
            await handle(service.consumer(f"{source} {way}"), wanted)
        rate = wanted / (time.perf_counter() - started)
        report.add(f"from the {source}, {way}", rate, "changes/s")


async def keep_up(
    uri: str, pool: ProcessPoolExecutor, rate: int, report: Report
) -> None:
    """How many changes a consumer is behind while they come at a rate."""
    show_progress(f"consumer, {rate:g} appends/s")
    count = rate * SECONDS
    async with (
        AsyncMongoClient[Any](uri) as client,
        MongoSessionService(uri, database=DATABASE) as service,
        service.consumer(f"lag {rate}", start="now") as consumer,
    ):
        counter = Counter(consumer, count)
        running = asyncio.create_task(consumer.run(counter.count_change))
        events = client[DATABASE]["events"]
        before = await events.estimated_document_count()
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(pool, play, append, uri, count, rate)
        lags = []
        while not writing.done():
            await asyncio.wait([writing], timeout=SECONDS / 10)
            stored = await events.estimated_document_count() - before
            lags.append(stored - counter.count)
        ended = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            await running
    if counter.count != count:
        raise WrongError(f"{count} were appended, {counter.count} handled")
    name = f"{rate:,.0f} appends/s wanted"
    report.add(f"{name}, made", await writing, "/s")
    report.add(f"{name}, behind", quantile(lags, 0.5), "changes")
    report.add(f"{name}, all handled after the last", time.monotonic() - ended, "s")


async def measure_consumers(uri: str, count: int, report: Report) -> None:
    """Catching up with so many changes, then keeping up with appends."""
    with new_processes(1) as pool:
        loop = asyncio.get_running_loop()

        async def append_all() -> None:
            await loop.run_in_executor(pool, play, append, uri, count, None)

        await append_all()
        async with MongoSessionService(uri, database=DATABASE) as service:
            await catch_up(service, "log", count, report)
            for way in WAYS:
                await service.consumer(f"stream {way}", start="now").__aenter__()
            await append_all()
            await catch_up(service, "stream", count, report)
        for rate in RATES:
            await keep_up(uri, pool, rate, report)
