"""Change records: changes as they are stored, decoded when a reader receives them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from mongo_session_service.changes.change import Change, ChangeKind
from mongo_session_service.codec import bson_values, documents, partials
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.codec.waiting_fields import (
    WAITING,
    WAITING_FIELDS,
    decode_waiting,
)
from mongo_session_service.errors import StorageError, quoted
from mongo_session_service.model import scopes
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, SessionKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A change as it is stored, which readers receive decoded, as a :class:`Change`."""

    kind: ChangeKind
    owner: tuple[str, ...]
    """The app, the user or the session that it concerns."""
    content: Document
    """Of an event and of a new session the ``document``; of an update the ``details``
    and the calls that are ``waiting``; of shared state the ``delta``, keys prefixed by
    scope, empty if no value has changed; of a log that was trimmed the ``document``
    before it and the ``shared`` ones of its app and user."""
    time: float = 0.0
    """When it was committed, as far as the content does not tell a time."""
    hooks: Hooks = field(default=NO_HOOKS, repr=False, compare=False)

    @property
    def key(self) -> SessionKey:
        """Key of the session that changed; only in a change of a session."""
        return SessionKey(*self.owner)

    @property
    def expire_time(self) -> object:
        """Time at which a created or updated session expires; None for never."""
        stored = self.content.get("details") or self.content.get("document", {})
        return stored.get("expire_time")

    def change(self) -> Change:
        """Decode it; a StorageError if this release of ADK, or the hook, cannot."""
        named: Document = dict(zip(SessionKey._fields, self.owner, strict=False))
        session_id = named.get("session_id")
        where = "the state" if session_id is None else f"session {quoted(session_id)}"
        fields = {"kind": self.kind, "time": self.time, **self._decode(self.content)}
        try:
            return Change(**named, **fields)
        except ValidationError:  # it may quote what is stored
            what = f"The change {self.kind!r} of {where}"
            raise bson_values.UnreadableError(what) from None

    def _decode(self, content: Document) -> Document:
        hooks, document = self.hooks, content.get("document", {})
        fields: Document = {}
        if "event" in document:
            event = documents.decode_event(document, hooks)
            fields = {"event": event, "time": event.timestamp}
        if WAITING in document:
            fields["waiting"] = decode_waiting(document, hooks).named
        match self.kind:
            case "appended":
                fields["revision"] = document["_id"]["revision"]
                fields["state_delta"] = event.actions.state_delta
            case "redacted":
                return {"event": event}
            case "created":
                fields["revision"] = document["revision"]
                fields["time"] = document["create_time"]
                fields["state_delta"] = documents.decode_session_state(
                    document, self.key, hooks
                )
            case "snapshot":
                owner = Owner.of_session(self.key)
                own = documents.decode_state(document[documents.INITIAL], owner, hooks)
                shared = documents.decode_shared_state(
                    self.key, content["shared"], hooks
                )
                fields["revision"] = documents.log_begins(document)
                fields["time"] = document["create_time"]
                fields["state"] = scopes.merge(replace(shared, session=own))
            case "updated":
                details = Details.from_document(content["details"])
                waiting = {"_id": self.key.id, **content["waiting"]}
                fields["title"] = details.title or None
                fields["labels"] = dict(details.labels)
                fields["expire_time"] = details.expire_time
                fields["waiting"] = decode_waiting(waiting, hooks).named
            case "state":
                owner = Owner(*self.owner)
                fields["state_delta"] = hooks.loaded_state(content["delta"], owner)
            case "partial" | "turn":
                epoch, number = document["_id"]["epoch"], document["_id"]["n"]
                fields["turn"] = partials.decode_turn(self.key, epoch, document)
                fields["turn_position"] = number
        return fields


def updated_record(
    key: SessionKey, document: Document, time: float, hooks: Hooks
) -> ChangeRecord:
    """Build an ``updated`` change: of title, labels, expiry or waiting calls."""
    waiting = {name: document[name] for name in WAITING_FIELDS if name in document}
    content = {
        "details": Details.from_document(document).to_document(),
        "waiting": waiting,
    }
    return ChangeRecord("updated", key, content, time, hooks)


def readable_change(record: ChangeRecord) -> Change | None:
    """Decode a change for subscribers, without its content if that is unreadable.

    One change must not end a stream, and the subscribers of a session count its
    revisions. Shared state that cannot be read is left out: None.
    """
    try:
        return record.change()
    except StorageError as error:
        logger.warning("Subscribers do not receive the content of a change. %s", error)
    if record.kind not in {"appended", "created"}:
        return None
    document, time = record.content["document"], 0.0
    revision = document.get("revision", document["_id"].get("revision"))
    stored = document.get("create_time", document.get("event", {}).get("timestamp"))
    if isinstance(stored, int | float):
        time = float(stored)
    return Change(kind=record.kind, **record.key.id, revision=revision, time=time)


def stored_delta(appended: ChangeRecord) -> Document:
    """Return an event's delta as stored, keys prefixed by scope.

    Empty if another tool wrote it; reading the event raises then.
    """
    event = appended.content["document"]["event"]
    actions = event.get("actions")
    delta = actions.get("state_delta") if isinstance(actions, dict) else None
    try:
        delta = bson_values.decode_value(delta)
    except bson_values.UnreadableError:
        return {}
    return delta if isinstance(delta, dict) else {}
