"""Change decoder: change stream documents to typed changes.

A change stream reports single documents. Of an append only the event's insert matters,
since it holds the delta as well; of a session its insert, its delete, the announcement
of new details, and the replacement of the document that reserved its place during an
import; of app and user state every write.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import bson
from bson.timestamp import Timestamp
from google.adk.sessions.state import State

from mongo_session_service.changes.change import ChangeKind
from mongo_session_service.changes.record import ChangeRecord, updated_record
from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.errors import HistoryLostError
from mongo_session_service.model.records import (
    ANNOUNCES_DETAILS,
    ANNOUNCES_REMOVAL,
    SHARD_KEY,
    Document,
    SessionKey,
)

logger = logging.getLogger(__name__)

_DROPS: Final = ("drop", "rename", "dropDatabase", "invalidate")
_WRITES: Final = ("insert", "update", "replace")
_OF_SESSIONS: Final = ("insert", "replace", "delete")
_OF_REDACTIONS: Final = "replace"
"""The operation of a redaction on an event, and of nothing else."""
_SLIM: Final = ("operationType", "ns", "documentKey", "clusterTime", "wallTime")
_OF_TURNS: Final = {"status": str, "since": datetime, "host": str, "time": datetime}
_TRANSACTION: Final = ("lsid", "txnNumber")


class WatchedCollections(NamedTuple):
    """The names of the collections that are watched."""

    sessions: str
    events: str
    app_states: str
    user_states: str

    @classmethod
    def of_connection(cls, connection: Any) -> WatchedCollections:
        """The names of a connection's collections."""
        return cls(*(getattr(connection, kind).name for kind in cls._fields))


@dataclass(frozen=True, slots=True)
class TombstoneRemoved:
    """Marker: this transaction's next delete removes a tombstone, not a session."""

    key: SessionKey


RESEALED: Final = "resealed"
"""The field of an app's or a user's state that counts how often it was re-sealed, by
which a re-seal is told from a write: no value has changed."""

ChangeEvent = ChangeRecord | TombstoneRemoved
"""Everything that a document of the change stream can mean."""


def pipeline(connection: Any, app_name: str | None = None) -> list[Document]:
    """Return the pipeline of a change stream, for one app or for all.

    It has only plain comparisons, which the server can evaluate on its oplog. Without
    the drops, the stream of a dropped database would end without an error.
    """
    names = WatchedCollections.of_connection(connection)
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
    """Return the pipeline of a change stream that has only what running turns say."""
    return [{"$match": {"ns.coll": collection, "operationType": "insert"}}]


def without_content(pipeline: list[Document]) -> list[Document]:
    """Drop the fields that can exceed the size of a reply from a pipeline's output."""
    return [*pipeline, {"$project": dict.fromkeys((*_SLIM, *_TRANSACTION), 1)}]


def transaction_of(change: Document) -> tuple[Any, Any] | None:
    """Identify the transaction that a change belongs to, if any."""
    return (change["lsid"]["id"], change["txnNumber"]) if "lsid" in change else None


def cluster_time(change: Document) -> Timestamp:
    """Return a change's time of commit, on the deployment's own clock."""
    time: Timestamp = change["clusterTime"]
    return time


def time_of_token(token: Document) -> Timestamp:
    """Return the time of commit of the latest change before a resume token."""
    # Hexadecimal: a byte that says "timestamp", four of its seconds, four of its count.
    data: str = token["_data"]
    return Timestamp(int(data[2:10], 16), int(data[10:18], 16))


def mark_of(change: Document) -> str:
    """Digest a change's identity: no IDs in clear, distinct among those of its time."""
    named = {name: change.get(name) for name in ("operationType", "ns", "documentKey")}
    return hashlib.sha256(bson.encode(named)).hexdigest()


def decode_change(
    change: Document, names: WatchedCollections, hooks: Hooks
) -> ChangeEvent | None:
    """Decode a change; None if subscribers need not know, an error after a drop.

    A document of another tool that does not have this package's form is skipped with a
    warning: it must not stop the stream.
    """
    if change["operationType"] in _DROPS:
        _check_drop(change, names)
        return None
    collection = change["ns"]["coll"]
    try:
        id_ = change["documentKey"]["_id"]
        if collection == names.events:
            found = decode_appended(id_, change.get("fullDocument"), hooks)
            if found and change["operationType"] == _OF_REDACTIONS:
                return replace(found, kind="redacted", time=committed_at(change))
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


def decode_turn_progress(document: Document, hooks: Hooks) -> ChangeRecord | None:
    """Decode a document of running turns, if this package wrote it."""
    key = documents.key_of(document.get("_id"), "epoch", "n")
    is_ours = all(isinstance(document.get(it), of) for it, of in _OF_TURNS.items())
    if key is None or not is_ours:
        return None
    kind: ChangeKind = "partial" if "event" in document else "turn"
    noted = document["time"].replace(tzinfo=UTC).timestamp()
    return ChangeRecord(kind, key, {"document": document}, noted, hooks)


def decode_appended(
    id_: Any, document: Document | None, hooks: Hooks
) -> ChangeRecord | None:
    """Decode a document of the events collection, if this package wrote it."""
    key = documents.key_of(id_, "revision")
    if key is None or not document or not isinstance(id_["revision"], int):
        return None  # too large for the stream, and deleted before it was read
    if not isinstance(document.get("event"), dict):
        return None
    return ChangeRecord("appended", key, {"document": document}, hooks=hooks)


def decode_trimmed(
    document: Document, shared: list[Document], hooks: Hooks
) -> ChangeRecord | None:
    """Decode the document that precedes a trimmed log; None for any other."""
    key = documents.key_of(document["_id"], "revision")
    if key is None or not documents.log_begins(document):
        return None
    content = {"document": document, "shared": shared}
    return ChangeRecord("snapshot", key, content, hooks=hooks)


def _decode_session_change(
    id_: Any, change: Document, hooks: Hooks
) -> ChangeEvent | None:
    kind, document = change["operationType"], change.get("fullDocument") or {}
    time = committed_at(change)
    if kind == "insert":
        if key := documents.key_of(id_, ANNOUNCES_REMOVAL):
            return TombstoneRemoved(key)
        if key := documents.key_of(id_, ANNOUNCES_DETAILS):
            return updated_record(key, document, time, hooks)
    key = documents.key_of(id_)
    if key is not None and kind == "delete":
        return ChangeRecord("deleted", key, {}, time, hooks)
    if key is None or "revision" not in document:
        return None  # a tombstone or a reservation
    documents.checked_key(document)
    return ChangeRecord("created", key, {"document": document}, time, hooks)


def _decode_state_change(
    id_: Any, change: Document, hooks: Hooks
) -> ChangeRecord | None:
    is_users = isinstance(id_, dict) and tuple(id_) == SHARD_KEY
    owner = tuple(id_.values()) if is_users else (id_,)
    if {*map(type, owner)} != {str}:
        return None
    prefix = State.USER_PREFIX if is_users else State.APP_PREFIX
    delta = {prefix + key: value for key, value in _written_delta(change).items()}
    if not delta and transaction_of(change) is None:
        return None  # in a transaction it may undo what an append of it has set
    return ChangeRecord("state", owner, {"delta": delta}, committed_at(change), hooks)


def committed_at(change: Document) -> float:
    """Return the time of commit, in seconds since 1970."""
    wall_time: datetime | None = change.get("wallTime")  # MongoDB 6.0 and later
    if wall_time is not None:
        return wall_time.replace(tzinfo=UTC).timestamp()
    return float(cluster_time(change).time)


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


def needs_document(change: Document, names: WatchedCollections) -> bool:
    """Tell whether a change lacks content, so that its document has to be read.

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
        path.startswith("state.") and path.count(".") != 1 for path in paths
    )


def _written_delta(change: Document) -> Document:
    """Return what a write has set in a state document; all of its state if unknown."""
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
