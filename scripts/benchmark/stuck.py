"""What stuck sessions cost the others: appends beside sessions that are locked.

Another client holds the documents of some sessions in an open transaction, and one
append waits for each. Meanwhile appends to other sessions are timed: each of these has
a writer that appends, pauses for 20 ms, and appends again.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from google.adk.events import Event
from pymongo import AsyncMongoClient

from benchmark.measure import WrongError, quantile, time_call
from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.adk.sessions import Session

STUCK = (0, 1, 3, 10, 100)
WRITERS = 16
PAUSE = 0.02


@asynccontextmanager
async def locked(uri: str, sessions: list[Session]) -> AsyncIterator[None]:
    """Hold the documents of sessions in a transaction that changes nothing."""
    async with AsyncMongoClient(uri) as client, client.start_session() as txn:
        await txn.start_transaction()
        for each in sessions:
            id_ = {"app_name": "bench", "user_id": "stuck", "session_id": each.id}
            where, change = {"_id": id_}, {"$set": {"locked": True}}
            await client.adk.sessions.update_one(where, change, session=txn)
        yield
        await txn.abort_transaction()


async def write(
    service: MongoSessionService, session: Session, end: float
) -> list[float]:
    """Append until a time has come; the milliseconds of each append."""
    taken = []
    while time.monotonic() < end:
        append = service.append_event(session, Event(author="x"))
        taken.append(await time_call(append))
        await asyncio.sleep(PAUSE)
    return taken


async def measure(uri: str, count: int, seconds: float) -> None:
    """Print what appends take beside so many stuck sessions."""
    async with MongoSessionService(uri) as service:
        users = ["stuck"] * count + ["free"] * WRITERS
        sessions = [
            await service.create_session(app_name="bench", user_id=user)
            for user in users
        ]
        stuck, free = sessions[:count], sessions[count:]
        async with locked(uri, stuck):
            waiting = [
                asyncio.ensure_future(service.append_event(each, Event(author="x")))
                for each in stuck
            ]
            end = time.monotonic() + seconds
            lanes = await asyncio.gather(*(write(service, it, end) for it in free))
            if any(each.done() for each in waiting):
                message = "An append to a session that is locked has ended."
                raise WrongError(message)
        released = time.monotonic()
        await asyncio.gather(*waiting)
        late = time.monotonic() - released
    taken = [each for lane in lanes for each in lane]
    print(
        f"{count:3} stuck: {len(taken):5} appends, median {quantile(taken, 0.5):6.1f},"
        f" p99 {quantile(taken, 0.99):7.1f}, worst {max(taken):7.1f} ms; the stuck ones"
        f" are stored {late:4.1f} s after the lock is released"
    )


def main() -> int:
    """Measure beside none and then ever more stuck sessions; the exit code."""
    parser = argparse.ArgumentParser("scripts/bench stuck", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long per row")
    seconds: float = parser.parse_args().seconds
    with EmbeddedReplicaSet() as mongodb:
        for count in STUCK:
            asyncio.run(measure(mongodb.uri, count, seconds))
    return 0
