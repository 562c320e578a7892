"""Snapshots of several collections, change streams, and the clock that orders both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp
from pymongo import errors
from pymongo.read_concern import ReadConcern

from mongo_session_service.codec import replies
from mongo_session_service.codec.replies import Encoded
from mongo_session_service.driver.calls import REPEAT_PAUSES, is_passing
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.causal import Secondaries
from mongo_session_service.driver.connection import Connection, kill_client_session
from mongo_session_service.driver.slices import without_collector
from mongo_session_service.errors import ConfigurationError

_RETRY: Final = 0.02  # seconds
_OPLOG_LIMIT: Final = 2.0  # seconds
_MAJORITY: Final = ReadConcern("majority")
_SNAPSHOT: Final = ReadConcern("snapshot")
NO_TIME: Final = Timestamp(0, 0)


class Snapshot(NamedTuple):
    """Documents as of one point in time."""

    encoded: list[Encoded]
    """Each of them, or the reply that holds all; empty without transactions."""
    at: Timestamp
    """The point in time; :data:`NO_TIME` without transactions."""
    is_whole: bool = True
    """Whether these are all, and not those of the first reply alone."""
    few: list[dict[str, Any]] | None = None
    """The documents, if they were decoded already, since they are few."""

    def decoded(self) -> Iterable[dict[str, Any]]:
        """The documents, each decoded shortly before it is asked for."""
        if self.few is not None:
            return self.few
        return replies.decode_documents(self.encoded)


def check_watchable(connection: Connection) -> None:
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


async def latest_time(connection: Connection) -> Timestamp:
    """Ask the primary for the latest time that it knows, which orders all changes.

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
    at: Timestamp | None = None,
    not_before: Timestamp | None = None,
    whole: bool = True,
    encoded: bool = False,
) -> Snapshot:
    """Results of an aggregation, from one point in time of every collection.

    Args:
        connection: Where to read.
        collection: The collection that the pipeline begins with.
        pipeline: The aggregation.
        anywhere: Whether to read the member that the client prefers, if that catches
            up in time, in place of the primary.
        at: The point in time, not long past. By default it is one that is not before
            the latest write of this service.
        not_before: Nor before this time.
        whole: Whether all results are wanted, and not those of the first reply alone.
        encoded: Whether to leave few documents encoded, too.
    """
    preferred = connection.secondaries if anywhere else None
    pauses = iter(REPEAT_PAUSES)
    while True:
        try:
            if preferred is not None:
                return await _read_secondary(
                    connection, preferred, collection, pipeline
                )
            found = await _read_primary(
                connection, collection, pipeline, at=at, whole=whole, encoded=encoded
            )
        except errors.PyMongoError as error:
            if preferred is not None and isinstance(error, errors.ExecutionTimeout):
                if preferred.is_strict:
                    raise
                preferred = None
                continue
            pause = next(pauses, None)
            if pause is None or not _may_pass(error):
                raise
            await asyncio.sleep(pause)
        else:
            if at is not None or _is_current(connection, found.at, not_before):
                return found
            # Right after an election a new primary may not know yet that the latest
            # write is committed.
            await asyncio.sleep(_RETRY)


def _may_pass(error: errors.PyMongoError) -> bool:
    if isinstance(error, errors.ServerSelectionTimeoutError):
        return False  # the driver has waited already
    return is_passing(error)


def _is_current(
    connection: Connection, at: Timestamp, not_before: Timestamp | None
) -> bool:
    primary = connection.driver.known_primary(connection.client)
    is_late_enough = not_before is None or at >= not_before
    return is_late_enough and connection.latest.is_included(at, primary)


async def _read_primary(
    connection: Connection,
    collection: Any,
    pipeline: list[dict[str, Any]],
    *,
    at: Timestamp | None,
    whole: bool,
    encoded: bool,
) -> Snapshot:
    # By commands: cursors can neither ask for a point in time nor report it.
    size = connection.limits.reply_documents
    concern = _SNAPSHOT.document | ({} if at is None else {"atClusterTime": at})
    command = {
        "aggregate": collection.name,
        "pipeline": pipeline,
        "cursor": {"batchSize": size},
        "readConcern": concern,
    }
    async with connection.reading() as session:
        reply = await connection.reply(command, session)
        small = None
        if not encoded:
            small = without_collector(partial(replies.decode_small_reply, reply))
        if small is not None and not small["id"]:
            few = small["firstBatch"]
            found = Snapshot([reply.raw], small["atClusterTime"], few=few)
        else:
            documents, cursor = replies.split_reply(reply, "firstBatch")
            encodings: list[Encoded] = [*documents]
            read_at = cursor["atClusterTime"]
            while whole and cursor["id"]:
                # No more than in the first reply: one is split without a pause.
                more = {"getMore": cursor["id"], "collection": collection.name}
                reply = await connection.reply(more | {"batchSize": size}, session)
                documents, cursor = replies.split_reply(reply, "nextBatch")
                encodings += documents
            if left := cursor["id"]:
                rest = {"killCursors": collection.name, "cursors": [left]}
                await connection.reply(rest, session)
            found = Snapshot(encodings, read_at, is_whole=not left)
        if connection.secondaries is not None:
            # What the caller has seen here must not be missing from a later read.
            connection.secondaries.heard_of(found.at, session)
        return found


async def _read_secondary(
    connection: Connection,
    secondaries: Secondaries,
    collection: Any,
    pipeline: list[dict[str, Any]],
) -> Snapshot:
    """Read a member that the client prefers.

    Raises:
        ExecutionTimeout: it has not caught up in time.
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
            batchSize=connection.limits.reply_documents,
            maxTimeMS=secondaries.limit_ms,
        )
        try:
            results: list[Any] = await connection.driver.fetch_all(aggregate)
        except asyncio.CancelledError:
            # Where several members may be read, this may reach another one.
            await uninterrupted(kill_client_session(session, secondaries.preference))
            raise
        secondaries.heard_of(session.operation_time, session)
        return Snapshot([each.raw for each in results], session.operation_time)


async def oplog_window(connection: Connection) -> float | None:
    """Seconds of changes that MongoDB's oplog holds; None if there is no oplog."""
    oplog = connection.client["local"]["oplog.rs"]
    first = await oplog.find({}, {"ts": 1}).sort("$natural", 1).limit(1).to_list(1)
    if not first:
        return None
    latest = await latest_time(connection)
    return float(latest.time - first[0]["ts"].time)


async def oplog_window_if_known(connection: Connection) -> float | None:
    """Ask for :func:`oplog_window`; None too if MongoDB fails, refuses or is slow."""
    with suppress(errors.PyMongoError, TimeoutError):
        async with asyncio.timeout(_OPLOG_LIMIT):
            return await oplog_window(connection)
    return None
