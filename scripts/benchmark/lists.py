"""Pages of many sessions, and histories of many events.

Reads pages of 50 of 100,000 sessions of one user with find_sessions, from the first to
the last, also of those with a value of state; and 50,000 events with iter_events and
iter_user_events. What is read is counted. Takes about two minutes. Exits with 3 if a
page by any index took 10 ms or more (the median of the first, middle and last third).
"""

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

from benchmark.measure import WrongError, quantile
from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.model.records import SessionKey

APP, USER = "app", "ada"
LOG = SessionKey(APP, USER, "long")
LIMIT = 50
PROMISED = 10.0
"""Milliseconds that a page takes less than."""
SLOW = 3
"""Exit code: all was read, but not as fast as promised."""
_BATCH = 5000


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
) -> tuple[dict[str, float], float]:
    """Milliseconds that pages take, all in turn: medians of each third, and the p99."""
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
    count = len(taken[0])
    third, two_thirds = -(-count // 3), count - count // 3  # of one page, all are it
    parts = {
        "first third": [each for times in taken for each in times[:third]],
        "middle": [each for times in taken for each in times[count // 3 : two_thirds]],
        "last third": [each for times in taken for each in times[count - third :]],
    }
    everything = [each for times in taken for each in times]
    medians = {name: statistics.median(times) for name, times in parts.items()}
    return medians, quantile(everything, 0.99)


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


async def lists(service: MongoSessionService, database: Any, rounds: int) -> bool:
    """Show what pages take; whether those that an index serves keep what is promised.

    A key of state has no index, unless the application makes one.
    """
    of_user, rare = {"user_id": USER}, {"where": {"topic": "t1"}}
    of_search = {
        "by user": of_user,
        "oldest first": of_user | {"newest_first": False},
        "without state": of_user | {"with_state": False},
        "by app": {},
        "by label": {"labels": {"team": "red"}},
        "by state, with no index": of_user | rare,
    }
    figures = {}
    for name, search in of_search.items():
        figures[name] = await shown(service, database, rounds, name, search)
    database.sessions.create_index(
        {
            "_id.app_name": 1,
            "state.topic": 1,
            "create_time": 1,
            "_id.user_id": 1,
            "_id.session_id": 1,
        }
    )
    for name, search in {"by state": rare, "user and state": of_user | rare}.items():
        figures[name] = await shown(service, database, rounds, name, search)
    del figures["by state, with no index"]
    return all(max(each.values()) < PROMISED for each in figures.values())


async def shown(
    service: MongoSessionService,
    database: Any,
    rounds: int,
    name: str,
    search: dict[str, Any],
) -> dict[str, float]:
    """Measure a search, of the sessions that it is to find, and print what comes of it.

    Returns the medians.
    """
    expected = {}
    if "labels" in search:
        expected["labels.value"] = search["labels"]["team"]
    if "where" in search:
        expected["state.topic"] = search["where"]["topic"]
    count = database.sessions.count_documents(expected)
    medians, slowest = await pages(service, count, rounds, **search)
    told = ", ".join(f"{part} {ms:.1f}" for part, ms in medians.items())
    print(f"  {name:23} {told}, p99 {slowest:.1f}; {count:,} found", flush=True)
    return medians


async def histories(service: MongoSessionService, events: int) -> None:
    """Show how fast events are read, and in what memory."""
    print("Reading a history: events per second, and MB at most")
    for count in (events // 10, events):
        rate, most = await streamed(
            lambda count=count: service.iter_events(**LOG.id, limit=count), count
        )
        print(f"  {count:7,} events  {rate:7,.0f}/s  {most:5.1f} MB", flush=True)
    rate, most = await streamed(
        lambda: service.iter_user_events(app_name=APP, user_id=USER), events
    )
    print(f"  a user's whole   {rate:7,.0f}/s  {most:5.1f} MB")
    found = await service.get_session(**LOG.id)
    if found is None or len(found.events) != events:
        raise WrongError("The session was not read whole.")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"  (get_session of all: the process has grown to {most:.0f} MB)")


async def measure(uri: str, sessions: int, events: int, rounds: int) -> bool:
    """Fill a database, measure, and show it; whether pages keep what is promised."""
    with MongoClient[Any](uri) as admin:
        async with MongoSessionService(uri, database="bench_lists") as service:
            database = admin["bench_lists"]
            fill(database, sessions, events)
            print(f"A page of {LIMIT} of {sessions:,} sessions of one user, in ms")
            is_kept = await lists(service, database, rounds)
            await histories(service, events)
    return is_kept


def main() -> int:
    """Read the arguments, and measure; the exit code."""
    parser = argparse.ArgumentParser("scripts/bench lists", description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with EmbeddedReplicaSet() as mongodb:
        is_kept = asyncio.run(
            measure(mongodb.uri, options.sessions, options.events, options.rounds)
        )
    if is_kept:
        return 0
    print(f"bench: a page took {PROMISED:g} ms or more.", file=sys.stderr)
    return SLOW
