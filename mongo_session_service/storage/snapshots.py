"""Snapshot reads: queries of several collections, answered as of one point in time.

A reply of 16 MB takes a tenth of a second to decode, in which nothing else could run:
its documents are decoded a few at a time. A small one is decoded as a whole, in two
thirds of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from struct import Struct
from typing import Any, Final

import bson
from bson import codec_options
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import ReadPreference, errors

from mongo_session_service.codec.bson_values import CODEC_OPTIONS
from mongo_session_service.model.records import Document
from mongo_session_service.storage.database import Database, boot_time
from mongo_session_service.storage.statements import Query, SnapshotTooOldError
from mongo_session_service.storage.tasks import in_slices, with_gc_paused

Encoded = bytes | memoryview
"""A document that :func:`decode_documents` decodes."""


RAW: Final = codec_options.CodecOptions[RawBSONDocument](document_class=RawBSONDocument)
"""How documents are left encoded."""

_SIZE: Final = Struct("<i")
"""How arrays and documents begin: with their bytes, these four among them."""

_SMALL: Final = 524_288
"""Bytes of a reply that is decoded as a whole, in 2 ms."""

_DECODED_BYTES: Final = 65_536
"""Bytes decoded at once: each call of the decoder costs as much as four documents."""


def split_reply(reply: RawBSONDocument, name: str) -> tuple[list[bytes], Document]:
    """Split a reply into the documents of its first or next batch, and its cursor.

    The cursor is decoded, without the documents.
    """
    # The driver would make an object for each document, in four times the time.
    raw, marker = bytes(reply["cursor"].raw), b"\x04%b\0" % name.encode()
    begin = raw.index(marker)
    at = begin + len(marker)
    end = at + _SIZE.unpack_from(raw, at)[0]
    rest = raw[_SIZE.size : begin] + raw[end:]
    cursor = bson.decode(_SIZE.pack(_SIZE.size + len(rest)) + rest)
    documents = []
    at += _SIZE.size
    while at < end - 1:
        at = raw.index(0, at + 1) + 1  # behind an element's type and its number
        (size,) = _SIZE.unpack_from(raw, at)
        documents.append(raw[at : at + size])
        at += size
    return documents, cursor


def decode_small_reply(reply: RawBSONDocument) -> Document | None:
    """Decode a small reply's cursor with its documents; None for a large one."""
    if len(reply.raw) > _SMALL:
        return None
    whole = with_gc_paused(partial(bson.decode, reply.raw, CODEC_OPTIONS))
    cursor: Document = whole["cursor"]
    return cursor


def decode_together(documents: Iterable[Encoded]) -> list[Document]:
    """Decode documents at once."""
    return bson.decode_all(b"".join(documents), CODEC_OPTIONS)


def decode_documents(documents: Iterable[Encoded]) -> Iterator[Document]:
    """Decode documents, each when it is asked for."""
    together: list[Encoded] = []
    size = 0
    for each in documents:
        together.append(each)
        size += len(each)
        if size >= _DECODED_BYTES:
            yield from decode_together(together)
            together, size = [], 0
    yield from decode_together(together)


@cache
def tags(name: str, count: int) -> list[bytes]:
    """Return how documents end whose last field is a number below ``count``."""
    return [
        b"\x10%b\0%b\0" % (name.encode(), _SIZE.pack(number)) for number in range(count)
    ]


def without_tag(document: bytes, tag: bytes) -> bytes:
    """Remove the last field of an encoded document."""
    end = 1 - len(tag)
    size = _SIZE.pack(len(document) + end)
    return size + document[_SIZE.size : end - 1] + b"\0"


_RETRY: Final = 0.02  # seconds
_FORGOTTEN: Final = {239, 246}  # SnapshotTooOld, SnapshotUnavailable
NO_TIME: Final = Timestamp(0, 0)


_TAG: Final = "%query"
"""Field that names the query that a document is of, of all queries but the last."""


@dataclass(frozen=True, slots=True)
class QueryResults:
    """The documents that match, in one list per query, as of one point in time."""

    lists: Sequence[list[Any]]
    as_of: Timestamp
    """The point in time; :data:`NO_TIME` without transactions."""
    is_whole: bool = True
    """Whether these are all, and not those of the first reply alone."""
    encoded: Sequence[Encoded] = ()
    """The documents as BSON, or the reply that contains them, if that is small."""

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.lists)


def query_stages(database: Database, query: Query) -> list[Document]:
    """Return the stages of an aggregation that reads the documents."""
    stages: list[Document] = []
    if query.filter:
        stages.append({"$match": database.routed(query.filter)})
    if query.order is not None:
        stages.append({"$sort": query.sort})
    if query.limit is not None:
        stages.append({"$limit": query.limit})
    if query.since is not None:
        stages.append({"$match": {"event.timestamp": {"$gte": query.since}}})
    if query.fields or query.without:
        stages.append({"$project": query.projection})
    return [*stages, *query.then]


async def find_documents(
    database: Database, query: Query, session: Any = None
) -> list[Document]:
    """Find the documents in a transaction, or where there are none."""
    collection = database.collection(query.collection)
    if query.then or query.since is not None:
        stages = query_stages(database, query)
        cursor = await database.driver.open_cursor(
            collection.aggregate(stages, session=session)
        )
    else:
        where = database.routed(query.filter)
        cursor = collection.find(where, query.projection or None, session=session)
        if query.order is not None:
            cursor = cursor.sort(list(query.sort.items()))
        cursor = cursor.limit(query.limit or 0)
    found: list[Document] = await cursor.to_list(None)
    return found


async def answer_queries(
    database: Database,
    queries: Sequence[Query],
    *,
    as_of: Timestamp | None = None,
    not_before: Timestamp | None = None,
    whole: bool = True,
    encoded: bool = False,
) -> QueryResults:
    """Run queries as of one time; see ``Storage.read``."""
    if not database.has_transactions:
        found = [await find_documents(database, each) for each in queries]
        return QueryResults(found, NO_TIME)
    # By commands: cursors can neither ask for a point in time nor report it.
    command: Document = {
        "aggregate": database.prefix + queries[0].collection,
        "pipeline": _tagged_stages(database, queries),
        "cursor": {"batchSize": database.limits.reply_documents},
        "readConcern": {"level": "snapshot"},
    }
    if as_of is not None:
        command["readConcern"]["atClusterTime"] = as_of
    async with database.read_session() as session:
        run = partial(
            database.database.command,
            codec_options=RAW,
            read_preference=ReadPreference.PRIMARY,
            session=session,
        )
        while True:
            asked_at = boot_time()
            try:
                reply = await run(command)
            except errors.OperationFailure as error:
                if as_of is None or error.code not in _FORGOTTEN:
                    raise
                raise SnapshotTooOldError from None
            primary = database.contact.note_answer(asked_at)
            few = None if encoded else decode_small_reply(reply)
            if few is not None and not few["id"]:
                raw, read_at, is_whole = [bytes(reply.raw)], few["atClusterTime"], True
            else:
                few = None
                split = await _split_large(run, reply, command, whole=whole)
                raw, read_at, is_whole = split
            if as_of is not None or (
                (not_before is None or read_at >= not_before)
                and database.latest.is_included(read_at, primary)
            ):
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
            lists = [await in_slices(decode_documents(each)) for each in lists]
    return QueryResults(lists, read_at, is_whole, raw)


async def _split_large(
    run: Callable[[Document], Awaitable[RawBSONDocument]],
    reply: RawBSONDocument,
    command: Document,
    *,
    whole: bool,
) -> tuple[list[bytes], Timestamp, bool]:
    """Return the documents of a reply, and of those that follow if ``whole``.

    Beside them their time, and whether they are all.
    """
    name, size = command["aggregate"], command["cursor"]["batchSize"]
    documents, cursor = split_reply(reply, "firstBatch")
    read_at = cursor["atClusterTime"]
    while whole and cursor["id"]:
        # No more than in the first reply: one is split without a pause.
        more = {"getMore": cursor["id"], "collection": name, "batchSize": size}
        following, cursor = split_reply(await run(more), "nextBatch")
        documents += following
    if left := cursor["id"]:
        await run({"killCursors": name, "cursors": [left]})
    return documents, read_at, not left


def _tagged_stages(database: Database, queries: Sequence[Query]) -> list[Document]:
    """Join queries into one aggregation, all but the last of which tag their results.

    The last may find many documents, which are sent as they are stored.
    """
    stages: list[Document] = []
    last = len(queries) - 1
    for number, each in enumerate(queries):
        own = query_stages(database, each)
        if number < last:
            own.append({"$set": {_TAG: number}})
        if number:
            name = database.prefix + each.collection
            own = [{"$unionWith": {"coll": name, "pipeline": own}}]
        stages += own
    return stages


def _split_decoded(documents: list[Document], count: int) -> list[list[Document]]:
    lists: list[list[Document]] = [[] for _ in range(count)]
    for each in takewhile(lambda it: _TAG in it, documents):
        lists[each.pop(_TAG)].append(each)
    lists[-1] = documents[sum(map(len, lists)) :]
    return lists


def _split_encoded(documents: list[bytes], count: int) -> list[list[Any]]:
    lists: list[list[Any]] = []
    begin = 0
    for tag in tags(_TAG, count - 1):
        own = []
        while begin < len(documents) and documents[begin].endswith(tag):
            own.append(without_tag(documents[begin], tag))
            begin += 1
        lists.append(own)
    return [*lists, documents[begin:] if begin else documents]
