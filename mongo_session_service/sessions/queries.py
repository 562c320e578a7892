"""Queries: filters, stages and updates that several files share.

What belongs to a key is a range of ``_id``. Documents compare field by field, so a
shorter one is the lower bound of all that begin with it. The upper bound has one more
field, holding an empty document, which sorts after every string and number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.codec.record import LOG_BEGINS, NEEDS
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.storage.database import Database
from mongo_session_service.storage.statements import Query

NO_EVENTS: Final = GetSessionConfig(num_recent_events=0)

TURN_EPOCH: Final = "turn.epoch"
"""The field of a session that counts how often its turn was taken."""

TURN_RENEWED: Final = "turn.renewed_at"
"""When its turn was taken or renewed, by the server's clock."""

TURN_FIRST_REVISION: Final = "turn.first_revision"
"""The revision of the first event that was appended within its turn."""


def renewed_life(storage: Database, least: float = 0.0) -> list[Document]:
    """The update that has a session live for its ``ttl`` from now on, if it has one.

    Or for the least number of seconds, if that is more.
    """
    ends = {"$add": [storage.server_time, {"$max": ["$ttl", least]}]}
    # Another tool may have set it; and whoever comes late revives nothing.
    is_alive = {"$gt": ["$expire_time", storage.server_time]}
    longer = {"$and": [{"$isNumber": "$ttl"}, is_alive]}
    return [{"$set": {"expire_time": {"$cond": [longer, ends, "$expire_time"]}}}]


NEEDS_KNOWN: Final[Document] = {NEEDS: {"$in": [None, []]}}
"""The filter for sessions that this release may touch: those without needs.

Once there are some that it knows, the server is fastest with a list of their sets. An
``$elemMatch`` costs it 10 to 17 of 100 µs for an append.
"""


def visible_filter(now: float) -> Document:
    """The filter for sessions: they have a revision, and have not expired.

    A tombstone, of a session that is being removed, has none; nor has a reservation.
    """
    return {"revision": {"$gte": 0}, "expire_time": {"$not": {"$lte": now}}}


def alive_filter(storage: Database) -> Document:
    """The filter for what has not expired by the server's clock: it may be written."""
    ends = {"$ifNull": ["$expire_time", math.inf]}
    return {"$expr": {"$gt": [ends, storage.server_time]}}


def writable_filter(storage: Database) -> Document:
    """The filter for sessions by the server's clock that this release may write."""
    return {"revision": {"$gte": 0}, **NEEDS_KNOWN, **alive_filter(storage)}


def expired_filter(now: float) -> Document:
    """The filter for what has expired by then, tombstones included."""
    return {"expire_time": {"$lte": now}}


def expiring_filter() -> Document:
    """The filter for what expires at some time, if this release knows its form."""
    own = {"_id.session_id": {"$type": "string"}}
    return {"expire_time": {"$lte": math.inf}, **own, **NEEDS_KNOWN}


def expired_on_server_filter(storage: Database) -> Document:
    """The filter for what has expired by the server's clock: it may be removed.

    A client whose clock is fast must not remove what others still use.
    """
    has_expired = {"$lte": ["$expire_time", storage.server_time]}
    # In an expression a missing time is before every other, so it is excluded first.
    return {**expiring_filter(), "$expr": has_expired}


BY_SESSION: Final = {
    "$group": {"_id": {name: f"$_id.{name}" for name in SessionKey._fields}}
}
"""The stage that finds the ``_id`` of each session some events are of."""

LENGTH: Final = {
    "$subtract": [
        {"$cond": [{"$isNumber": field}, field, 0]}  # another tool may have set it
        for field in ("$revision", f"${LOG_BEGINS}")
    ]
}
"""The number of a session's events, computed by the server."""

COUNT_STAGE: Final = {
    "$group": {
        "_id": None,
        "sessions": {"$sum": {"$cond": [{"$gte": ["$revision", 0]}, 1, 0]}},
        "events": {"$sum": LENGTH},
    }
}
"""The stage that counts sessions and their events."""


def all_sessions(app_name: str, user_id: str | None) -> Document:
    if user_id is None:
        return _id_prefix_range({"app_name": app_name}, "user_id")
    return _id_prefix_range({"app_name": app_name, "user_id": user_id}, "session_id")


def all_user_states(app_name: str, user_id: str | None) -> Document:
    if user_id is None:
        return _id_prefix_range({"app_name": app_name}, "user_id")
    return {"_id": user_state_id(app_name, user_id)}


def all_events(key: SessionKey) -> Document:
    return _id_prefix_range(key.id, "revision")


def partials_of_session(key: SessionKey, create_time: float | None = None) -> Document:
    """The partials of a session; of one alone of those with its key, if given."""
    of_any = _id_prefix_range(key.id, "epoch")
    return of_any if create_time is None else {**of_any, "create_time": create_time}


def partials_of_turn(
    key: SessionKey, epoch: int, create_time: float | None
) -> Document:
    """The partials of a turn, and of none of another session with its key."""
    of_any = _id_prefix_range({**key.id, "epoch": epoch}, "n")
    return {**of_any, "create_time": {"$in": [create_time, None]}}


def events_after(key: SessionKey, after: int, until: int | None = None) -> Document:
    """The events of a session after a revision, up to another if there is one."""
    upper = {**key.id, "revision": {} if until is None else until}
    return {"_id": {"$gt": key.event_id(after), "$lte": upper}}


def app_documents_filter(app_name: str | None, after: Document | None) -> Document:
    """The filter for documents of an app, or of all, after an ``_id``."""
    if app_name is None:
        return {"_id": {"$gt": after or {}}}
    bounds = _id_prefix_range({"app_name": app_name}, "user_id")
    return {"_id": {**bounds["_id"], **({"$gt": after} if after else {})}}


def event_by_id(key: SessionKey, event_id: Any) -> Document:
    """The event of a session that has this id; found without its index as well."""
    parts = {f"_id.{name}": part for name, part in key.id.items()}
    return {**all_events(key), **parts, "event.id": event_id}


def user_state_id(app_name: str, user_id: str) -> Document:
    return {"app_name": app_name, "user_id": user_id}


def _id_prefix_range(prefix: Document, next_field: str) -> Document:
    return {"_id": {"$gt": prefix, "$lt": {**prefix, next_field: {}}}}


def any_of(filters: Sequence[Document]) -> Document:
    return filters[0] if len(filters) == 1 else {"$or": list(filters)}


def session_queries(key: SessionKey) -> list[Query]:
    # By its _id alone, which the server needs no plan for: a tenth faster.
    session = Query("sessions", {"_id": key.id})
    return [session, *shared_state_queries(key.app_name, key.user_id)]


def shared_state_queries(app_name: str, user_id: str | None) -> list[Query]:
    """The state that the sessions of an app, or of one of its users, share."""
    return [
        Query("app_states", {"_id": app_name}),
        Query("user_states", all_user_states(app_name, user_id)),
    ]


def shared_state_queries_by_key(keys: Iterable[SessionKey]) -> list[Query]:
    """The state that some sessions share, of all their apps and users."""
    users = {key[:2] for key in keys}
    apps = sorted({app_name for app_name, _ in users})
    ids = [user_state_id(*each) for each in sorted(users)]
    return [
        Query("app_states", {"_id": {"$in": apps}}),
        Query("user_states", {"_id": {"$in": ids}}),
    ]


def event_queries(
    key: SessionKey,
    config: GetSessionConfig | None,
    after_revision: int = 0,
    until: int | None = None,
) -> list[Query]:
    """The events that a caller's config asks for, the latest first."""
    config = config or GetSessionConfig()
    limit, since = config.num_recent_events, config.after_timestamp
    if limit == 0:
        return []
    limit = None if limit is None else min(limit, 2**63 - 1)
    log = events_after(key, after_revision, until)
    return [Query("events", log, order=-1, limit=limit, since=since)]
