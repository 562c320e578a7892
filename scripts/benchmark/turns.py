"""What turns cost: alone, and where a thousand callers wait for a hundred sessions.

Alone, a turn is compared with the read of the session that it includes. Then all the
callers come at once, from one process and from four. Each appends one event in its
turn.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

from google.adk.events import Event

from benchmark.measure import WrongError, quantile, time_call
from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet

SESSIONS = 100
WAITERS = 1000
CALLS = 300


class Share(NamedTuple):
    """What one process did."""

    bodies: list[Body]
    cpu: float
    """Seconds."""


class Body(NamedTuple):
    """When somebody had the turn of a session, on the machine's monotonic clock."""

    session: int
    begun: float
    ended: float


def key(number: int) -> dict[str, Any]:
    """What names a session."""
    return {"app_name": "bench", "user_id": "turns", "session_id": str(number)}


async def alone(uri: str) -> None:
    """Print what a turn takes that nobody else wants, beside a read of the session."""
    async with MongoSessionService(uri) as service:
        await service.create_session(**key(0))

        async def turn() -> None:
            async with service.turn(**key(0)):
                pass

        async def read() -> None:
            await service.get_session(**key(0))

        for name, call in (("a read", read), ("a turn", turn)) * 2:
            started, cpu = time.perf_counter(), time.process_time()
            taken = [await time_call(call()) for _ in range(CALLS)]
            cpu = 1e6 * (time.process_time() - cpu) / CALLS
            print(
                f"alone: {name}: median {quantile(taken, 0.5):.2f}, p99"
                f" {quantile(taken, 0.99):.2f} ms, {cpu:.0f} us of CPU,"
                f" {CALLS / (time.perf_counter() - started):.0f}/s"
            )


async def wait(uri: str, numbers: range) -> list[Body]:
    """Have a turn for each number, all at once."""
    bodies: list[Body] = []

    async def request(service: MongoSessionService, number: int) -> None:
        which = number % SESSIONS
        async with service.turn(**key(which), wait=None) as session:
            begun = time.monotonic()
            await service.append_event(session, Event(author=str(number)))
            bodies.append(Body(which, begun, time.monotonic()))

    async with MongoSessionService(uri) as service:
        await asyncio.gather(*(request(service, number) for number in numbers))
    return bodies


def work(uri: str, numbers: range) -> Share:
    """The same, in a process of its own."""
    before = time.process_time()
    bodies = asyncio.run(wait(uri, numbers))
    return Share(bodies, time.process_time() - before)


async def together(uri: str, processes: int) -> None:
    """Print how a thousand callers fare."""
    async with MongoSessionService(uri) as service:
        await service.delete_app(app_name="bench")
        for number in range(SESSIONS):
            await service.create_session(**key(number))
    shares = [range(first, WAITERS, processes) for first in range(processes)]
    loop, spawning = asyncio.get_running_loop(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawning) as pool:
        asking = [loop.run_in_executor(pool, work, uri, each) for each in shares]
        parts = await asyncio.gather(*asking)
    bodies = [body for part in parts for body in part.bodies]
    cpu = 1e6 * sum(part.cpu for part in parts) / WAITERS
    by_session: dict[int, list[Body]] = defaultdict(list)
    for each in sorted(bodies, key=lambda body: body.begun):
        by_session[each.session].append(each)
    gaps = [
        1000 * (after.begun - before.ended)
        for each in by_session.values()
        for before, after in pairwise(each)
    ]
    if len(bodies) != WAITERS or min(gaps) < 0:
        raise WrongError("Two callers had the turn of a session at once.")
    took = max(each.ended for each in bodies) - min(each.begun for each in bodies)
    print(
        f"{WAITERS} callers, {SESSIONS} sessions, {processes} processes: all within"
        f" {took:.1f} s, {WAITERS / took:.0f} turns/s, {cpu:.0f} us of CPU each; from"
        f" one body to the next median {quantile(gaps, 0.5):.0f}, p99"
        f" {quantile(gaps, 0.99):.0f}, worst {max(gaps):.0f} ms"
    )


def main() -> int:
    """Measure each; the exit code."""
    argparse.ArgumentParser("scripts/bench turns", description=__doc__).parse_args()
    with EmbeddedReplicaSet() as mongodb:
        asyncio.run(alone(mongodb.uri))
        for processes in (1, 4):
            asyncio.run(together(mongodb.uri, processes))
    return 0
