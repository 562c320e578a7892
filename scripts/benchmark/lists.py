"""Measures pages of many sessions, and histories of many events, on a MongoDB."""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.records import SessionKey

from .measure import quantile

APP, USER = "app", "ada"
LOG = SessionKey(APP, USER, "long")
LIMIT = 50
_BATCH = 5000


class WrongError(Exception):
    """Something was not read as it was stored."""


def fill(database: Any, sessions: int, events: int) -> None:
    """Store many sessions of one user, and one with many events."""
    for first in range(0, sessions, _BATCH):
        database.sessions.insert_many(
            _session(number) for number in range(first, min(first + _BATCH, sessions))
        )
    long = _session(sessions)
    database.sessions.insert_one({**long, "_id": LOG.id, "revision": events})
    for first in range(1, events + 1, _BATCH):
        last = min(first + _BATCH, events + 1)
        database.events.insert_many(_event(number) for number in range(first, last))


def _session(number: int) -> dict[str, Any]:
    return {
        "_id": {**LOG.id, "session_id": f"s{number * 7919 % 10**6:06}"},
        "state": {"topic": f"t{number % 100}", "step": number},
        "revision": 0,
        "create_time": 1.7e9 + number,
        "update_time": 1.7e9 + number,
        "title": f"Session {number}",
        "labels": [{"name": "team", "value": "blue" if number % 10 else "red"}],
    }


def _event(revision: int) -> dict[str, Any]:
    event = {
        "id": f"e{revision}",
        "author": "agent",
        "invocation_id": f"i{revision}",
        "timestamp": 1.7e9 + revision,
        "content": {"role": "model", "parts": [{"text": "An answer. " * 20}]},
        "actions": {"state_delta": {"step": revision}},
    }
    return {"_id": LOG.event_id(revision), "event": event}


async def pages(
    service: MongoSessionService, expected: int, rounds: int, **search: Any
) -> dict[str, float]:
    """Milliseconds that pages take, all of them in turn: first, middle, last, p99."""
    taken: list[list[float]] = []
    for _ in range(rounds):
        times, found, token = [], 0, None
        while True:
            started = time.perf_counter()
            page = await service.find_sessions(
                app_name=APP, limit=LIMIT, page_token=token, **search
            )
            times.append(1000 * (time.perf_counter() - started))
            found += len(page.sessions)
            token = page.next_page_token
            if token is None:
                break
        if found != expected:
            raise WrongError(f"{found} sessions were found, not {expected}.")
        taken.append(times)
    third = len(taken[0]) // 3
    parts = {
        "first third": [each for times in taken for each in times[:third]],
        "middle": [each for times in taken for each in times[third : 2 * third]],
        "last third": [each for times in taken for each in times[2 * third :]],
    }
    everything = [each for times in taken for each in times]
    medians = {name: statistics.median(times) for name, times in parts.items()}
    return {**medians, "p99": quantile(everything, 0.99)}


async def streamed(
    events: Callable[[], AsyncIterator[Any]], expected: int
) -> tuple[float, float]:
    """Events per second, and the most MB that reading them took at any time."""
    started = time.perf_counter()
    count = await _count(events())
    rate = count / (time.perf_counter() - started)
    if count != expected:
        raise WrongError(f"{count} events were read, not {expected}.")
    gc.collect()
    tracemalloc.start()
    await _count(events())
    most = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return rate, most


async def _count(events: AsyncIterator[Any]) -> int:
    count = 0
    async for _ in events:
        count += 1
    return count


async def measure(uri: str, sessions: int, events: int, rounds: int) -> None:
    """Fill a database, measure, and show it."""
    with MongoClient[Any](uri) as admin:
        async with MongoSessionService(uri, database="bench_lists") as service:
            fill(admin["bench_lists"], sessions, events)
            red = -(-sessions // 10) + (sessions % 10 == 0)
            print(f"A page of {LIMIT} of {sessions:,} sessions of one user, in ms")
            for name, expected, search in (
                ("by user", sessions + 1, {"user_id": USER}),
                (
                    "oldest first",
                    sessions + 1,
                    {"user_id": USER, "newest_first": False},
                ),
                ("without state", sessions + 1, {"user_id": USER, "with_state": False}),
                ("by app", sessions + 1, {}),
                ("by label", red, {"labels": {"team": "red"}}),
            ):
                figures = await pages(service, expected, rounds, **search)
                shown = ", ".join(f"{part} {ms:.1f}" for part, ms in figures.items())
                print(f"  {name:14} {shown}", flush=True)
            print("Reading a history: events per second, and MB at most")
            for count in (events // 10, events):
                rate, most = await streamed(
                    lambda count=count: service.iter_events(**LOG.id, limit=count),
                    count,
                )
                print(
                    f"  {count:7,} events  {rate:7,.0f}/s  {most:5.1f} MB", flush=True
                )
            rate, most = await streamed(
                lambda: service.iter_user_events(app_name=APP, user_id=USER), events
            )
            print(f"  a user's whole   {rate:7,.0f}/s  {most:5.1f} MB")
            found = await service.get_session(**LOG.id)
            if found is None or len(found.events) != events:
                raise WrongError("The session was not read whole.")
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
            print(f"  (get_session of all: the process has grown to {most:.0f} MB)")


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(prog="scripts/bench-lists")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with EmbeddedReplicaSet() as mongodb:
        measuring = measure(
            mongodb.uri, options.sessions, options.events, options.rounds
        )
        try:
            asyncio.run(measuring)
        except WrongError as error:
            sys.exit(f"bench-lists: {error}")


if __name__ == "__main__":
    main()
