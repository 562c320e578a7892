"""Reading along the deployment's own clock: what is now, what was, what comes next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service.driver.compat import opened, primary_of
from mongo_session_service.driver.connection import ONE_BATCH, Connection
from mongo_session_service.errors import ConfigurationError

_RETRY: Final = 0.02  # seconds
_OPLOG_PATIENCE: Final = 2.0  # seconds
_MAJORITY: Final = ReadConcern("majority")


class Snapshot(NamedTuple):
    """What was read of one point in time."""

    documents: list[dict[str, Any]]
    at: Timestamp
    is_whole: bool
    """Whether these are all, or a first reply's worth of them."""


def check(connection: Connection) -> None:
    """Refuse a connection whose changes cannot be told whole.

    Raises:
        ConfigurationError: it does without transactions.
    """
    if not connection.has_transactions:
        message = (
            "Changes cannot be watched with transactions=False, nor in mongomock: an"
            " event would be told apart from its state. Use a replica set, with"
            " transactions."
        )
        raise ConfigurationError(message)


async def now(connection: Connection) -> Timestamp:
    """The latest time that the primary knows.

    Raises:
        ConfigurationError: it is a standalone server, or mongomock, and keeps none.
    """
    reply = await connection.database.command("ping")
    time: Timestamp | None = reply.get("operationTime")
    if time is None:
        message = (
            "A standalone server, or mongomock, keeps no history of changes, so there"
            " are no consumers. Use a replica set."
        )
        raise ConfigurationError(message)
    return time


@asynccontextmanager
async def watching(
    connection: Connection, pipeline: list[dict[str, Any]], **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """A change stream of the database, open or about to be, and its session."""
    database = connection.database.with_options(read_concern=_MAJORITY)
    async with connection.reading() as session:
        watch = database.watch(pipeline, session=session, **options)
        stream = await opened(watch, connection.driver)
        try:
            yield stream, session
        finally:
            await stream.close()


async def snapshot(
    connection: Connection,
    collection: Any,
    pipeline: list[dict[str, Any]],
    *,
    not_before: Timestamp | None = None,
    whole: bool = True,
) -> Snapshot:
    """Results of an aggregation, not before this service's latest write.

    Nor before another time, if one is given. Right after an election a new primary may
    not know yet that it is committed; it is asked until it does.
    """
    while True:
        found = await snapshot_at(connection, collection, pipeline, whole=whole)
        primary = primary_of(connection.client, connection.driver)
        is_old = not_before is not None and found.at < not_before
        if not is_old and connection.latest.missing_at(found.at, primary) is None:
            return found
        await asyncio.sleep(_RETRY)


async def snapshot_at(
    connection: Connection,
    collection: Any,
    pipeline: list[dict[str, Any]],
    *,
    at: Timestamp | None = None,
    whole: bool = True,
) -> Snapshot:
    """Results of an aggregation, and the point in time they are from.

    A point may be asked for, if it is not long past. The drivers have no way to ask
    for or to tell it, so the commands are spelt out.
    """
    concern = {"level": "snapshot"} | ({} if at is None else {"atClusterTime": at})
    command: dict[str, Any] = {
        "aggregate": collection.name,
        "pipeline": pipeline,
        "cursor": {"batchSize": ONE_BATCH},
        "readConcern": concern,
    }
    async with connection.reading() as session:
        cursor = (await connection.reply(command, session))["cursor"]
        read_at, documents = cursor["atClusterTime"], cursor["firstBatch"]
        while whole and cursor["id"]:
            more = {"getMore": Int64(cursor["id"]), "collection": collection.name}
            cursor = (await connection.reply(more, session))["cursor"]
            documents += cursor["nextBatch"]
        if left := cursor["id"]:
            rest = {"killCursors": collection.name, "cursors": [Int64(left)]}
            await connection.reply(rest, session)
        if connection.secondaries is not None:
            # Who is shown this reads nothing older elsewhere.
            connection.secondaries.heard_of(read_at, session)
    return Snapshot(documents, read_at, is_whole=not left)


async def oplog_window(connection: Connection) -> float | None:
    """How many seconds of changes MongoDB could still tell; None if it will not say."""
    oplog = connection.client["local"]["oplog.rs"]
    with suppress(PyMongoError, TimeoutError):
        async with asyncio.timeout(_OPLOG_PATIENCE):
            found = await oplog.find().sort("$natural", 1).limit(1).to_list(1)
            latest = await now(connection)
            return float(latest.time - found[0]["ts"].time) if found else None
    return None
