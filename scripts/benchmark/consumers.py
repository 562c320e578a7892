"""How fast a durable consumer handles changes, and whether it keeps up with appends.

Catching up with the log, and with the change stream, in one run: a commit after each
change, by hand; run() with an empty handler, and with one that waits, alone and for
several sessions at once; and with transactional=True, empty and with a handler that
inserts a document. Then another process appends at a fixed rate,
and the lag says how many changes are stored but not yet handled.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import AsyncMongoClient

from benchmark.measure import WrongError, quantile
from mongo_session_service import Change, Consumer, MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet

APP = "bench"
SESSIONS = 50
AT_ONCE = 64
SLOW = 2_000
"""Changes that are handled one commit at a time."""
WAIT = 0.005  # seconds
DATABASE = "bench"


def key(number: int) -> dict[str, Any]:
    """What names a session."""
    return {"app_name": APP, "user_id": "consumers", "session_id": str(number)}


def event() -> Event:
    """An event as a short answer of a model."""
    said = types.Content(role="model", parts=[types.Part(text="word " * 40)])
    return Event(author="model", content=said)


async def append(uri: str, count: int, rate: float | None) -> float:
    """Append to all sessions in turns; how many a second there were."""
    async with MongoSessionService(uri, database=DATABASE) as service:
        sessions = [
            await service.get_session(**key(number))
            or await service.create_session(**key(number))
            for number in range(SESSIONS)
        ]
        started, taken = time.monotonic(), 0

        async def write() -> None:
            nonlocal taken
            while taken < count:
                number, taken = taken, taken + 1
                if rate is not None:
                    await asyncio.sleep(started + number / rate - time.monotonic())
                session = sessions[number % SESSIONS]
                await service.append_event(session, event())

        await asyncio.gather(*(write() for _ in range(SESSIONS)))
        return count / (time.monotonic() - started)


def appending(uri: str, count: int, rate: float | None) -> float:
    """The same, in a process of its own."""
    return asyncio.run(append(uri, count, rate))


class Counter:
    """A handler that counts, and closes its consumer after so many changes."""

    def __init__(self, consumer: Consumer, last: int) -> None:
        self.count = 0
        self._consumer = consumer
        self._last = last

    async def note(self, _: Change) -> None:
        """Do nothing else."""
        self.count += 1
        if self.count == self._last:
            await self._consumer.close()

    async def note_with(self, change: Change, _: Any) -> None:
        """The same, in a transaction."""
        await self.note(change)

    async def insert(self, change: Change, txn: Any) -> None:
        """Write one document in the transaction."""
        of = {"session": change.session_id, "revision": change.revision}
        await txn.client[DATABASE]["copies"].insert_one(of, session=txn)
        await self.note(change)

    async def wait(self, change: Change) -> None:
        """Take as long as a request to another service."""
        await asyncio.sleep(WAIT)
        await self.note(change)


async def commit_each(consumer: Consumer, count: int) -> None:
    """Handle changes as they come, with a commit after each."""
    for _ in range(count):
        await anext(consumer)
        await consumer.commit()
    await consumer.close()


async def run(consumer: Consumer, count: int) -> None:
    """Handle changes with an empty handler."""
    await consumer.run(Counter(consumer, count).note)


async def run_transactional(consumer: Consumer, count: int) -> None:
    """The same, in transactions."""
    await consumer.run(Counter(consumer, count).note_with, transactional=True)


async def run_inserting(consumer: Consumer, count: int) -> None:
    """Write one document for each change."""
    await consumer.run(Counter(consumer, count).insert, transactional=True)


async def run_waiting(consumer: Consumer, count: int) -> None:
    """Wait for something with each change."""
    await consumer.run(Counter(consumer, count).wait)


async def run_at_once(consumer: Consumer, count: int) -> None:
    """The same, for several sessions at once."""
    await consumer.run(Counter(consumer, count).wait, concurrency=16)


WAYS: dict[str, tuple[Callable[[Consumer, int], Any], bool]] = {
    "a commit after each": (commit_each, True),
    "run()": (run, False),
    "run() that waits 5 ms": (run_waiting, True),
    "run() that waits 5 ms, concurrency=16": (run_at_once, True),
    "run(), transactional": (run_transactional, False),
    "run(), transactional, with an insert": (run_inserting, False),
}
"""How changes are handled, and whether that is so slow that fewer will do."""


async def catch_up(service: MongoSessionService, source: str, count: int) -> None:
    """Print how fast everything that is stored already is handled."""
    for way, (handle, is_slow) in WAYS.items():
        wanted = min(count, SLOW) if is_slow else count
        consumer = service.consumer(f"{source} {way}")
        started, cpu = time.perf_counter(), time.process_time()
        async with asyncio.timeout(300):
            await handle(consumer, wanted)
        took = time.perf_counter() - started
        cpu = 1e6 * (time.process_time() - cpu) / wanted
        print(
            f"from the {source}, {way}: {wanted / took:,.0f} changes/s,"
            f" {cpu:.0f} us of client CPU each",
            flush=True,
        )


async def keep_up(
    uri: str, pool: ProcessPoolExecutor, rate: float, seconds: float
) -> None:
    """Print the lag of a consumer while appends come at a rate."""
    count = int(rate * seconds)
    async with (
        AsyncMongoClient[Any](uri) as client,
        MongoSessionService(uri, database=DATABASE) as service,
        service.consumer(f"lag {rate}", start="now") as consumer,
    ):
        counter = Counter(consumer, count)
        running = asyncio.create_task(consumer.run(counter.note))
        before = await stored(client)
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(pool, appending, uri, count, rate)
        lags = []
        while not writing.done():
            await asyncio.wait([writing], timeout=seconds / 10)
            lags.append(await stored(client) - before - counter.count)
        ended = time.monotonic()
        async with asyncio.timeout(300):
            await running
        rest = time.monotonic() - ended
    half = len(lags) // 2
    if counter.count != count:
        raise WrongError(f"{count} were appended, {counter.count} handled.")
    print(
        f"{rate:,.0f} appends/s wanted, {await writing:,.0f} made in {seconds:g} s:"
        f" behind by {quantile(lags[:half], 0.5):.0f} changes in the first half,"
        f" {quantile(lags[half:], 0.5):.0f} in the second (medians); at most"
        f" {max(lags)}; all handled {rest:.2f} s after the last append"
    )


async def stored(client: AsyncMongoClient[Any]) -> int:
    """How many events there are, as the server keeps count of them."""
    return await client[DATABASE]["events"].estimated_document_count()


async def measure(uri: str, count: int, rate: float, seconds: float) -> None:
    """Measure everything."""
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawning) as pool:
        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(pool, appending, uri, count, None)
        print(f"{count} appends from another process: {made:,.0f}/s")
        async with MongoSessionService(uri, database=DATABASE) as service:
            await catch_up(service, "log", count)
            for way in WAYS:
                await service.consumer(f"stream {way}", start="now").__aenter__()
            await loop.run_in_executor(pool, appending, uri, count, None)
            await catch_up(service, "stream", count)
        for each in (500.0, rate):
            await keep_up(uri, pool, each, seconds)


def main() -> int:
    """Measure each; the exit code."""
    parser = argparse.ArgumentParser("scripts/bench consumers", description=__doc__)
    parser.add_argument("--changes", type=int, default=20_000, help="to catch up with")
    parser.add_argument("--rate", type=float, default=2_000, help="appends a second")
    parser.add_argument("--seconds", type=float, default=20, help="of appends")
    asked = parser.parse_args()
    with EmbeddedReplicaSet() as mongodb:
        asyncio.run(measure(mongodb.uri, asked.changes, asked.rate, asked.seconds))
    return 0
