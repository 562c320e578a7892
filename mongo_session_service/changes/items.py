"""What a change stream says, in this package's words.

A change stream tells of single documents. Of an append only the event's insert is of
interest, since it holds the delta as well; of a session its insert and its delete; of
app and user state every write.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bson.timestamp import Timestamp
from google.adk.sessions.state import State

from mongo_session_service.codec import decode_event, decode_state
from mongo_session_service.records import SessionKey
from mongo_session_service.values import decode_value, unescape_key

from .change import Change

Document = dict[str, Any]

_ENDINGS: Final = ("drop", "rename", "dropDatabase", "invalidate")
_WRITES: Final = ("insert", "update", "replace")
_SLIM: Final = ("operationType", "ns", "documentKey", "clusterTime", "wallTime")
_TRANSACTION: Final = ("lsid", "txnNumber")


@dataclass(frozen=True, slots=True)
class Names:
    """What the collections are called that are looked at."""

    sessions: str
    events: str
    app_states: str
    user_states: str

    @classmethod
    def of(cls, connection: Any) -> Names:
        """As a connection has them."""
        return cls(
            sessions=connection.sessions.name,
            events=connection.events.name,
            app_states=connection.app_states.name,
            user_states=connection.user_states.name,
        )

    @property
    def all(self) -> tuple[str, ...]:
        """Every one of them."""
        return (self.sessions, self.events, self.app_states, self.user_states)


@dataclass(frozen=True, slots=True)
class Appended:
    """An event was appended."""

    key: SessionKey
    document: Document

    def change(self) -> Change:
        """The change subscribers get.

        Raises:
            StorageError: the event is not one that this release of ADK can read.
        """
        event = decode_event(self.document)
        return Change(
            kind="appended",
            **self.key.id,
            revision=self.document["_id"]["revision"],
            event=event,
            state_delta=event.actions.state_delta,
            time=event.timestamp,
        )

    def delta(self) -> Document:
        """What the event set in state, keys prefixed by scope."""
        actions = self.document["event"].get("actions", {})
        delta: Document = decode_value(actions.get("state_delta", {}))
        return delta


@dataclass(frozen=True, slots=True)
class Created:
    """A session was created."""

    key: SessionKey
    document: Document

    def change(self) -> Change:
        """The change subscribers get: of its initial state, the session's own."""
        return Change(
            kind="created",
            **self.key.id,
            revision=self.document["revision"],
            state_delta=decode_state(self.document["state"]),
            time=self.document["create_time"],
        )


@dataclass(frozen=True, slots=True)
class Deleted:
    """A session was deleted."""

    key: SessionKey
    time: float

    def change(self) -> Change:
        """The change subscribers get."""
        return Change(kind="deleted", **self.key.id, time=self.time)


@dataclass(frozen=True, slots=True)
class StateSet:
    """State that sessions share was set: an app's, or a user's."""

    app_name: str
    user_id: str | None
    delta: Document
    """Keys prefixed by scope; empty if every key it set had that value before."""
    time: float

    def change(self, delta: Document | None = None) -> Change:
        """The change subscribers get, or those who know a part of it already."""
        return Change(
            kind="state",
            app_name=self.app_name,
            user_id=self.user_id,
            state_delta=self.delta if delta is None else delta,
            time=self.time,
        )


@dataclass(frozen=True, slots=True)
class Dropped:
    """A collection or the database is gone, and all that was in it."""

    what: str


@dataclass(frozen=True, slots=True)
class Removed:
    """What the same transaction deletes next was no session any more."""

    key: SessionKey


Happening = Appended | Created | Deleted | StateSet
"""What someone may want to be told."""

Item = Happening | Dropped | Removed


def pipeline(names: Names, app_name: str | None = None) -> list[Document]:
    """What a change stream has to let through, for one app or for all.

    The server is given plain comparisons of the kind it can do on its log; without
    the endings, the stream of a dropped database would end and tell nobody.
    """
    writes: list[Document] = [
        {"ns.coll": names.events, "operationType": "insert"},
        {
            "ns.coll": names.sessions,
            "operationType": {"$in": ["insert", "delete"]},
        },
        {
            "ns.coll": {"$in": [names.app_states, names.user_states]},
            "operationType": {"$in": list(_WRITES)},
        },
    ]
    if app_name is not None:
        of_app = {"documentKey._id.app_name": app_name}
        writes = [
            {**writes[0], **of_app},
            {**writes[1], **of_app},
            {
                **writes[2],
                "$or": [of_app, {"documentKey._id": app_name}],
            },
        ]
    endings = {"operationType": {"$in": list(_ENDINGS)}}
    return [{"$match": {"$or": [*writes, endings]}}]


def slim(pipeline: list[Document]) -> list[Document]:
    """The same, without the parts that can get larger than a reply may be."""
    return [*pipeline, {"$project": dict.fromkeys((*_SLIM, *_TRANSACTION), 1)}]


def transaction_of(change: Document) -> tuple[Any, Any] | None:
    """What tells the changes of one transaction from those of others."""
    if "txnNumber" not in change:
        return None
    return change["lsid"]["id"], change["txnNumber"]


def cluster_time(change: Document) -> Timestamp:
    """When it was committed, on the deployment's own clock."""
    time: Timestamp = change["clusterTime"]
    return time


def interpret(change: Document, names: Names) -> Item | None:
    """What a change means; None if nothing that concerns anyone."""
    kind = change["operationType"]
    if kind in _ENDINGS:
        return _ending(change, names)
    collection, id_ = change["ns"]["coll"], change["documentKey"]["_id"]
    if collection == names.events:
        document = change.get("fullDocument")
        if not document:
            return None  # too large to be told, and deleted before it could be read
        return Appended(
            SessionKey(id_["app_name"], id_["user_id"], id_["session_id"]), document
        )
    if collection == names.sessions:
        return _of_session(change, committed_at(change))
    prefix = State.APP_PREFIX if isinstance(id_, str) else State.USER_PREFIX
    delta = {prefix + key: value for key, value in _delta(change).items()}
    app_name, user_id = (
        (id_, None) if isinstance(id_, str) else (id_["app_name"], id_["user_id"])
    )
    return StateSet(app_name, user_id, delta, committed_at(change))


def _of_session(change: Document, at: float) -> Item | None:
    kind, id_ = change["operationType"], change["documentKey"]["_id"]
    key = SessionKey(id_["app_name"], id_["user_id"], id_["session_id"])
    if "removed" in id_:
        return Removed(key) if kind == "insert" else None
    if kind == "delete":
        return Deleted(key, at)
    document = change.get("fullDocument")
    return Created(key, document) if document and "revision" in document else None


def committed_at(change: Document) -> float:
    """When it was committed, in seconds since 1970."""
    wall_time: datetime | None = change.get("wallTime")  # MongoDB 6.0 and later
    if wall_time is not None:
        return wall_time.replace(tzinfo=UTC).timestamp()
    return float(cluster_time(change).time)


def _ending(change: Document, names: Names) -> Dropped | None:
    kind, collection = change["operationType"], change.get("ns", {}).get("coll")
    if kind in {"dropDatabase", "invalidate"}:
        return Dropped("The database was dropped")
    if collection in names.all:
        done = "dropped" if kind == "drop" else "renamed"
        return Dropped(f"The collection {collection!r} was {done}")
    return None


def needs_document(change: Document, names: Names) -> bool:
    """Whether a change says too little, and its document has to be read.

    So it is when the change was too large to be told whole, and when somebody else's
    tool has changed a part of a state value in place.
    """
    if "fullDocument" in change or change["operationType"] in {*_ENDINGS, "delete"}:
        return False
    if change["ns"]["coll"] not in names.all:
        return False
    description = change.get("updateDescription")
    return description is None or _is_in_place(description)


def _is_in_place(description: Document) -> bool:
    paths = [*description["updatedFields"], *description["removedFields"]]
    return bool(description.get("truncatedArrays")) or any(
        path.startswith("state") and path.count(".") != 1 for path in paths
    )


def _delta(change: Document) -> Document:
    """What a write set in a state document: all it holds, if that cannot be told."""
    if "fullDocument" in change:
        document = change["fullDocument"]
        return decode_state(document["state"]) if document else {}
    description = change["updateDescription"]
    paths = {
        path.removeprefix("state."): value
        for path, value in description["updatedFields"].items()
        if path.startswith("state.")
    }
    removed = {
        unescape_key(path.removeprefix("state.")): None
        for path in description["removedFields"]
        if path.startswith("state.")
    }
    return {**decode_state(paths), **removed}
