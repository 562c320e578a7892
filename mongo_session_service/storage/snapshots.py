"""Snapshot reads: queries of several collections, answered as of one point in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import ReadPreference, errors

from mongo_session_service.model.records import Document
from mongo_session_service.storage import replies
from mongo_session_service.storage.cooperative import in_slices
from mongo_session_service.storage.database import Database
from mongo_session_service.storage.replies import Encoded
from mongo_session_service.storage.statements import ForgottenError, Query

_RETRY: Final = 0.02  # seconds
_FORGOTTEN: Final = {239, 246}  # SnapshotTooOld, SnapshotUnavailable
NO_TIME: Final = Timestamp(0, 0)


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
    database: Database,
    queries: Sequence[Query],
    *,
    as_of: Timestamp | None = None,
    not_before: Timestamp | None = None,
    whole: bool = True,
    encoded: bool = False,
) -> Answer:
    """Run queries as of one time; see ``Storage.read``."""
    if not database.has_transactions:
        return await _find_each(database, queries, encoded=encoded)
    name = database.prefix + queries[0].collection
    # By commands: cursors can neither ask for a point in time nor report it.
    command: Document = {
        "aggregate": name,
        "pipeline": _tagged_stages(database, queries),
        "cursor": {"batchSize": database.limits.reply_documents},
        "readConcern": {"level": "snapshot"},
    }
    if as_of is not None:
        command["readConcern"]["atClusterTime"] = as_of
    async with database.reading() as session:
        while True:
            with database.contact.asking():
                reply = await _run(database, command, session)
            few = None if encoded else replies.decode_small_reply(reply)
            if few is not None and not few["id"]:
                raw, left, read_at = [bytes(reply.raw)], 0, few["atClusterTime"]
            else:
                few = None
                raw, cursor = replies.split_reply(reply, "firstBatch")
                left, read_at = cursor["id"], cursor["atClusterTime"]
                while whole and left:
                    # No more than in the first reply: one is split without a pause.
                    size = database.limits.reply_documents
                    more = {"getMore": left, "collection": name, "batchSize": size}
                    reply = await _run(database, more, session)
                    documents, cursor = replies.split_reply(reply, "nextBatch")
                    raw, left = raw + documents, cursor["id"]
                if left:
                    rest = {"killCursors": name, "cursors": [left]}
                    await _run(database, rest, session)
            if as_of is not None or _is_current(database, read_at, not_before):
                break
            # Right after an election a new primary may not know yet that the latest
            # write is committed.
            await asyncio.sleep(_RETRY)
    lists: list[list[Any]]
    if few is not None:
        lists = _split_decoded(few["firstBatch"], len(queries))
    else:
        lists = _split_encoded(raw, len(queries))
        if not encoded:
            decoding = [replies.decode_documents(each) for each in lists]
            lists = [await in_slices(each) for each in decoding]
    return Answer(lists, read_at, not left, raw)


async def _find_each(
    database: Database, queries: Sequence[Query], *, encoded: bool
) -> Answer:
    lists: list[list[Any]] = [await find_documents(database, each) for each in queries]
    if encoded:
        lists = [[*map(replies.encode_document, each)] for each in lists]
    return Answer(lists, NO_TIME)


async def _run(database: Database, command: Document, session: Any) -> RawBSONDocument:
    """Run a command on the primary; return the reply, still encoded."""
    try:
        reply: RawBSONDocument = await database.database.command(
            command,
            codec_options=replies.RAW,
            read_preference=ReadPreference.PRIMARY,
            session=session,
        )
    except errors.OperationFailure as error:
        is_past = "atClusterTime" in command.get("readConcern", ())
        if not is_past or error.code not in _FORGOTTEN:
            raise
        raise ForgottenError from None
    return reply


def _is_current(
    database: Database, as_of: Timestamp, not_before: Timestamp | None
) -> bool:
    if not_before is not None and as_of < not_before:
        return False
    return database.latest.is_included(as_of, database.known_primary())


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


def _split_encoded(documents: list[bytes], count: int) -> list[list[Any]]:
    lists: list[list[Any]] = []
    begin = 0
    for tag in replies.tags(_TAG, count - 1):
        own = []
        while begin < len(documents) and documents[begin].endswith(tag):
            own.append(replies.without_tag(documents[begin], tag))
            begin += 1
        lists.append(own)
    return [*lists, documents[begin:] if begin else documents]
