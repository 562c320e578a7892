"""Document shapes: sessions and events as they are stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bson.raw_bson import RawBSONDocument

from mongo_session_service.model.records import Append, Document, NewSession
from mongo_session_service.sessions.queries import Update

INITIAL: Final = "initial_state"
"""Where a session keeps the state it began with."""

LISTED: Final = (
    *("state", "revision", "create_time", "update_time", "ttl", "expire_time"),
)
"""What a list needs of a session's document, and hardly more."""

_BESIDE_STATE: Final = 4096
"""Bytes up to which that is in the session's own document, which is read with it."""


def session_document(session: NewSession) -> Document:
    """A new session as it is stored."""
    document = {
        "_id": session.key.id,
        "state": session.delta.session,
        "revision": 0,
        "create_time": session.create_time,
        "update_time": session.create_time,
        **session.details.fields(),
    }
    if not is_apart(session):
        document[INITIAL] = session.delta.session
    return document


def is_apart(session: NewSession) -> bool:
    """Whether a session's initial state has to have a document of its own."""
    return bool(session.delta.session) and session.size > _BESIDE_STATE


def initial_updates(sessions: Iterable[NewSession]) -> list[Update]:
    """What stores initial states apart: before the log, where revision 1 is next.

    A document is of one session only, and not of a later one of the same id.
    """
    return [
        Update(
            {"_id": each.key.event_id(0)},
            {"$set": {INITIAL: each.delta.session, "create_time": each.create_time}},
        )
        for each in sessions
        if is_apart(each)
    ]


def event_document(append: Append, revision: int, *, encoded: bool = False) -> Document:
    """An event as it is stored; if ``encoded``, with its BSON rather than its fields.

    The driver copies BSON as it is, and need not encode the event a second time.
    """
    event = RawBSONDocument(append.encoded) if encoded else append.event
    document: Document = {"_id": append.key.event_id(revision), "event": event}
    if append.is_wrapped:
        document["wrapped"] = True
    if append.is_hooked:
        document["hooked"] = True
    return document
