"""What a process does that is killed in the middle of a transaction."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any

from google.adk.events import Event
from pymongo import MongoClient

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.storage.statements import Statement
from mongo_session_service.storage.transactions import Transaction
from mongo_session_service.testing import Limits
from support.one_session import IDS

LIMITS = Limits(lease_seconds=2.0, lease_renewal_seconds=0.5)


async def count_change(database: str, change: Change, txn: Any) -> None:
    """Count a session's changes in a document of a fixed ``_id``, in a transaction."""
    counts, once = txn.client[database].counts, {"$inc": {"changes": 1}}
    one = {"_id": change.session_id}
    await counts.update_one(one, once, upsert=True, session=txn)


def stop_in_handler(uri: str, database: str, pipe: Connection) -> None:
    """Say that a handler has written, and never let it return."""

    async def handle(change: Change, txn: Any) -> None:
        await count_change(database, change, txn)
        await _stop(pipe)

    async def consume() -> None:
        async with (
            MongoSessionService(uri, database=database, _limits=LIMITS) as service,
            service.consumer("c") as consumer,
        ):
            await consumer.run(handle, transactional=True)

    asyncio.run(consume())


def stop_in_append(uri: str, database: str, pipe: Connection) -> None:
    """Say that an append of a turn is written, and never let it be committed."""

    async def append() -> None:
        async with (
            MongoSessionService(uri, database=database, _limits=LIMITS) as service,
            service.turn(**IDS) as session,
        ):
            before_commits(lambda: _stop(pipe))
            await service.append_event(session, Event(author="dead"))

    asyncio.run(append())


def before_commits(act: Callable[[], Awaitable[None]]) -> None:
    """Have this process do something between the writes of a batch and its commit."""
    # There is nothing else between the two.
    write = Transaction.write

    async def write_and_act(tx: Transaction, *statements: Statement) -> list[int]:
        counts = await write(tx, *statements)
        await act()
        return counts

    Transaction.write = write_and_act  # type: ignore[method-assign]


async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _stop(pipe: Connection) -> None:
    pipe.send("written")
    await asyncio.Event().wait()


def handle_until_killed(
    uri: str,
    database: str,
    poison: int,
    options: dict[str, Any],
    pipe: Connection | None,
) -> None:
    """Note each event in ``begun``; die at one of them, or say so and wait for it."""

    def handle(change: Change, txn: Any = None) -> None:
        del txn
        if change.kind == "appended":
            with MongoClient[Any](uri) as client:
                client[database].begun.insert_one({"revision": change.revision})
            if change.revision == poison and pipe is not None:
                pipe.send("begun")
                threading.Event().wait()
            if change.revision == poison:
                os._exit(137)  # as if of memory

    async def consume() -> None:
        async with (
            MongoSessionService(uri, database=database, _limits=LIMITS) as service,
            service.consumer("c") as consumer,
        ):
            await consumer.run(handle, max_attempts=2, until_caught_up=True, **options)

    asyncio.run(consume())
