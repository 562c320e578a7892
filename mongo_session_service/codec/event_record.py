"""Event record: a stored event, which other rooms read by its fields.

Documents of the events collection are events, but for the one before a log, at revision
0: it has the initial state of a session that was trimmed, or whose state is large.
"""

from __future__ import annotations

from typing import Any

from mongo_session_service.codec import bson_values
from mongo_session_service.codec.record import COPIED_BY, key_of
from mongo_session_service.errors import quoted
from mongo_session_service.model.records import Document, ScopedState, SessionKey


class EventRecord:
    """A stored event, or the part of it that was read; frozen."""

    __slots__ = ("document", "revision")

    def __init__(self, document: Document) -> None:
        """Of a document at a place in a log, whatever it holds."""
        self.document = document
        self.revision: int = document["_id"]["revision"]

    @classmethod
    def read(cls, document: Document) -> EventRecord | None:
        """Of an event; None of what precedes a log, and of what another tool wrote."""
        is_event = isinstance(document.get("event"), dict)
        if not (is_event and key_of(document["_id"], "revision")):
            return None
        record = cls(document)
        return record if isinstance(record.revision, int) else None

    @property
    def key(self) -> SessionKey:
        id_ = self.document["_id"]
        return SessionKey(id_["app_name"], id_["user_id"], id_["session_id"])

    @property
    def is_event(self) -> bool:
        """False of what precedes a log."""
        return "event" in self.document

    @property
    def event(self) -> Document:
        """Its sub-document, as it is stored; empty if another tool has damaged it."""
        event = self.document.get("event")
        return event if isinstance(event, dict) else {}

    @property
    def id(self) -> Any:
        """The event's own id; None if another tool has damaged it."""
        return self.event.get("id")

    @property
    def timestamp(self) -> float:
        """Seconds since 1970; 0 if another tool has damaged it."""
        time = self.event.get("timestamp")
        return float(time) if isinstance(time, int | float) else 0.0

    @property
    def copied_by(self) -> str | None:
        """``fork`` or ``import``, if that has stored it."""
        return self.document.get(COPIED_BY)

    @property
    def is_sealed(self) -> bool:
        """Whether the application's hook has changed it."""
        return "hooked" in self.document

    @property
    def delta(self) -> ScopedState:
        """Its delta to state, decoded."""
        try:
            actions = self.document.get("event", {}).get("actions", {})
            delta = bson_values.decode_value(actions.get("state_delta", {}))
            return ScopedState.split(delta)
        except (AttributeError, bson_values.UnreadableError):
            where = f"of session {quoted(self.key.session_id)}"
            what = f"The event {where} at revision {self.revision}"
            raise bson_values.UnreadableError(what) from None

    @property
    def own_delta(self) -> Document:
        """Its delta to its session's own state, as it is stored."""
        return bson_values.encode_fields(self.delta.session)
