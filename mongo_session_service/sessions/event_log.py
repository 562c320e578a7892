"""The event log's pager: pages by key, each of one point in time, without a cursor.

A page of a session's log, or of a user's, also says which sessions its events belong
to, so that a reader notices a session that was deleted or recreated between two pages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from bson.timestamp import Timestamp

from mongo_session_service.codec.documents import LOG_BEGINS, is_visible, log_begins
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.queries import Wanted

PAGE: Final = 256
"""Events read at once, if they fit into a reply of 16 MB."""


class Page(NamedTuple):
    """Events as they are stored, in the order of ``_id`` or against it."""

    events: list[Document]
    sessions: list[Document]
    """What was read together with them, if asked for."""
    at: Timestamp | None
    """The point in time that all of it is from; None without transactions."""
    is_last: bool
    """Whether no events follow these."""

    def created(self, now: float) -> dict[str, float]:
        """The creation times of the sessions that are visible, by session ID."""
        shown = [each for each in self.sessions if is_visible(each, now)]
        return {session_id(each): each["create_time"] for each in shown}

    def begins(self) -> dict[str, int]:
        """The revisions after which the sessions' logs begin, by session ID."""
        return {session_id(each): log_begins(each) for each in self.sessions}


async def read_page(
    connection: Connection,
    where: Document,
    *,
    size: int | None = None,
    order: int = 1,
    at: Timestamp | None = None,
    session: Wanted | None = None,
) -> Page:
    """The first events that match a filter on their ``_id``.

    Args:
        connection: Where to read.
        where: The filter; the next page's begins after the last event of this one.
        size: How many to read at most; ``PAGE`` by default.
        order: The direction of ``_id``: 1 or -1.
        at: The point in time to read at; by default a current one, which holds what
            this service has written.
        session: The session to be read with them, as of the same time.
    """
    size = PAGE if size is None else size
    events = Wanted("events", where, order=order, limit=size)
    wanted = [events] if session is None else [session, events]
    is_whole = True
    if connection.has_transactions:
        stages = queries.union(connection, *wanted)
        source = getattr(connection, wanted[0].collection), stages
        reading = (
            snapshots.snapshot(connection, *source, whole=False)
            if at is None
            else snapshots.snapshot_at(connection, *source, at=at, whole=False)
        )
        documents, at, is_whole = await reading
    else:
        documents = await queries.read_each(connection, *wanted)
    found = [each for each in documents if "revision" in each["_id"]]
    sessions = [each for each in documents if "revision" not in each["_id"]]
    return Page(found, sessions, at, is_whole and len(found) < size)


@dataclass(frozen=True, slots=True)
class Span:
    """The events of a session between two revisions, exclusive."""

    after: int
    before: int | None
    newest_first: bool
    left: int | None
    """How many are wanted; None for all."""
    is_sifted: bool = False
    """Whether the reader passes over some of what it reads."""
    most: int | None = None
    """How many to read at once, at most; ``PAGE`` by default."""

    @property
    def size(self) -> int:
        """How many to read at once."""
        most = PAGE if self.most is None else self.most
        return most if self.left is None or self.is_sifted else min(most, self.left)

    @property
    def order(self) -> int:
        """The direction of ``_id``: 1 or -1."""
        return -1 if self.newest_first else 1

    def beyond(self, revision: int) -> Span:
        """The rest behind a revision, in its direction."""
        if self.newest_first:
            return replace(self, before=revision)
        return replace(self, after=revision)

    def less(self, count: int) -> Span:
        """The same once so many of the wanted events were returned."""
        return self if self.left is None else replace(self, left=self.left - count)


def events_of_user(app_name: str, user_id: str, after: Document | None) -> Document:
    """The filter of a user's events after one of them, in the order of ``_id``."""
    user = {"app_name": app_name, "user_id": user_id}
    return {"_id": {"$gt": after or user, "$lt": {**user, "session_id": {}}}}


HEAD: Final = ("create_time", "revision", "expire_time", "ttl", LOG_BEGINS)
"""What tells whether a session is shown, which one it is, and where its log begins."""

_KEY: Final = SessionKey._fields


async def load_session_page(
    connection: Connection,
    key: SessionKey,
    span: Span,
    wanted: Document | None = None,
    *,
    at: Timestamp | None = None,
) -> Page:
    """The first page of a span, or of the events in it that match, and its session.

    Both are as of a point in time; by default a current one.

    Raises:
        StorageUnavailableError: MongoDB has been unreachable for a minute.
    """
    head = Wanted("sessions", {"_id": key.id}, fields=HEAD)
    after = span.after
    while True:
        log = queries.events_after(key, after, span.before)
        where = {**log, **(wanted or {})}
        order, size = span.order, span.size
        reading = partial(read_page, connection, where, size=size, order=order)
        page: Page = await connection.retry(reading, at=at, session=head)
        begins = max(map(log_begins, page.sessions), default=0)
        revisions = (each["_id"]["revision"] for each in page.events)
        if begins <= after or min(revisions, default=begins + 1) > begins:
            return page
        after = begins  # the page has events that a trim is about to remove


async def load_user_page(
    connection: Connection, app_name: str, user_id: str, after: Document | None
) -> Page:
    """The first page of a user's events after one, and their sessions.

    Raises:
        StorageUnavailableError: MongoDB has been unreachable for a minute.
    """
    where = events_of_user(app_name, user_id, after)
    return await connection.retry(_read_user_page, connection, where)


async def _read_user_page(at: Connection, where: Document) -> Page:
    page = await read_page(at, where)
    if not page.events:
        return page
    keys = {SessionKey(*(each["_id"][name] for name in _KEY)) for each in page.events}
    ids = [key.id for key in sorted(keys)]
    heads = Wanted("sessions", {"_id": {"$in": ids}}, fields=HEAD)
    if page.at is None:
        return page._replace(sessions=await queries.read_each(at, heads))
    read = await snapshots.snapshot_at(at, at.sessions, heads.stages(at), at=page.at)
    return page._replace(sessions=read.documents)


def session_id(event: Document) -> str:
    """The ID of a stored event's session."""
    id_: str = event["_id"]["session_id"]
    return id_
