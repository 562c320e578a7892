"""Event look-ups: an event by its id, an invocation's first, what rewinds have undone.

Ids of invocations have no index, whose cost each append would pay: the server looks
through the session's log. Where a hook has sealed the events, pages are decoded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Self

from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import event_log, queries
from mongo_session_service.sessions.event_log import Page, Span
from mongo_session_service.sessions.queries import Wanted
from mongo_session_service.sessions.store import SessionStore

_REWIND: Final = "event.actions.rewind_before_invocation_id"


async def find_event(
    connection: Connection, store: SessionStore, key: SessionKey, event_id: str
) -> Event | None:
    """The event of a stored session that has this id."""
    found = await store.read(
        Wanted("sessions", {"_id": key.id}, fields=event_log.HEAD),
        Wanted("events", queries.event_by_id(key, event_id)),
        anywhere=True,
    )
    now = platform_time.get_time()
    head = next((each for each in found if each["_id"] == key.id), None)
    if head is None or not documents.is_visible(head, now):
        return None
    logged = documents.without_trimmed(found, head)
    events = (each for each in logged if "event" in each)
    event = next(events, None)
    return None if event is None else documents.decode_event(event, connection.hooks)


def is_sealed(connection: Connection) -> bool:
    """Whether only this process can tell what events hold, beside id and timestamp."""
    return connection.hooks.after_load is not None


class Log(NamedTuple):
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


async def first_revision(
    connection: Connection, log: Log, invocation_id: str
) -> int | None:
    """The revision of an invocation's first event."""
    firsts = await _firsts(connection, log, {invocation_id})
    return firsts.get(invocation_id)


class Undone(NamedTuple):
    """What the rewinds of a log have undone, as of one revision of its session."""

    created: float
    """The session's creation time."""
    until: int
    """Its revision."""
    spans: list[tuple[int, int]]
    """The first and the last revision of each part; the latest comes first."""

    @classmethod
    async def load(cls, connection: Connection, key: SessionKey) -> Self | None:
        """Read it; None if the session is not stored. Memory grows with the rewinds."""
        latest = Span(0, None, newest_first=True, left=1)
        page = await event_log.load_session_page(connection, key, latest)
        created = page.created(platform_time.get_time()).get(key.session_id)
        if created is None:
            return None
        (head,) = page.sessions
        log = Log(key, documents.log_begins(head), head["revision"])
        rewinds = await _rewinds(connection, log)
        targets = {invocation_id for _, invocation_id in rewinds}
        firsts = await _firsts(connection, log, targets) if targets else {}
        return cls(created, log.until, undone_by(rewinds, firsts))

    def covering(self, revision: int) -> tuple[int, int] | None:
        """The part that a revision is in."""
        return next((it for it in self.spans if it[0] <= revision <= it[1]), None)

    def bounded(self, span: Span) -> Span:
        """A span up to this revision of the session."""
        before = self.until + 1
        if span.before is not None:
            before = min(before, span.before)
        return self.past(replace(span, before=before))

    def past(self, span: Span) -> Span:
        """The rest of a bounded span, behind the part that it begins in."""
        if span.newest_first and span.before is not None:
            part = self.covering(span.before - 1)
            return span.beyond(part[0]) if part else span
        part = self.covering(span.after + 1)
        return span.beyond(part[1]) if part else span


class Choice(NamedTuple):
    """Which events of a span are wanted."""

    invocation_id: str | None
    """Those of one invocation; None for any."""
    undone: Undone | None = None
    """What is passed over."""

    def where(self, connection: Connection) -> Document:
        """The filter for them, as far as the server can tell them."""
        if self.invocation_id is None or is_sealed(connection):
            return {}
        return {queries.INVOCATION: bson_values.encode_value(self.invocation_id)}

    def events(self, page: Page, hooks: Hooks) -> Iterator[tuple[int, Event]]:
        """Those on a page, by revision."""
        for each in page.events:
            revision = each["_id"]["revision"]
            if self.undone is None or not self.undone.covering(revision):
                event = documents.decode_event(each, hooks)
                if self.invocation_id in {None, event.invocation_id}:
                    yield revision, event

    def rest(self, span: Span, page: Page) -> Span:
        """The rest of a span after a page, without what is passed over next."""
        span = span.beyond(page.events[-1]["_id"]["revision"])
        return span if self.undone is None else self.undone.past(span)


def undone_by(
    rewinds: Iterable[tuple[int, str]], firsts: Mapping[str, int]
) -> list[tuple[int, int]]:
    """The parts of a log that rewinds have undone, in ADK's reading; the latest first.

    The latest rewind counts first. It undoes itself and what follows the first event of
    its invocation; a rewind that is undone has no effect. One to an invocation that is
    not there, or comes later, undoes itself alone.

    Args:
        rewinds: Revisions, and the invocations before which they rewind.
        firsts: The revisions of these invocations' first events.
    """
    spans: list[tuple[int, int]] = []
    for revision, invocation_id in sorted(rewinds, reverse=True):
        if spans and revision >= spans[-1][0]:
            continue
        first = firsts.get(invocation_id, revision)
        spans.append((min(first, revision), revision))
    return spans


async def _rewinds(connection: Connection, log: Log) -> list[tuple[int, str]]:
    """The rewinds of a log: where they are, and before what they rewind."""
    if is_sealed(connection):
        return [
            (revision, event.actions.rewind_before_invocation_id)
            async for revision, event in decoded(connection, log)
            if event.actions.rewind_before_invocation_id
        ]
    where = {**log.where, _REWIND: {"$exists": 1, "$ne": ""}}
    found = await _results(connection, where, {"$project": {"to": f"${_REWIND}"}})
    return [
        (each["_id"]["revision"], bson_values.decode_value(each["to"]))
        for each in found
    ]


async def _firsts(
    connection: Connection, log: Log, invocation_ids: set[str]
) -> dict[str, int]:
    """The revisions of the first events of some invocations."""
    if is_sealed(connection):
        firsts: dict[str, int] = {}
        async for revision, event in decoded(connection, log):
            if event.invocation_id in invocation_ids:
                firsts.setdefault(event.invocation_id, revision)
                if len(firsts) == len(invocation_ids):
                    break
        return firsts
    wanted = [bson_values.encode_value(each) for each in invocation_ids]
    where = {**log.where, queries.INVOCATION: {"$in": wanted}}
    first = {"_id": f"${queries.INVOCATION}", "first": {"$min": "$_id.revision"}}
    found = await _results(connection, where, {"$group": first})
    return {bson_values.decode_value(each["_id"]): each["first"] for each in found}


async def _results(
    connection: Connection, where: Document, stage: Document
) -> list[Document]:
    stages = [{"$match": queries.routed(connection, where)}, stage]
    return await connection.retry(connection.aggregate, connection.events, stages)


async def decoded(connection: Connection, log: Log) -> AsyncIterator[tuple[int, Event]]:
    """The events of a log, a page in memory at a time."""
    span = Span(log.begins, log.until + 1, newest_first=False, left=None)
    is_last = False
    while not is_last:
        page = await event_log.load_session_page(connection, log.key, span)
        for each in page.events:
            event = documents.decode_event(each, connection.hooks)
            yield each["_id"]["revision"], event
        is_last = page.is_last
        if not is_last:
            span = span.beyond(page.events[-1]["_id"]["revision"])
