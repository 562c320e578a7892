"""Snapshot reads: queries of several collections, answered as of one point in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp
from pymongo import errors
from pymongo.read_concern import ReadConcern

from mongo_session_service.model.records import Document
from mongo_session_service.storage import replies
from mongo_session_service.storage.clocks import SecondaryReads
from mongo_session_service.storage.cooperative import in_slices, with_gc_paused
from mongo_session_service.storage.database import Database, kill_client_session
from mongo_session_service.storage.replies import Encoded
from mongo_session_service.storage.retries import REPEAT_PAUSES, is_transient
from mongo_session_service.storage.statements import ForgottenError, Query
from mongo_session_service.storage.tasks import uninterrupted

_RETRY: Final = 0.02  # seconds
_SNAPSHOT: Final = ReadConcern("snapshot")
_FORGOTTEN: Final = {239, 246}  # SnapshotTooOld, SnapshotUnavailable
NO_TIME: Final = Timestamp(0, 0)


__all__ = ["Query"]
_TAG: Final = "%query"
"""Field that tells of which query a document is, of all queries but the last."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The documents that match, in one list per query, as of one point in time."""

    lists: Sequence[list[Any]]
    as_of: Timestamp
    """The point in time; :data:`NO_TIME` without transactions."""
    is_whole: bool = True
    """Whether these are all, and not those of the first reply alone."""
    encoded: Sequence[Encoded] = ()
    """Each of them as it was sent, or the reply that holds all, if that is small."""

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.lists)


class Snapshot(NamedTuple):
    """Documents as of one point in time."""

    encoded: list[Encoded]
    """Each of them, or the reply that holds all; empty without transactions."""
    as_of: Timestamp
    """The point in time; :data:`NO_TIME` without transactions."""
    is_whole: bool = True
    """Whether these are all, and not those of the first reply alone."""
    few: list[Document] | None = None
    """The documents, if they were decoded already, since they are few."""

    def decoded(self) -> Iterable[Document]:
        """Decode the documents, each when it is asked for."""
        if self.few is not None:
            return self.few
        return replies.decode_documents(self.encoded)

    async def documents(self) -> list[Document]:
        """Decode the documents, in slices."""
        return await in_slices(self.decoded())


def query_stages(connection: Database, query: Query) -> list[Document]:
    """Return the stages of an aggregation that reads the documents."""
    stages: list[Document] = []
    if query.filter:
        stages.append({"$match": connection.routed(query.filter)})
    if query.order is not None:
        stages.append({"$sort": query.sort})
    if query.limit is not None:
        stages.append({"$limit": query.limit})
    if query.since is not None:
        stages.append({"$match": {"event.timestamp": {"$gte": query.since}}})
    if projection := query.projection:
        stages.append({"$project": projection})
    return [*stages, *query.then]


async def find_documents(
    connection: Database, query: Query, session: Any = None
) -> list[Document]:
    """Find the documents in a transaction, or where there are none."""
    collection = connection.collection(query.collection)
    options = {} if session is None else {"session": session}
    if query.then:
        stages = query_stages(connection, query)
        aggregate = collection.aggregate(stages, **options)
        return await connection.driver.fetch_all(aggregate)
    where = connection.routed(query.filter)
    cursor = collection.find(where, query.projection or None, **options)
    if query.order is not None:
        cursor = cursor.sort(list(query.sort.items()))
    found: list[Document] = await cursor.limit(query.limit or 0).to_list(None)
    if query.since is None:
        return found
    return [each for each in found if each["event"]["timestamp"] >= query.since]


async def answer_queries(
    connection: Database,
    queries: Sequence[Query],
    *,
    as_of: Timestamp | None = None,
    not_before: Timestamp | None = None,
    whole: bool = True,
    encoded: bool = False,
) -> Answer:
    """Run queries as of one time; see ``Storage.read``."""
    if not connection.has_transactions:
        lists: list[list[Any]] = [
            await find_documents(connection, each) for each in queries
        ]
        if encoded:
            lists = [[*map(replies.encode_document, each)] for each in lists]
        return Answer(lists, NO_TIME)
    collection = connection.collection(queries[0].collection)
    pipeline = _tagged_stages(connection, queries)
    while True:
        try:
            found = await _read_primary(
                connection,
                collection,
                pipeline,
                as_of=as_of,
                whole=whole,
                encoded=encoded,
            )
        except errors.OperationFailure as error:
            if as_of is None or error.code not in _FORGOTTEN:
                raise
            raise ForgottenError from None
        if as_of is not None or _is_current(connection, found.as_of, not_before):
            break
        # Right after an election a new primary may not know yet that the latest write
        # is committed.
        await asyncio.sleep(_RETRY)
    if found.few is not None:
        lists = _split_decoded(found.few, len(queries))
    else:
        lists = _split_encoded(found.encoded, len(queries))
        if not encoded:
            decoding = [replies.decode_documents(each) for each in lists]
            lists = [await in_slices(each) for each in decoding]
    return Answer(lists, found.as_of, found.is_whole, found.encoded)


def _tagged_stages(connection: Database, queries: Sequence[Query]) -> list[Document]:
    """Join queries into one aggregation, all but the last of which tag their results.

    The last may find many documents, which are sent as they are stored.
    """
    stages: list[Document] = []
    last = len(queries) - 1
    for number, each in enumerate(queries):
        own = query_stages(connection, each)
        if number < last:
            own.append({"$set": {_TAG: number}})
        if number:
            name = connection.prefix + each.collection
            own = [{"$unionWith": {"coll": name, "pipeline": own}}]
        stages += own
    return stages


def _split_decoded(documents: list[Document], count: int) -> list[list[Document]]:
    if count == 1:
        return [documents]
    lists: list[list[Document]] = [[] for _ in range(count)]
    for each in documents:
        lists[each.pop(_TAG, -1)].append(each)
    return lists


def _split_encoded(documents: list[Encoded], count: int) -> list[list[Any]]:
    lists: list[list[Any]] = []
    begin = 0
    for number in range(count - 1):
        end, tag = begin, replies.tag(_TAG, number)
        while end < len(documents) and bytes(documents[end]).endswith(tag):
            end += 1
        own = (replies.without_tag(each, tag) for each in documents[begin:end])
        lists.append([*own])
        begin = end
    return [*lists, documents[begin:] if begin else documents]


async def load_documents(
    connection: Database,
    *several: Query,
    anywhere: bool = False,
    as_of: Timestamp | None = None,
) -> list[Document]:
    """Run queries as one snapshot read, and decode the documents."""
    found = await read_snapshot(connection, *several, anywhere=anywhere, as_of=as_of)
    return await found.documents()


async def read_snapshot(
    connection: Database,
    *several: Query,
    anywhere: bool = False,
    as_of: Timestamp | None = None,
    not_before: Timestamp | None = None,
    whole: bool = True,
    encoded: bool = False,
) -> Snapshot:
    """Run queries as of one time; return their documents in the queries' order.

    That is ``as_of``, which may not be long past. By default it is neither before the
    latest write of this service, nor before ``not_before``. With ``anywhere``,
    the member that the client prefers is read in place of the primary, if it catches up
    in time. Without ``whole``, the first reply is enough. If ``encoded``, few documents
    are left encoded, too. Without transactions these are one query after
    another.
    """
    if not connection.has_transactions:
        each_found = [await find_documents(connection, each) for each in several]
        return Snapshot([], NO_TIME, few=[*chain.from_iterable(each_found)])
    collection = getattr(connection, several[0].collection)
    pipeline = _joined_stages(connection, several)
    preferred = connection.secondaries if anywhere else None
    pauses = iter(REPEAT_PAUSES)
    while True:
        try:
            if preferred is not None:
                return await _read_secondary(
                    connection, preferred, collection, pipeline
                )
            found = await _read_primary(
                connection,
                collection,
                pipeline,
                as_of=as_of,
                whole=whole,
                encoded=encoded,
            )
        except errors.PyMongoError as error:
            is_late = isinstance(error, errors.ExecutionTimeout)
            if is_late and preferred is not None and not preferred.is_strict:
                preferred = None
                continue
            # Where no server was found, the driver has waited already.
            has_waited = isinstance(error, errors.ServerSelectionTimeoutError)
            pause = next(pauses, None)
            if pause is None or has_waited or not is_transient(error):
                raise
            await asyncio.sleep(pause)
        else:
            if as_of is not None or _is_current(connection, found.as_of, not_before):
                return found
            # Right after an election a new primary may not know yet that the latest
            # write is committed.
            await asyncio.sleep(_RETRY)


def _joined_stages(connection: Database, several: Sequence[Query]) -> list[Document]:
    stages = query_stages(connection, several[0])
    for each in several[1:]:
        name = getattr(connection, each.collection).name
        union = {"coll": name, "pipeline": query_stages(connection, each)}
        stages.append({"$unionWith": union})
    return stages


def _is_current(
    connection: Database, as_of: Timestamp, not_before: Timestamp | None
) -> bool:
    primary = connection.driver.known_primary(connection.client)
    is_late_enough = not_before is None or as_of >= not_before
    return is_late_enough and connection.latest.is_included(as_of, primary)


async def _read_primary(
    connection: Database,
    collection: Any,
    pipeline: list[dict[str, Any]],
    *,
    as_of: Timestamp | None,
    whole: bool,
    encoded: bool,
) -> Snapshot:
    # By commands: cursors can neither ask for a point in time nor report it.
    size = connection.limits.reply_documents
    concern = _SNAPSHOT.document | ({} if as_of is None else {"atClusterTime": as_of})
    command = {
        "aggregate": collection.name,
        "pipeline": pipeline,
        "cursor": {"batchSize": size},
        "readConcern": concern,
    }
    async with connection.reading() as session:
        reply = await connection.run_read_command(command, session)
        small = None
        if not encoded:
            small = with_gc_paused(partial(replies.decode_small_reply, reply))
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
                reply = await connection.run_read_command(
                    more | {"batchSize": size}, session
                )
                documents, cursor = replies.split_reply(reply, "nextBatch")
                encodings += documents
            if left := cursor["id"]:
                rest = {"killCursors": collection.name, "cursors": [left]}
                await connection.run_read_command(rest, session)
            found = Snapshot(encodings, read_at, is_whole=not left)
        connection.note_read(found.as_of, session)
        return found


async def _read_secondary(
    connection: Database,
    secondaries: SecondaryReads,
    collection: Any,
    pipeline: list[dict[str, Any]],
) -> Snapshot:
    """Read a member that the client prefers, unless it does not catch up in time."""
    collection = collection.with_options(
        codec_options=replies.RAW,
        read_preference=secondaries.preference,
        read_concern=_SNAPSHOT,
    )
    async with connection.client_session() as session:
        connection.latest.require_in(session)
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
        connection.note_read(session.operation_time, session)
        return Snapshot([each.raw for each in results], session.operation_time)
