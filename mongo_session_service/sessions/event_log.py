"""Reading the log of events page by page, each together with whose events they are.

A page is of one point in time, and leaves no cursor behind. So it tells whether its
session is still there, and still the one that the pages before were of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from mongo_session_service.codec.documents import is_visible
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.model.records import Document, SessionKey

PAGE: Final = 256
"""Events read at once, if they fit into a reply of 16 MB."""


@dataclass(frozen=True, slots=True)
class Span:
    """The events of a session between two revisions, both left out."""

    after: int
    before: int | None
    newest_first: bool
    left: int | None
    """How many of them are wanted; None for all."""

    @property
    def size(self) -> int:
        """How many to read at once."""
        return PAGE if self.left is None else min(PAGE, self.left)

    def filter(self, key: SessionKey) -> Document:
        """What finds them."""
        end: Any = {} if self.before is None else self.before
        upper = {**key.id, "revision": end}
        return {"_id": {"$gt": key.event_id(self.after), "$lt": upper}}

    @property
    def order(self) -> int:
        """The direction of ``_id`` that they are read in."""
        return -1 if self.newest_first else 1

    def rest(self, count: int, last: int) -> Span:
        """What is left of it after so many events, the last of this revision."""
        left = None if self.left is None else self.left - count
        if self.newest_first:
            return replace(self, before=last, left=left)
        return replace(self, after=last, left=left)


def events_of_user(app_name: str, user_id: str, after: Document | None) -> Document:
    """What finds the events of a user's sessions, after one in the order of ``_id``."""
    user = {"app_name": app_name, "user_id": user_id}
    return {"_id": {"$gt": after or user, "$lt": {**user, "session_id": {}}}}


_HEAD: Final = {"create_time": 1, "revision": 1, "expire_time": 1}
_KEY: Final = SessionKey._fields


class LogPage(NamedTuple):
    """Events as they are stored, and the sessions they are of."""

    events: list[Document]
    created: dict[str, float]
    """When the sessions were created that are to be shown, by their ids."""
    is_last: bool


async def load_session_page(
    connection: Connection, key: SessionKey, span: Span, now: float
) -> LogPage:
    """The first page of a span.

    Raises:
        StorageUnavailableError: MongoDB has been away for a minute.
    """
    found, is_whole = await persistently(lambda: _session_part(connection, key, span))
    heads = [each for each in found if "revision" not in each["_id"]]
    events = [each for each in found if "revision" in each["_id"]]
    is_last = is_whole and len(events) < span.size
    return LogPage(events, _created(heads, now), is_last)


async def load_user_page(
    connection: Connection,
    app_name: str,
    user_id: str,
    after: Document | None,
    now: float,
) -> LogPage:
    """The first page of a user's events after one.

    Raises:
        StorageUnavailableError: MongoDB has been away for a minute.
    """
    where = events_of_user(app_name, user_id, after)
    events, heads, is_whole = await persistently(lambda: _user_part(connection, where))
    return LogPage(events, _created(heads, now), is_whole and len(events) < PAGE)


async def _session_part(
    at: Connection, key: SessionKey, span: Span
) -> tuple[list[Document], bool]:
    where = span.filter(key)
    if not at.has_transactions:
        head = at.sessions.find({"_id": key.id}, _HEAD)
        cursor = at.events.find(where).sort("_id", span.order).limit(span.size)
        return [*await head.to_list(None), *await cursor.to_list(None)], True
    stages = [{"$match": where}, {"$sort": {"_id": span.order}}, {"$limit": span.size}]
    read = await snapshots.snapshot(
        at,
        at.sessions,
        [
            {"$match": {"_id": key.id}},
            {"$project": _HEAD},
            {"$unionWith": {"coll": at.events.name, "pipeline": stages}},
        ],
        whole=False,
    )
    return read.documents, read.is_whole


async def _user_part(
    at: Connection, where: Document
) -> tuple[list[Document], list[Document], bool]:
    if not at.has_transactions:
        cursor = at.events.find(where).sort("_id", 1).limit(PAGE)
        events = await cursor.to_list(None)
        heads = at.sessions.find(_sessions_of(events), _HEAD)
        return events, await heads.to_list(None), True
    stages: list[dict[str, Any]] = [
        {"$match": where},
        {"$sort": {"_id": 1}},
        {"$limit": PAGE},
    ]
    read = await snapshots.snapshot(at, at.events, stages, whole=False)
    if not read.documents:
        return [], [], True
    stages = [{"$match": _sessions_of(read.documents)}, {"$project": _HEAD}]
    heads = await snapshots.snapshot_at(at, at.sessions, stages, at=read.at)
    return read.documents, heads.documents, read.is_whole


def _sessions_of(events: list[Document]) -> Document:
    keys = {SessionKey(*(each["_id"][name] for name in _KEY)) for each in events}
    return {"_id": {"$in": [key.id for key in sorted(keys)]}}


def session_id(event: Document) -> str:
    """Which session of its user's a stored event is of."""
    id_: str = event["_id"]["session_id"]
    return id_


def _created(heads: list[Document], now: float) -> dict[str, float]:
    return {
        session_id(each): each["create_time"] for each in heads if is_visible(each, now)
    }
