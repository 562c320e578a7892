"""Reservations: they hold the ids of sessions that a fork or an import is storing.

A reservation has a session's ``_id``, but no revision and no state. No read returns it,
and no session can be created beside it. It names its holder and has an ``expire_time``,
which the holder renews. The session's own document replaces it at the end, so that no
reader sees a part of the session.

Removing a reservation makes it a tombstone first: its ``expire_time`` becomes zero, and
its holder cannot store the session any more.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mongo_session_service.driver.compat import Driver
from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions.queries import SERVER_TIME

FORK: Final = "held_by"
"""The field of a reservation that names the fork that holds it."""

IMPORT: Final = "claimed_by"
"""The field of a reservation that names the import that holds it."""

TOMBSTONE_TIME: Final = 0.0
"""The ``expire_time`` of a tombstone; a reservation that is held has a later one."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """The reservations of one fork or import."""

    holder_field: Literal["held_by", "claimed_by"]
    lifetime: float
    """Seconds until a reservation expires, unless it is renewed."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    def new(self, connection: Connection, id_: Document) -> Document:
        """A reservation of the session with this ``_id``."""
        expire_time = connection.clock.now() + self.lifetime
        return {"_id": id_, **self._fields(expire_time)}

    def renewal(self, connection: Connection) -> Document | list[Document]:
        """The update that renews a reservation, or takes over another holder's."""
        if connection.driver is Driver.MOCK:
            expire_time: Any = connection.clock.now() + self.lifetime
            return {"$set": self._fields(expire_time)}
        # By the server's clock, which decides when a reservation is removed.
        return [{"$set": self._fields({"$add": [SERVER_TIME, self.lifetime]})}]

    def held(self, key: SessionKey) -> Document:
        """The filter for a session's reservation, as long as it is held here."""
        return self.held_by(self.holder, key.id)

    def held_by(self, holder: str, id_: Document) -> Document:
        """The filter for a reservation, as long as this holder has it."""
        own = {"_id": id_, self.holder_field: holder}
        return {**own, "expire_time": {"$gt": TOMBSTONE_TIME}}

    def _fields(self, expire_time: Any) -> Document:
        return {"expire_time": expire_time, "steps": 0, self.holder_field: self.holder}
