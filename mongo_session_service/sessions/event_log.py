"""Event log: a session's events, and a user's, read in pages of one point in time each.

No cursor is left open between two pages, so a reader may be slow, or stop early. With
each page the session is read, so that a reader notices one that was deleted or
recreated in between.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from bson.timestamp import Timestamp

from mongo_session_service.codec.documents import HEAD, is_visible, log_begins
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.snapshots import Query, load_documents, read_snapshot


class LogPage(NamedTuple):
    """Events as they are stored, in the order of ``_id`` or against it."""

    events: list[Document]
    sessions: list[Document]
    """The session that was read together with them, if asked for."""
    as_of: Timestamp
    """The point in time that all of it is from."""
    is_last: bool
    """Whether no events follow these."""


async def read_page(
    connection: Connection,
    where: Document,
    *,
    size: int | None = None,
    order: int = 1,
    as_of: Timestamp | None = None,
    head_query: Query | None = None,
    fields: tuple[str, ...] = (),
) -> LogPage:
    """Read the first events that match a filter on ``_id``, and a session with them.

    The next page's filter begins after the last event of this one. All is read at the
    time ``as_of``; by default a current one, which holds what this service has written.
    """
    size = connection.limits.page_events if size is None else size
    events = Query("events", where, order=order, limit=size, fields=fields)
    both = [events] if head_query is None else [head_query, events]
    found = await read_snapshot(connection, *both, as_of=as_of, whole=False)
    documents = await found.documents()
    logged = [each for each in documents if "revision" in each["_id"]]
    sessions = [each for each in documents if "revision" not in each["_id"]]
    return LogPage(logged, sessions, found.as_of, found.is_whole and len(logged) < size)


@dataclass(frozen=True, slots=True)
class LogRange:
    """The events of a session to read, and the order in which to read them."""

    after: int = 0
    """The revision before the first of them."""
    before: int | None = None
    """The revision behind the last of them; None for no end."""
    newest_first: bool = False
    limit: int | None = None
    """How many events are wanted; None for all."""
    undone: Sequence[tuple[int, int]] = ()
    """The first and the last revision of each part that is passed over."""
    page_events: int | None = None
    """How many to read at once, at most; ``Limits.page_events`` by default."""

    def page_size(self, default: int) -> int:
        """Return how many events to read at once."""
        most = self.page_events or default
        return most if self.limit is None or self.undone else min(most, self.limit)

    def without_undone(self, events: list[Document]) -> list[Document]:
        """Leave out the undone parts, and what is beyond the limit."""
        kept = [it for it in events if not self._undone_part(it["_id"]["revision"])]
        return kept if self.limit is None else kept[: self.limit]

    def after_page(self, revision: int) -> LogRange:
        """Return what is left after a page's last revision, past an undone part."""
        if self.newest_first:
            part = self._undone_part(revision - 1)
            return replace(self, before=part[0] if part else revision)
        part = self._undone_part(revision + 1)
        return replace(self, after=part[1] if part else revision)

    def _undone_part(self, revision: int) -> tuple[int, int] | None:
        return next((it for it in self.undone if it[0] <= revision <= it[1]), None)


async def read_log(
    connection: Connection,
    key: SessionKey,
    wanted: LogRange,
    *,
    where: Document | None = None,
    created: float | None = None,
    as_of: Timestamp | None = None,
    fields: tuple[str, ...] = (),
) -> AsyncGenerator[list[Document]]:
    """Read the events of a session, page by page; a page may be empty.

    They have to match ``where`` as well, and the session's creation time is
    ``created``, if that is given. All is read at ``as_of``, by default a current time
    for each page. If the session is not stored (any more), it raises
    ``SessionNotFoundError``.
    """
    while wanted.limit != 0:
        page = await _load_session_page(
            connection, key, wanted, where=where, as_of=as_of, fields=fields
        )
        (head,) = page.sessions or ({},)
        is_shown = is_visible(head, connection.clock.now())
        if not is_shown or created not in {None, head["create_time"]}:
            raise session_not_found_error(key.session_id)
        created = head["create_time"]
        events = wanted.without_undone(page.events)
        yield events
        if page.is_last:
            return
        if wanted.limit is not None:
            wanted = replace(wanted, limit=wanted.limit - len(events))
        wanted = wanted.after_page(page.events[-1]["_id"]["revision"])


async def _load_session_page(
    connection: Connection,
    key: SessionKey,
    wanted: LogRange,
    *,
    where: Document | None,
    as_of: Timestamp | None,
    fields: tuple[str, ...],
) -> LogPage:
    after = wanted.after
    reading = partial(
        read_page,
        connection,
        size=wanted.page_size(connection.limits.page_events),
        order=-1 if wanted.newest_first else 1,
        as_of=as_of,
        head_query=Query("sessions", {"_id": key.id}, fields=HEAD),
        fields=fields,
    )
    while True:
        log = queries.events_after(key, after, wanted.before)
        page = await connection.retry(reading, where={**log, **(where or {})})
        begins = max(map(log_begins, page.sessions), default=0)
        revisions = (each["_id"]["revision"] for each in page.events)
        if begins <= after or min(revisions, default=begins + 1) > begins:
            return page
        after = begins  # the page has events that a trim is about to remove


async def read_session_head(connection: Connection, key: SessionKey) -> Document:
    """Load a session's creation time, its revision, and where its log begins.

    If it is not stored, it raises ``SessionNotFoundError``.
    """
    query = Query("sessions", {"_id": key.id}, fields=HEAD)
    found = await connection.retry(load_documents, connection, query)
    if not found or not is_visible(found[0], connection.clock.now()):
        raise session_not_found_error(key.session_id)
    return found[0]


async def read_user_log(
    connection: Connection, app_name: str, user_id: str
) -> AsyncGenerator[list[Document]]:
    """Read the events of a user's sessions, in pages, by session id and revision.

    The events of a session that is deleted meanwhile end there; of one that was
    recreated, none come.
    """
    last: Document | None = None
    session_id, created, is_last = "", None, False
    while not is_last:
        where = queries.events_of_user(app_name, user_id, last)
        page = await connection.retry(_load_user_page, connection, where)
        now, is_last = connection.clock.now(), page.is_last
        heads = {
            each["_id"]["session_id"]: each
            for each in page.sessions
            if is_visible(each, now)
        }
        begun = heads.get(session_id)
        if begun and begun["create_time"] != created:
            del heads[session_id]  # the rest is of another session with this id
        yield [each for each in page.events if _is_logged(each, heads)]
        if page.events:
            last = page.events[-1]["_id"]
            if last["session_id"] != session_id:
                session_id = last["session_id"]
                created = heads.get(session_id, {}).get("create_time")


def _is_logged(event: Document, heads: dict[str, Document]) -> bool:
    """Tell whether a document is an event of a session that is shown."""
    id_ = event["_id"]
    head = heads.get(id_["session_id"])
    # A large initial state is kept beside the events.
    return head is not None and id_["revision"] > log_begins(head) and "event" in event


async def _load_user_page(connection: Connection, where: Document) -> LogPage:
    page = await read_page(connection, where)
    keys = {
        SessionKey(*(each["_id"][name] for name in SessionKey._fields))
        for each in page.events
    }
    if not keys:
        return page
    ids = [key.id for key in sorted(keys)]
    heads = Query("sessions", {"_id": {"$in": ids}}, fields=HEAD)
    sessions = await load_documents(connection, heads, as_of=page.as_of)
    return page._replace(sessions=sessions)
