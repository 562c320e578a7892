"""Point-in-time reads: snapshots, the deployment's clock, opening change streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from bson.timestamp import Timestamp
from pymongo import errors
from pymongo.read_concern import ReadConcern

from mongo_session_service.codec import replies
from mongo_session_service.codec.replies import Encoded, Found
from mongo_session_service.driver import collector
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.causal import Secondaries
from mongo_session_service.driver.connection import (
    BATCH,
    Connection,
    kill_client_session,
)
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.errors import ConfigurationError

_RETRY: Final = 0.02  # seconds
_OPLOG_LIMIT: Final = 2.0  # seconds
_MAJORITY: Final = ReadConcern("majority")
_SNAPSHOT: Final = ReadConcern("snapshot")
_SNAPSHOT_UNAVAILABLE: Final = 246
_CREATION_PAUSES: Final = (0.01, 0.05, 0.2)
"""Seconds to wait for a snapshot that includes a collection just created."""

Result = TypeVar("Result")


class Snapshot(NamedTuple):
    """Documents of one point in time."""

    documents: list[dict[str, Any]]
    at: Timestamp
    is_whole: bool
    """Whether these are all, or those of the first reply."""


class _Reply(NamedTuple):
    """The same, as it was found."""

    found: Found
    at: Timestamp
    is_whole: bool


def check(connection: Connection) -> None:
    """Refuse a connection whose changes cannot be watched.

    Raises:
        ConfigurationError: it has no transactions.
    """
    if not connection.has_transactions:
        raise ConfigurationError(
            "Changes cannot be watched with transactions=False, nor in mongomock: an"
            " event would arrive without its state. Use a replica set, with"
            " transactions."
        )


async def now(connection: Connection) -> Timestamp:
    """The latest time that the primary knows.

    Raises:
        ConfigurationError: it is a standalone server, or mongomock, and has no clock.
    """
    reply = await connection.database.command("ping")
    time: Timestamp | None = reply.get("operationTime")
    if time is None:
        raise ConfigurationError(
            "A standalone server, or mongomock, keeps no history of changes, so there"
            " are no consumers. Use a replica set."
        )
    return time


@asynccontextmanager
async def watching(
    connection: Connection, pipeline: list[dict[str, Any]], **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """A change stream of the database, and its session; Motor opens it on first use."""
    database = connection.database.with_options(read_concern=_MAJORITY)
    async with connection.reading() as session:
        watch = database.watch(pipeline, session=session, **options)
        stream = await connection.driver.open_cursor(watch)
        try:
            yield stream, session
        finally:
            await stream.close()


async def read(
    connection: Connection,
    collection: Any,
    pipeline: list[dict[str, Any]],
    *,
    anywhere: bool = False,
    encoded: bool = False,
) -> Found:
    """All results of an aggregation, from one point in time of every collection.

    The point is not before the latest write of this service. The primary is read, or
    the member that the client prefers if ``anywhere`` is set. A few are decoded unless
    they are wanted ``encoded``.
    """
    if anywhere and (preferred := connection.secondaries) is not None:
        try:
            return await _once_created(
                lambda: _read_secondary(connection, preferred, collection, pipeline)
            )
        except errors.ExecutionTimeout:
            if preferred.is_strict:
                raise
    try:
        async with connection.reading() as session:
            # A tenth faster than a cursor, if the results are few. The driver does not
            # retry it: whatever fails here is read through a cursor below.
            reply = await _aggregate(
                connection, session, collection, pipeline, whole=True, encoded=encoded
            )
    except errors.ServerSelectionTimeoutError:
        raise
    except errors.PyMongoError:
        pass
    else:
        if _has_latest_write(connection, reply.at):
            return reply.found
    options: dict[str, Any] = {"read_concern": _SNAPSHOT, "codec_options": replies.RAW}
    collection = collection.with_options(**options)
    results = await _once_created(lambda: connection.aggregate(collection, pipeline))
    return Found(_encoded(results))


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
    not know yet that this write is committed; the read is repeated until it does.
    """
    while True:
        found = await snapshot_at(connection, collection, pipeline, whole=whole)
        is_old = not_before is not None and found.at < not_before
        if not is_old and _has_latest_write(connection, found.at):
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
    """Results of an aggregation, ``at`` a time that is not long past, if one is given.

    These are those of the first reply unless ``whole`` is set.
    """
    async with connection.reading() as session:
        reply = await _aggregate(
            connection, session, collection, pipeline, at=at, whole=whole
        )
        if connection.secondaries is not None:
            # What the caller has seen here must not be missing from a later read.
            connection.secondaries.heard_of(reply.at, session)
    documents = await in_slices(reply.found.documents())
    return Snapshot(documents, reply.at, reply.is_whole)


async def _aggregate(
    connection: Connection,
    session: Any,
    collection: Any,
    pipeline: list[dict[str, Any]],
    *,
    at: Timestamp | None = None,
    whole: bool,
    encoded: bool = False,
) -> _Reply:
    """Read by commands: cursors can neither ask for a point in time nor report it."""
    concern = _SNAPSHOT.document | ({} if at is None else {"atClusterTime": at})
    command = {
        "aggregate": collection.name,
        "pipeline": pipeline,
        "cursor": {"batchSize": BATCH},
        "readConcern": concern,
    }
    reply = await connection.reply(command, session)
    small = None if encoded else collector.paused(lambda: replies.small_cursor(reply))
    if small is not None and not small["id"]:
        few = Found([reply.raw], small["firstBatch"])
        return _Reply(few, small["atClusterTime"], is_whole=True)
    documents, cursor = replies.batch(reply, "firstBatch")
    read_at = cursor["atClusterTime"]
    found: list[Encoded] = [*documents]
    while whole and cursor["id"]:
        # No more than in the first reply: what one holds is split without a pause.
        more = {"getMore": cursor["id"], "collection": collection.name}
        reply = await connection.reply(more | {"batchSize": BATCH}, session)
        documents, cursor = replies.batch(reply, "nextBatch")
        found += documents
    if left := cursor["id"]:
        rest = {"killCursors": collection.name, "cursors": [left]}
        await connection.reply(rest, session)
    return _Reply(Found(found), read_at, is_whole=not left)


def _encoded(documents: list[Any]) -> list[Encoded]:
    return [each.raw for each in documents]


async def _read_secondary(
    connection: Connection,
    secondaries: Secondaries,
    collection: Any,
    pipeline: list[dict[str, Any]],
) -> Found:
    """All results, from a member that the client prefers and that catches up in time.

    Raises:
        ExecutionTimeout: there is none.
    """
    collection = collection.with_options(
        codec_options=replies.RAW,
        read_preference=secondaries.preference,
        read_concern=_SNAPSHOT,
    )
    async with connection.client_session() as session:
        connection.latest.bring_to(session)
        aggregate = collection.aggregate(
            pipeline,
            session=session,
            batchSize=BATCH,
            maxTimeMS=secondaries.limit_ms,
        )
        try:
            results = await connection.driver.fetch_all(aggregate)
        except asyncio.CancelledError:
            # Where several members may be read, this may reach another one.
            await uninterrupted(kill_client_session(session, secondaries.preference))
            raise
        secondaries.heard_of(session.operation_time, session)
        return Found(_encoded(results))


def _has_latest_write(connection: Connection, at: Timestamp) -> bool:
    primary = connection.driver.known_primary(connection.client)
    return connection.latest.is_included(at, primary)


async def _once_created(read: Callable[[], Awaitable[Result]]) -> Result:
    """Read, and retry while the snapshot is older than a collection that it reads.

    The collection, or an index that is used, may have been created just now.
    """
    for pause in _CREATION_PAUSES:
        try:
            return await read()
        except errors.OperationFailure as error:
            if error.code != _SNAPSHOT_UNAVAILABLE:
                raise
        await asyncio.sleep(pause)
    return await read()


async def oplog_window(connection: Connection) -> float | None:
    """Seconds of changes that MongoDB's oplog holds; None if there is no oplog."""
    oplog = connection.client["local"]["oplog.rs"]
    first = await oplog.find({}, {"ts": 1}).sort("$natural", 1).limit(1).to_list(1)
    if not first:
        return None
    latest = await now(connection)
    return float(latest.time - first[0]["ts"].time)


async def oplog_window_if_known(connection: Connection) -> float | None:
    """The same; None as well if MongoDB fails, refuses or takes too long."""
    with suppress(errors.PyMongoError, TimeoutError):
        async with asyncio.timeout(_OPLOG_LIMIT):
            return await oplog_window(connection)
    return None
