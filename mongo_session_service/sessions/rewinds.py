"""Rewinds: the parts of a log that they undo, and where invocations begin.

Ids of invocations have no index, whose cost each append would pay: the server looks
through the session's log. Where a hook has sealed the events, pages are decoded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from google.adk.events.event import Event

from mongo_session_service.codec import documents
from mongo_session_service.codec.bson_values import decode_value, encode_value
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import (
    LogRange,
    read_log,
    read_session_head,
)
from mongo_session_service.storage.connection import Connection

_INVOCATION: Final = "event.invocation_id"
"""The field of an event, unless a hook has sealed it."""
_REWIND: Final = "event.actions.rewind_before_invocation_id"


def undone_parts(
    rewinds: Iterable[tuple[int, str]], firsts: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Find the parts of a log that rewinds have undone, as ADK does; the latest first.

    The latest rewind counts first. It undoes itself and what follows the first event of
    its invocation; a rewind that is undone has no effect. One to an invocation that is
    not there, or comes later, undoes itself alone. Given are revisions with the
    invocations before which they rewind, and where these begin.
    """
    parts: list[tuple[int, int]] = []
    for revision, invocation_id in sorted(rewinds, reverse=True):
        if parts and revision >= parts[-1][0]:
            continue
        first = firsts.get(invocation_id, revision)
        parts.append((min(first, revision), revision))
    return parts


class LogAtRevision(NamedTuple):
    """A session's log as of one of its revisions."""

    key: SessionKey
    begins: int
    """The revision after which it begins."""
    until: int
    """The last revision."""

    @property
    def where(self) -> Document:
        """The filter of its events."""
        return queries.events_until(self.key, self.until, self.begins)


def is_sealed(connection: Connection) -> bool:
    """Tell whether events must be decoded here to see invocations and rewinds."""
    return connection.hooks.after_load is not None


async def select_events(
    connection: Connection,
    key: SessionKey,
    wanted: LogRange,
    invocation_id: str | None,
    *,
    rewound: bool,
) -> AsyncGenerator[list[Document]]:
    """Read a log in pages, of an invocation, or without what rewinds have undone.

    Events that are sealed may be of other invocations. Memory grows with the number of
    rewinds.
    """
    created = None
    if not rewound:
        head = await read_session_head(connection, key)
        created, until = head["create_time"], head["revision"]
        log = LogAtRevision(key, documents.log_begins(head), until)
        before = until + 1 if wanted.before is None else min(until + 1, wanted.before)
        undone = await _find_undone(connection, log)
        wanted = replace(wanted, before=before, undone=undone)
    where = None
    if invocation_id is not None and is_sealed(connection):
        wanted = replace(wanted, limit=None)
    elif invocation_id is not None:
        where = {_INVOCATION: encode_value(invocation_id)}
    return read_log(connection, key, wanted, where=where, created=created)


async def _find_undone(
    connection: Connection, log: LogAtRevision
) -> list[tuple[int, int]]:
    rewinds = await _find_rewinds(connection, log)
    targets = {invocation_id for _, invocation_id in rewinds}
    firsts = await find_firsts(connection, log, targets) if targets else {}
    return undone_parts(rewinds, firsts)


async def decode_log(
    connection: Connection, log: LogAtRevision
) -> AsyncGenerator[tuple[int, Event]]:
    """Decode the events of a log, with their revisions, a page at a time."""
    wanted = LogRange(log.begins, log.until + 1)
    async for page in read_log(connection, log.key, wanted):
        for each in page:
            event = documents.decode_event(each, connection.hooks)
            yield each["_id"]["revision"], event


async def _find_rewinds(
    connection: Connection, log: LogAtRevision
) -> list[tuple[int, str]]:
    if is_sealed(connection):
        return [
            (revision, event.actions.rewind_before_invocation_id)
            async for revision, event in decode_log(connection, log)
            if event.actions.rewind_before_invocation_id
        ]
    where = {**log.where, _REWIND: {"$exists": 1, "$ne": ""}}
    found = await _aggregate_log(connection, where, {"$project": {"to": f"${_REWIND}"}})
    return [(each["_id"]["revision"], decode_value(each["to"])) for each in found]


async def find_firsts(
    connection: Connection, log: LogAtRevision, invocation_ids: set[str]
) -> dict[str, int]:
    """Find the revisions of invocations' first events."""
    if is_sealed(connection):
        firsts: dict[str, int] = {}
        async for revision, event in decode_log(connection, log):
            if event.invocation_id in invocation_ids:
                firsts.setdefault(event.invocation_id, revision)
                if len(firsts) == len(invocation_ids):
                    break
        return firsts
    wanted = [encode_value(each) for each in invocation_ids]
    where = {**log.where, _INVOCATION: {"$in": wanted}}
    first = {"_id": f"${_INVOCATION}", "first": {"$min": "$_id.revision"}}
    found = await _aggregate_log(connection, where, {"$group": first})
    return {decode_value(each["_id"]): each["first"] for each in found}


async def _aggregate_log(
    connection: Connection, where: Document, stage: Document
) -> list[Document]:
    stages = [{"$match": connection.routed(where)}, stage]
    return await connection.retry(connection.aggregate, connection.events, stages)
