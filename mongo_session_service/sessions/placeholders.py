"""Placeholders: tombstones and reservations, which hold a session's place.

A placeholder is a document with a session's ``_id``, but without revision or state. No
read returns it, and no session can be created beside it. There are two kinds:

- a *tombstone*: a session's events are being removed, step by step;
- a *reservation*: a fork or an import is storing a session's events. It names its
  holder and has an ``expire_time``, which the holder renews. The session's own document
  replaces it at the end, so that no reader sees a part of the session.

Removing a reservation turns it into a tombstone first: its ``expire_time`` becomes
zero, and its holder cannot store the session any more.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from google.adk.platform import time as platform_time

from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries

FORK: Final = "held_by"
"""The field that names the fork that holds a place."""

IMPORT: Final = "claimed_by"
"""The field that names the import that holds a place."""

_BURIED: Final = 0.0
"""The ``expire_time`` of a tombstone; a reservation that is held has a later one."""

BURY: Final = {"$set": {"expire_time": _BURIED}, "$inc": {"steps": 1}}
"""The update that makes a placeholder a tombstone, and counts a step of its removal.

It changes the document each time, so that concurrent transactions conflict.
"""


@dataclass(frozen=True, slots=True)
class Reservations:
    """The places that one fork or import holds."""

    holder_field: Literal["held_by", "claimed_by"]
    lifetime: float
    """Seconds until a reservation expires, unless it is renewed."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    def new(self, id_: Document) -> Document:
        """A reservation of the place with this ``_id``."""
        return {"_id": id_, **self._fields()}

    def renewal(self) -> Document:
        """The update that renews a reservation, or takes over another holder's."""
        return {"$set": self._fields()}

    def held(self, key: SessionKey) -> Document:
        """The filter for a place, as long as it is held here."""
        return self.held_by(self.holder, key.id)

    def held_by(self, holder: str, id_: Document) -> Document:
        """The filter for a place, as long as this holder has it."""
        own = {"_id": id_, self.holder_field: holder}
        return {**own, "expire_time": {"$gt": _BURIED}}

    def _fields(self) -> Document:
        expire_time = platform_time.get_time() + self.lifetime
        return {
            "expire_time": expire_time,
            "steps": 0,
            self.holder_field: self.holder,
        }


def is_placeholder(document: Document) -> bool:
    """Whether a document of the sessions collection is not a session."""
    return "revision" not in document


def was_reserved(placeholder: Document) -> bool:
    """Whether a tombstone has been a reservation, and not a session."""
    return FORK in placeholder or IMPORT in placeholder


def tombstone(id_: Document) -> Document:
    """The document that replaces a session that is being removed."""
    return {"_id": id_, "expire_time": _BURIED, "steps": 0}


def at(id_: Document) -> Document:
    """The filter for the placeholder with this ``_id``."""
    return {"_id": id_, "revision": {"$exists": False}}


def buried_at(key: SessionKey) -> Document:
    """The filter for a session's tombstone."""
    return {"_id": key.id, **queries.expired(_BURIED)}


def deletable(now: float) -> Document:
    """The filter for what a delete may remove.

    That is all but a fork that has not expired: the server may be copying events.
    """
    return {"$or": [{FORK: {"$exists": False}}, queries.expired(now)]}


async def remove_silently(connection: Connection, id_: Document, txn: Txn) -> None:
    """Remove a placeholder; the change feed does not report a deleted session.

    All that a change stream contains of a delete is the ``_id``. A second document,
    inserted and deleted in the same transaction, says that this was no session.
    """
    announcement: dict[str, Any] = {
        "_id": queries.announcement_id(id_, queries.REMOVED)
    }
    if txn:
        await connection.sessions.insert_one(announcement, session=txn)
    await connection.sessions.delete_one(at(id_), session=txn)
    if txn:
        await connection.sessions.delete_one(announcement, session=txn)
