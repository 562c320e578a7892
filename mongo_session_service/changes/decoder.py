"""Change decoder: change stream documents to typed changes.

A change stream reports single documents. Of an append only the event's insert matters,
since it holds the delta as well; of a session its insert, its delete, the announcement
of new details, and the replacement of the document that reserved its place during an
import; of app and user state every write.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import bson
from bson.timestamp import Timestamp
from google.adk.sessions.state import State
from pydantic import ValidationError

from mongo_session_service.changes.change import Change
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
from mongo_session_service.model.results import WaitingCall
from mongo_session_service.sessions import queries

logger = logging.getLogger(__name__)

_DROPS: Final = ("drop", "rename", "dropDatabase", "invalidate")
_WRITES: Final = ("insert", "update", "replace")
_OF_SESSIONS: Final = ("insert", "replace", "delete")
_OF_REDACTIONS: Final = "replace"
"""The operation of a redaction on an event, and of nothing else."""
_SLIM: Final = ("operationType", "ns", "documentKey", "clusterTime", "wallTime")
_OURS: Final = {"state": dict, "revision": int, "create_time": float}
_OF_TURNS: Final = {"status": str, "since": datetime, "host": str, "time": datetime}
_TRANSACTION: Final = ("lsid", "txnNumber")


@dataclass(frozen=True, slots=True)
class Appended:
    """An event was appended."""

    key: SessionKey
    document: Document
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change that subscribers receive."""
        event = documents.decode_event(self.document, self.hooks)
        return Change(
            kind="appended",
            **self.key.id,
            revision=self.document["_id"]["revision"],
            event=event,
            state_delta=event.actions.state_delta,
            waiting=_decode_waiting(self.document, self.hooks),
            time=event.timestamp,
        )

    def delta(self) -> Document:
        """The event's delta, as stored, keys prefixed by scope.

        Empty if another tool wrote it; reading the event raises then.
        """
        actions = self.document["event"].get("actions")
        delta = actions.get("state_delta") if isinstance(actions, dict) else None
        try:
            delta = bson_values.decode_value(delta)
        except bson_values.UnreadableError:
            return {}
        return delta if isinstance(delta, dict) else {}


@dataclass(frozen=True, slots=True)
class Redacted:
    """An event's content was replaced."""

    key: SessionKey
    document: Document
    """The event as it is now."""
    time: float
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change that subscribers receive."""
        event = documents.decode_event(self.document, self.hooks)
        return Change(kind="redacted", **self.key.id, event=event, time=self.time)


@dataclass(frozen=True, slots=True)
class Created:
    """A session was created."""

    key: SessionKey
    document: Document
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change that subscribers receive, with the session's own initial state."""
        return Change(
            kind="created",
            **self.key.id,
            revision=self.document["revision"],
            state_delta=documents.decode_session_state(
                self.document, self.key, self.hooks
            ),
            waiting=_decode_waiting(self.document, self.hooks),
            time=self.document["create_time"],
        )


@dataclass(frozen=True, slots=True)
class Updated:
    """A session's title, labels or expiry were changed, or what waits, by a trim."""

    key: SessionKey
    details: Details
    """All of them, as they are stored."""
    time: float
    waiting: Document = field(default_factory=dict)
    """The calls that wait, as they are stored."""
    hooks: Hooks = field(default=NO_HOOKS, repr=False, compare=False)

    def change(self) -> Change:
        """The change that subscribers receive."""
        named = {"_id": self.key.id}
        try:
            return Change(
                kind="updated",
                **self.key.id,
                title=self.details.title or None,
                labels=dict(self.details.labels),
                expire_time=self.details.expire_time,
                waiting=decode_waiting(named | self.waiting, self.hooks).named,
                time=self.time,
            )
        except ValidationError:  # it may quote what is stored
            where = f"The details of session {quoted(self.key.session_id)}"
            raise bson_values.UnreadableError(where) from None


@dataclass(frozen=True, slots=True)
class Deleted:
    """A session was deleted."""

    key: SessionKey
    time: float

    def change(self) -> Change:
        """The change that subscribers receive."""
        return Change(kind="deleted", **self.key.id, time=self.time)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A log begins at a later revision than 0: what was before it was trimmed."""

    key: SessionKey
    document: Document
    """The one before the log, which holds the state as of then."""
    shared: list[Document] = field(repr=False)
    """The documents of its app's and its user's state, among others."""
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change that readers of the log receive: a snapshot."""
        owner, initial = Owner.of_session(self.key), self.document[documents.INITIAL]
        shared = documents.decode_shared_state(self.key, self.shared, self.hooks)
        own = documents.decode_state(initial, owner, self.hooks)
        return Change(
            kind="snapshot",
            **self.key.id,
            revision=documents.log_begins(self.document),
            state=scopes.merge(scopes.ScopedState(shared.app, shared.user, own)),
            time=self.document["create_time"],
        )


@dataclass(frozen=True, slots=True)
class StateSet:
    """Shared state was set: an app's, or a user's."""

    app_name: str
    user_id: str | None
    delta: Document
    """As stored, keys prefixed by scope; empty if no value has changed."""
    time: float
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change that subscribers receive."""
        owner = Owner(self.app_name, self.user_id)
        return Change(
            kind="state",
            app_name=self.app_name,
            user_id=self.user_id,
            state_delta=self.hooks.loaded_state(self.delta, owner),
            time=self.time,
        )


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """A running turn has said something, has begun, or has ended."""

    key: SessionKey
    document: Document
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change that subscribers receive."""
        document, event = self.document, None
        if "event" in document:
            event = documents.decode_event(document, self.hooks)
        noted = document["time"].replace(tzinfo=UTC).timestamp()
        return Change(
            kind="turn" if event is None else "partial",
            **self.key.id,
            event=event,
            turn=partials.decode_turn(self.key, document["_id"]["epoch"], document),
            turn_position=document["_id"]["n"],
            time=noted if event is None else event.timestamp,
        )


@dataclass(frozen=True, slots=True)
class OversizedChange:
    """A dead letter's change that was too large to be stored."""

    id: Document
    """The dead letter's ``_id``."""

    def change(self) -> Change:
        """Never returns: the content is not stored."""
        kind, session_id = self.id["kind"], self.id.get("session_id")
        where = "the state" if session_id is None else f"session {quoted(session_id)}"
        message = (
            f"The change {kind!r} was too large to be stored as a dead letter: read"
            f" {where} itself."
        )
        raise StorageError(message)


ChangeRecord = Appended | Redacted | Created | Updated | Deleted | StateSet
"""A record that subscribers and consumers receive as a :class:`Change`.

Making one raises ``StorageError`` if this release of ADK, or the application's hook,
cannot read what is stored."""


LogRecord = ChangeRecord | Trimmed
"""A record that consumers receive, who may read the log as well."""


class Names(NamedTuple):
    """The names of the collections that are watched."""

    sessions: str
    events: str
    app_states: str
    user_states: str

    @classmethod
    def of_connection(cls, connection: Any) -> Names:
        """The names of a connection's collections."""
        return cls(*(getattr(connection, kind).name for kind in cls._fields))


@dataclass(frozen=True, slots=True)
class Dropped:
    """A collection or the database was dropped."""

    what: str


@dataclass(frozen=True, slots=True)
class TombstoneRemoved:
    """A tombstone, not a session, is what the same transaction deletes next."""

    key: SessionKey


RESEALED: Final = "resealed"
"""The field of an app's or a user's state that counts how often it was re-sealed, by
which a re-seal is told from a write: no value has changed."""

ChangeEvent = ChangeRecord | Dropped | TombstoneRemoved
"""Everything that a document of the change stream can mean."""


def pipeline(names: Names, app_name: str | None = None) -> list[Document]:
    """The filter of a change stream, for one app or for all.

    It has only plain comparisons, which the server can evaluate on its oplog. Without
    the drops, the stream of a dropped database would end without an error.
    """
    states = {"$in": [names.app_states, names.user_states]}
    writes: list[Document] = [
        {
            "ns.coll": names.events,
            "operationType": {"$in": ["insert", _OF_REDACTIONS]},
        },
        {"ns.coll": names.sessions, "operationType": {"$in": list(_OF_SESSIONS)}},
        {
            "ns.coll": states,
            "operationType": {"$in": list(_WRITES)},
            f"updateDescription.updatedFields.{RESEALED}": {"$exists": False},
        },
    ]
    if app_name is not None:
        of_app: Document = {"documentKey._id.app_name": app_name}
        of_states: Document = {"$or": [of_app, {"documentKey._id": app_name}]}
        parts = (of_app, of_app, of_states)
        writes = [each | part for each, part in zip(writes, parts, strict=True)]
    drops = {"operationType": {"$in": list(_DROPS)}}
    return [{"$match": {"$or": [*writes, drops]}}]


def partials_pipeline(collection: str) -> list[Document]:
    """The filter of a change stream that has what running turns say, and no more."""
    return [{"$match": {"ns.coll": collection, "operationType": "insert"}}]


def slim(pipeline: list[Document]) -> list[Document]:
    """Leave out of a pipeline the fields that can exceed the size of a reply."""
    return [*pipeline, {"$project": dict.fromkeys((*_SLIM, *_TRANSACTION), 1)}]


def transaction_of(change: Document) -> tuple[Any, Any] | None:
    """The identity of the transaction that a change belongs to, if any."""
    return (change["lsid"]["id"], change["txnNumber"]) if "lsid" in change else None


def cluster_time(change: Document) -> Timestamp:
    """The time of commit, on the deployment's own clock."""
    time: Timestamp = change["clusterTime"]
    return time


def time_of_token(token: Document) -> Timestamp:
    """The time of commit of the latest change before a resume token."""
    # Hexadecimal: a byte that says "timestamp", four of its seconds, four of its count.
    data: str = token["_data"]
    return Timestamp(int(data[2:10], 16), int(data[10:18], 16))


def mark_of(change: Document) -> str:
    """A mark that identifies a change among those of its time, without IDs in clear."""
    named = {name: change.get(name) for name in ("operationType", "ns", "documentKey")}
    return hashlib.sha256(bson.encode(named)).hexdigest()


def decode_change(change: Document, names: Names, hooks: Hooks) -> ChangeEvent | None:
    """Decode a change; None if subscribers need not know.

    A document of another tool that does not have this package's form is skipped with a
    warning: it must not stop the stream.
    """
    if change["operationType"] in _DROPS:
        return _decode_drop(change, names)
    collection = change["ns"]["coll"]
    try:
        id_ = change["documentKey"]["_id"]
        if collection == names.events:
            found = decode_appended(id_, change.get("fullDocument"), hooks)
            if found and change["operationType"] == _OF_REDACTIONS:
                at = committed_at(change)
                return Redacted(found.key, found.document, at, hooks)
            return found
        if collection == names.sessions:
            return _decode_session_change(id_, change, hooks)
        return _decode_state_change(id_, change, hooks)
    except Exception as error:  # noqa: BLE001  whose text may quote what is stored
        logger.warning(
            "A change of the collection %r was skipped: it does not have this"
            " package's form (%s). Does another tool write there?",
            collection,
            type(error).__name__,
        )
        return None


def decode_turn_progress(document: Document, hooks: Hooks) -> TurnProgress | None:
    """Decode a document of running turns, if this package wrote it."""
    key = session_key(document.get("_id"), (*SessionKey._fields, "epoch", "n"))
    is_ours = all(isinstance(document.get(it), of) for it, of in _OF_TURNS.items())
    return TurnProgress(key, document, hooks) if key and is_ours else None


def decode_appended(
    id_: Any, document: Document | None, hooks: Hooks
) -> Appended | None:
    """Decode a document of the events collection, if this package wrote it."""
    key = session_key(id_, (*SessionKey._fields, "revision"))
    if key is None or not document or not isinstance(id_["revision"], int):
        return None  # too large for the stream, and deleted before it was read
    if not isinstance(document.get("event"), dict):
        return None
    return Appended(key, document, hooks)


def readable_change(record: ChangeRecord | TurnProgress) -> Change | None:
    """The change that subscribers receive, without its content if that is unreadable.

    One change must not end a stream, and the subscribers of a session count its
    revisions. Shared state that cannot be read is left out: None.
    """
    try:
        return record.change()
    except StorageError as error:
        logger.warning("Subscribers do not receive the content of a change. %s", error)
    if isinstance(record, Appended):
        event = record.document.get("event")
        stored = event.get("timestamp") if isinstance(event, dict) else None
        time = float(stored) if isinstance(stored, int | float) else 0.0
        revision = record.document["_id"]["revision"]
        return Change(kind="appended", **record.key.id, revision=revision, time=time)
    if isinstance(record, Created):
        revision, time = record.document["revision"], record.document["create_time"]
        return Change(kind="created", **record.key.id, revision=revision, time=time)
    return None


def decode_trimmed(
    document: Document, shared: list[Document], hooks: Hooks
) -> Trimmed | None:
    """Decode the document before a log, if the log was trimmed."""
    key = session_key(document["_id"], (*SessionKey._fields, "revision"))
    if key is None or not documents.log_begins(document):
        return None
    return Trimmed(key, document, shared, hooks)


def _decode_session_change(
    id_: Any, change: Document, hooks: Hooks
) -> ChangeEvent | None:
    kind, document = change["operationType"], change.get("fullDocument") or {}
    if kind == "insert":
        if key := session_key(id_, (*SessionKey._fields, queries.REMOVED)):
            return TombstoneRemoved(key)
        if key := session_key(id_, (*SessionKey._fields, queries.UPDATED)):
            waiting = {it: document[it] for it in WAITING_FIELDS if it in document}
            details, time = Details.of(document), committed_at(change)
            return Updated(key, details, time, waiting, hooks)
    key = session_key(id_, SessionKey._fields)
    if key is None or kind == "delete":
        return key and Deleted(key, committed_at(change))
    is_ours = all(isinstance(document.get(name), of) for name, of in _OURS.items())
    return Created(key, document, hooks) if is_ours else None


def _decode_state_change(id_: Any, change: Document, hooks: Hooks) -> StateSet | None:
    if isinstance(id_, str):
        prefix, app_name, user_id = State.APP_PREFIX, id_, None
    elif (owner := _key_parts(id_, SessionKey._fields[:2])) is not None:
        prefix, (app_name, user_id) = State.USER_PREFIX, owner
    else:
        return None
    delta = {prefix + key: value for key, value in _written_delta(change).items()}
    if not delta and transaction_of(change) is None:
        return None  # in a transaction it may undo what an append of it has set
    return StateSet(app_name, user_id, delta, committed_at(change), hooks)


def _decode_waiting(document: Document, hooks: Hooks) -> tuple[WaitingCall, ...] | None:
    return decode_waiting(document, hooks).named if WAITING in document else None


def session_key(id_: Any, fields: tuple[str, ...]) -> SessionKey | None:
    """The key in an ``_id`` with these fields; None if it has others."""
    texts = _key_parts(id_, fields)
    return None if texts is None else SessionKey(*texts)


def _key_parts(id_: Any, fields: tuple[str, ...]) -> tuple[str, ...] | None:
    """The key's parts in an ``_id`` with these fields; None if it has others."""
    if not isinstance(id_, dict) or tuple(id_) != fields:
        return None
    texts = tuple(id_[name] for name in fields if name in SessionKey._fields)
    return texts if all(isinstance(each, str) for each in texts) else None


def committed_at(change: Document) -> float:
    """The time of commit, in seconds since 1970."""
    wall_time: datetime | None = change.get("wallTime")  # MongoDB 6.0 and later
    if wall_time is not None:
        return wall_time.replace(tzinfo=UTC).timestamp()
    return float(cluster_time(change).time)


def _decode_drop(change: Document, names: Names) -> Dropped | None:
    kind, collection = change["operationType"], change.get("ns", {}).get("coll")
    target = change.get("to", {}).get("coll")  # replaced by the renamed one
    if kind in {"dropDatabase", "invalidate"}:
        return Dropped("The database was dropped")
    if target in names:
        return Dropped(f"The collection {target!r} was replaced")
    if collection in names:
        done = "dropped" if kind == "drop" else "renamed"
        return Dropped(f"The collection {collection!r} was {done}")
    return None


def needs_document(change: Document, names: Names) -> bool:
    """Whether a change lacks content, so that its document has to be read.

    It does if it was too large for the stream, or if another tool has changed a part of
    a state value in place.
    """
    if "fullDocument" in change or change["operationType"] in {*_DROPS, "delete"}:
        return False
    if change["ns"]["coll"] not in names:
        return False
    description = change.get("updateDescription")
    return description is None or _is_in_place(description)


def _is_in_place(description: Document) -> bool:
    paths = [*description["updatedFields"], *description["removedFields"]]
    return bool(description.get("truncatedArrays")) or any(
        path.startswith("state.") and path.count(".") != 1 for path in paths
    )


def _written_delta(change: Document) -> Document:
    """The delta of a write to a state document; all of its state if unknown."""
    if "fullDocument" in change:
        state = (change["fullDocument"] or {}).get("state")
        return bson_values.decode_fields(state) if isinstance(state, dict) else {}
    description = change["updateDescription"]
    whole = description["updatedFields"].get("state")
    if isinstance(whole, dict):  # so many keys were set at once
        return bson_values.decode_fields(whole)
    paths = {
        path.removeprefix("state."): value
        for path, value in description["updatedFields"].items()
        if path.startswith("state.")
    }
    removed = {
        bson_values.unescape_key(path.removeprefix("state.")): None
        for path in description["removedFields"]
        if path.startswith("state.")
    }
    return {**bson_values.decode_fields(paths), **removed}
