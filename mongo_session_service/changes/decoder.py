"""Change decoder: change stream documents to records, and these to typed changes.

A change stream reports single documents. Of an append only the event's insert matters,
since it holds the delta as well, and of a redaction the event's replacement; of a
session its insert, its delete, the announcements of new details and of deletes that are
of no session, and the replacement of the document that reserved its place during an
import; of app and user state every write.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, Final, Literal, NamedTuple

import bson
from bson.timestamp import Timestamp
from google.adk.sessions.state import State
from pydantic import ValidationError

from mongo_session_service.changes.change import Change, ChangeKind
from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.codec.record import (
    COPIED_BY,
    STATE_PATH,
    SessionRecord,
    decode_turn,
    is_placeholder,
    key_of,
    read_announcement,
)
from mongo_session_service.codec.waiting_calls import (
    WAITING,
    decode_waiting,
)
from mongo_session_service.errors import HistoryLostError, StorageError, quoted
from mongo_session_service.model.records import (
    SHARD_KEY,
    Document,
    SessionKey,
)
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.snapshots import NO_TIME
from mongo_session_service.storage.stream import Stream

logger = logging.getLogger(__name__)

_DROPS: Final = ("drop", "rename", "dropDatabase", "invalidate")
_WRITES: Final = ("insert", "update", "replace")
_OF_SESSIONS: Final = ("insert", "replace", "delete")
_OF_REDACTIONS: Final = "replace"
"""The operation of a redaction on an event, and of nothing else."""
_SLIM: Final = (
    *("operationType", "ns", "documentKey", "clusterTime", "wallTime"),
    *("lsid", "txnNumber"),
)
"""Fields of a change, without those that can exceed the size of a reply."""
_OF_TURNS: Final = {"status": str, "since": datetime, "host": str, "time": datetime}
_MAY_BE_SHARED: Final = re.compile(f":|{bson_values.WRAPPER}").search


class WatchedCollections(NamedTuple):
    """The names of the collections that are watched."""

    sessions: str
    events: str
    app_states: str
    user_states: str

    @classmethod
    def of_storage(cls, storage: Storage) -> WatchedCollections:
        return cls(*(f"{storage.prefix}{kind}" for kind in cls._fields))


@dataclass
class ChangeRecord:
    """A change as it is stored, from which its :class:`Change` is decoded."""

    kind: ChangeKind | Literal["tombstone"]
    """A ``tombstone`` is no change: the next delete of its transaction removes a
    tombstone and not a session."""
    owner: tuple[str, ...]
    """The app, the user or the session that it concerns."""
    content: Document
    """Of an event and of a session the ``document``, of an update what was announced;
    of shared state the ``delta``, keys prefixed by scope, empty if no value has
    changed; of a snapshot also the ``shared`` documents of its app and user."""
    time: float = 0.0
    """When it was committed, as far as the content has no time."""
    hooks: Hooks = field(default=NO_HOOKS, repr=False, compare=False)
    cluster_time: Timestamp = NO_TIME
    """When it was committed, on the deployment's clock; only of a change stream."""
    transaction: tuple[Any, Any] | None = None
    """The transaction that it was committed in, if any; only of a change stream."""

    @property
    def key(self) -> SessionKey:
        """Key of the session that changed; only in a change of a session."""
        return SessionKey(*self.owner)

    @property
    def session(self) -> SessionRecord:
        """The session that was created, or is shown; of one updated what is new."""
        document = self.content["document"]
        if self.kind == "updated":
            return SessionRecord.part(self.key, document)
        return SessionRecord.read(document)

    @property
    def event(self) -> EventRecord:
        """The event that was appended, or redacted."""
        return EventRecord(self.content["document"])

    @cached_property
    def size(self) -> int:
        """Bytes of its content, as MongoDB stores it."""
        content = self.content
        if self.kind == "state":
            content = {"delta": bson_values.encode_fields(content["delta"])}
        return len(bson.encode(content))

    @property
    def shared_delta(self) -> Document:
        """Delta of an appended event, if it may set shared state; else empty.

        Its keys are prefixed by scope. It is also empty if another tool wrote it;
        reading the event raises then.
        """
        actions = self.event.event.get("actions")
        delta = actions.get("state_delta") if isinstance(actions, dict) else None
        if not isinstance(delta, dict) or not any(map(_MAY_BE_SHARED, delta)):
            return {}
        try:
            delta = bson_values.decode_value(delta)
        except bson_values.UnreadableError:
            return {}
        return delta if isinstance(delta, dict) else {}

    @cached_property
    def readable_change(self) -> Change | None:
        """The change, decoded once, without its content if that is unreadable.

        One change must not end a stream, and the subscribers of a session count its
        revisions. Shared state that cannot be read is left out: None.
        """
        try:
            return self.change()
        except StorageError as error:
            message = "Subscribers do not receive the content of a change. %s"
            logger.warning(message, error)
        match self.kind:
            case "created":
                revision, time = self.session.revision, self.session.created
            case "appended":
                revision, time = self.event.revision, self.event.timestamp
            case _:
                return None
        return self._build_change({"revision": revision, "time": time})

    def change(self) -> Change:
        """Decode it; a StorageError if this release of ADK, or the hook, cannot."""
        fields = {"time": self.time, **self._decoded_fields()}
        try:
            return self._build_change(fields)
        except ValidationError:  # it may quote what is stored
            has_session = len(self.owner) == len(SessionKey._fields)
            of = f"session {quoted(self.owner[-1])}" if has_session else "the state"
            what = f"The change {self.kind!r} of {of}"
            raise bson_values.UnreadableError(what) from None

    def _build_change(self, fields: Document) -> Change:
        owner: Document = dict(zip(SessionKey._fields, self.owner, strict=False))
        return Change(**{"kind": self.kind, **owner, **fields})

    def _decoded_fields(self) -> Document:
        hooks, document = self.hooks, self.content.get("document", {})
        fields: Document = {}
        if "event" in document:
            (event,) = documents.decode_events([document], hooks)
            fields = {"event": event, "time": event.timestamp}
        copied_by = document.get(COPIED_BY)
        if WAITING in document or self.kind == "updated":
            fields["waiting"] = decode_waiting(self.key, document, hooks).named
        match self.kind:
            case "appended":
                fields["revision"] = self.event.revision
                fields["state_delta"] = event.actions.state_delta
                fields["copied_by"] = copied_by
            case "redacted":
                return {"event": event, "copied_by": copied_by}
            case "created":
                session = self.session
                fields |= {"revision": session.revision, "time": session.created}
                fields["copied_by"] = copied_by
                fields["state_delta"] = session.own_state(hooks)
                fields |= session.place_as_results()
            case "snapshot":
                session = self.session
                shown = documents.show_session(session, self.content["shared"], hooks)
                fields = {"revision": session.revision, "time": session.updated}
                return {"state": shown.state, **fields}
            case "updated":
                fields |= self.session.details.as_results()
                fields |= self.session.place_as_results()
            case "state":
                owner = Owner(*self.owner)
                fields["state_delta"] = hooks.loaded_state(self.content["delta"], owner)
            case "partial" | "turn":
                epoch, number = document["_id"]["epoch"], document["_id"]["n"]
                fields["turn"] = decode_turn(self.key, epoch, document)
                fields["turn_position"] = number
        return fields


def pipeline(storage: Storage, app_name: str | None = None) -> list[Document]:
    """Return the pipeline of a change stream, for one app or for all.

    It has only plain comparisons, which the server can evaluate on its oplog. Without
    the drops, the stream of a dropped database would end without an error.
    """
    names = WatchedCollections.of_storage(storage)
    states = {"$in": [names.app_states, names.user_states]}
    writes: list[Document] = [
        {"ns.coll": names.events, "operationType": {"$in": ["insert", _OF_REDACTIONS]}},
        {"ns.coll": names.sessions, "operationType": {"$in": list(_OF_SESSIONS)}},
        {"ns.coll": states, "operationType": {"$in": list(_WRITES)}},
    ]
    if app_name is not None:
        named = [{"documentKey._id.app_name": app_name}, {"documentKey._id": app_name}]
        writes = [{**each, "$or": named} for each in writes]
    drops = {"operationType": {"$in": list(_DROPS)}}
    return [{"$match": {"$or": [*writes, drops]}}]


def partials_pipeline(collection: str) -> list[Document]:
    """Return the pipeline of a change stream of running turns' partials alone."""
    return [{"$match": {"ns.coll": collection, "operationType": "insert"}}]


def follow(
    storage: Storage, pipeline: list[Document], start: Timestamp | Document
) -> Stream:
    """Follow changes from a time or resume token on; a large one is read afterwards."""
    names = WatchedCollections.of_storage(storage)
    return Stream(
        storage,
        pipeline,
        start,
        slim=[*pipeline, {"$project": dict.fromkeys(_SLIM, 1)}],
        needs_document=partial(needs_document, names),
    )


def time_of_token(token: Document) -> Timestamp:
    """Return the time of commit of the latest change before a resume token."""
    # Hexadecimal: the byte for "timestamp", four of its seconds, four of its count.
    data: str = token["_data"]
    return Timestamp(int(data[2:10], 16), int(data[10:18], 16))


def mark_of(change: Document) -> str:
    """Digest a change's identity: no IDs in clear, distinct among those of its time."""
    named = {name: change.get(name) for name in ("operationType", "ns", "documentKey")}
    return hashlib.sha256(bson.encode(named)).hexdigest()


def decode_change(
    change: Document, names: WatchedCollections, hooks: Hooks
) -> ChangeRecord | None:
    """Decode a change; None if subscribers need not know, an error after a drop.

    A document of another tool that does not have this package's form is skipped with a
    warning: it must not stop the stream.
    """
    if change["operationType"] in _DROPS:
        _check_drop(change, names)
        return None
    collection = change["ns"]["coll"]
    try:
        record = _decode_document(change, names, hooks)
    except Exception as error:  # noqa: BLE001  whose text may quote what is stored
        logger.warning(
            "A change of the collection %r was skipped: it does not have this"
            " package's form (%s). Does another tool write there?",
            collection,
            type(error).__name__,
        )
        return None
    return _with_commit_time(record, change)


def decode_partial(change: Document, hooks: Hooks) -> ChangeRecord | None:
    """Decode a change of the partials collection, if this package wrote it."""
    record = decode_turn_progress(change.get("fullDocument") or {}, hooks)
    return _with_commit_time(record, change)


def _with_commit_time(
    record: ChangeRecord | None, change: Document
) -> ChangeRecord | None:
    """Add to a record when and in which transaction it was committed."""
    if record is not None:
        record.time = record.time or committed_at(change)
        record.cluster_time = change["clusterTime"]
        if "lsid" in change:
            record.transaction = change["lsid"]["id"], change["txnNumber"]
    return record


def decode_turn_progress(document: Document, hooks: Hooks) -> ChangeRecord | None:
    """Decode a document of running turns, if this package wrote it."""
    key = key_of(document.get("_id"), "epoch", "n")
    is_ours = all(isinstance(document.get(it), of) for it, of in _OF_TURNS.items())
    if key is None or not is_ours:
        return None
    kind: ChangeKind = "partial" if "event" in document else "turn"
    noted = document["time"].replace(tzinfo=UTC).timestamp()
    return ChangeRecord(kind, key, {"document": document}, noted, hooks)


def updated_record(
    session: SessionRecord, hooks: Hooks, time: float = 0.0
) -> ChangeRecord:
    """Build an ``updated`` change: of title, labels, expiry or waiting calls."""
    content = {"document": session.announced}
    return ChangeRecord("updated", session.key, content, time, hooks)


def snapshot_record(
    session: SessionRecord, shared: list[Document], hooks: Hooks
) -> ChangeRecord:
    content = {"document": session.document, "shared": shared}
    return ChangeRecord("snapshot", session.key, content, hooks=hooks)


def decode_appended(document: Document | None, hooks: Hooks) -> ChangeRecord | None:
    """Decode a document of the events collection, if this package wrote it."""
    # Without one, it was too large for the stream, and deleted before it was read.
    event = EventRecord.read(document) if document else None
    if event is None:
        return None
    return ChangeRecord("appended", event.key, {"document": document}, hooks=hooks)


def decode_trimmed(
    document: Document, shared: list[Document], hooks: Hooks
) -> ChangeRecord | None:
    """Decode the document that precedes a trimmed log; None for any other."""
    session = SessionRecord.before_log(document)
    return None if session is None else snapshot_record(session, shared, hooks)


def state_record(
    owner: tuple[str, ...], values: Document, hooks: Hooks, time: float = 0.0
) -> ChangeRecord:
    """Build a change of an app's or a user's state, of values without their prefix."""
    prefix = State.APP_PREFIX if len(owner) == 1 else State.USER_PREFIX
    delta = {prefix + key: value for key, value in values.items()}
    return ChangeRecord("state", owner, {"delta": delta}, time, hooks)


def _decode_document(
    change: Document, names: WatchedCollections, hooks: Hooks
) -> ChangeRecord | None:
    collection, id_ = change["ns"]["coll"], change["documentKey"]["_id"]
    if collection == names.events:
        found = decode_appended(change.get("fullDocument"), hooks)
        is_redaction = change["operationType"] == _OF_REDACTIONS
        return replace(found, kind="redacted") if found and is_redaction else found
    if collection == names.sessions:
        return _decode_session_change(id_, change, hooks)
    return _decode_state_change(id_, change, hooks)


def _decode_session_change(
    id_: Any, change: Document, hooks: Hooks
) -> ChangeRecord | None:
    document = change.get("fullDocument") or {"_id": id_}
    if change["operationType"] == "delete":
        key = key_of(id_)
        return key and ChangeRecord("deleted", key, {}, hooks=hooks)
    match read_announcement(document):
        case SessionRecord() as session:
            return updated_record(session, hooks)
        case SessionKey() as key:
            return ChangeRecord("tombstone", key, {})
    if key_of(id_) is None or is_placeholder(document):
        return None
    session = SessionRecord.read(document)
    return ChangeRecord("created", session.key, {"document": document}, hooks=hooks)


def _decode_state_change(
    id_: Any, change: Document, hooks: Hooks
) -> ChangeRecord | None:
    is_users = isinstance(id_, dict) and tuple(id_) == SHARD_KEY
    owner = tuple(id_.values()) if is_users else (id_,)
    if {*map(type, owner)} != {str}:
        return None
    written = _written_values(change)
    if not written and "lsid" not in change:
        return None  # in a transaction it may undo what an append of it has set
    return state_record(owner, written, hooks)


def committed_at(change: Document) -> float:
    """The time of commit, in seconds since 1970."""
    wall_time: datetime | None = change.get("wallTime")  # MongoDB 6.0 and later
    if wall_time is not None:
        return wall_time.replace(tzinfo=UTC).timestamp()
    return float(change["clusterTime"].time)


def _check_drop(change: Document, names: WatchedCollections) -> None:
    kind, collection = change["operationType"], change.get("ns", {}).get("coll")
    target = change.get("to", {}).get("coll")  # replaced by the renamed one
    if kind in {"dropDatabase", "invalidate"}:
        what = "The database was dropped"
    elif target in names:
        what = f"The collection {target!r} was replaced"
    elif collection in names:
        done = "dropped" if kind == "drop" else "renamed"
        what = f"The collection {collection!r} was {done}"
    else:
        return
    raise HistoryLostError(f"{what}: there is nothing left to read.")


def needs_document(names: WatchedCollections, change: Document) -> bool:
    """Whether a change lacks content, so that its document has to be read.

    It does if it was too large for the stream, or if another tool has changed a part of
    a state value in place.
    """
    if "fullDocument" in change or change["operationType"] in {*_DROPS, "delete"}:
        return False
    if change["ns"]["coll"] not in names:
        return False
    description = change.get("updateDescription")
    return description is None or _is_change_in_place(description)


def _is_change_in_place(description: Document) -> bool:
    paths = [*description["updatedFields"], *description["removedFields"]]
    return bool(description.get("truncatedArrays")) or any(
        path.startswith(STATE_PATH) and path.count(".") != 1 for path in paths
    )


def _written_values(change: Document) -> Document:
    """Return what a write has set in a state document; all of its state if unknown."""
    if "fullDocument" in change:
        state = (change["fullDocument"] or {}).get("state")
        return bson_values.decode_fields(state) if isinstance(state, dict) else {}
    description = change["updateDescription"]
    removed = dict.fromkeys(description["removedFields"])
    written = {**description["updatedFields"], **removed}
    if isinstance(written.get("state"), dict):  # so many keys were set at once
        return bson_values.decode_fields(written["state"])
    paths = [path for path in written if path.startswith(STATE_PATH)]
    fields = {path.removeprefix(STATE_PATH): written[path] for path in paths}
    return bson_values.decode_fields(fields)
