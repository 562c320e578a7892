"""Oplog: MongoDB's clock, the change streams that read it, and how far it reaches back.

A server without an oplog, such as a standalone or mongomock, has none of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service.errors import (
    ConfigurationError,
    MongoSessionServiceError,
)
from mongo_session_service.storage.database import Database
from mongo_session_service.storage.retries import Effect, repeat

_OPLOG_LIMIT: Final = 2.0  # seconds
_MAJORITY: Final = ReadConcern("majority")


def check_watchable(connection: Database) -> None:
    """Refuse a connection whose changes cannot be watched: it has no transactions."""
    if not connection.has_transactions:
        raise ConfigurationError(
            "Changes cannot be watched with transactions=False, nor in mongomock: an"
            " event would arrive without its state. Use a replica set, with"
            " transactions."
        )


async def latest_time(connection: Database, *, patient: bool = False) -> Timestamp:
    """Ask the primary for the latest time that it knows, which orders all changes.

    A standalone server, or mongomock, has no clock: ``ConfigurationError``.
    """
    ping = partial(connection.database.command, "ping")
    reply = await repeat(connection.client, ping, Effect.READ, patient=patient)
    time: Timestamp | None = reply.get("operationTime")
    if time is None:
        raise ConfigurationError(
            "A standalone server, or mongomock, keeps no history of changes, so there"
            " are no consumers. Use a replica set."
        )
    return time


@asynccontextmanager
async def watching(
    connection: Database, pipeline: list[dict[str, Any]], **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Open a change stream of the database; yield it and its client session."""
    database = connection.database.with_options(read_concern=_MAJORITY)
    async with connection.reading() as session:
        watch = database.watch(pipeline, session=session, **options)
        stream = await connection.driver.open_cursor(watch)
        try:
            yield stream, session
        finally:
            await stream.close()


async def oplog_window(connection: Database) -> float | None:
    """Return the seconds of changes that the oplog holds; None if there is no oplog."""
    oplog = connection.client["local"]["oplog.rs"]
    first = await oplog.find({}, {"ts": 1}).sort("$natural", 1).limit(1).to_list(1)
    if not first:
        return None
    latest = await latest_time(connection)
    return float(latest.time - first[0]["ts"].time)


async def oplog_window_if_known(connection: Database) -> float | None:
    """Ask for :func:`oplog_window`; None too if MongoDB fails, refuses or is slow."""
    with suppress(PyMongoError, MongoSessionServiceError, TimeoutError):
        async with asyncio.timeout(_OPLOG_LIMIT):
            return await oplog_window(connection)
    return None
