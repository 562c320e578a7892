"""Session record: a stored session, which other rooms read and change by its fields.

:meth:`SessionRecord.read` takes a document of the sessions collection apart, and
:meth:`SessionRecord.change` puts an update of one together. A record holds the document
as it was read; each field is decoded when it is asked for, so that a long list pays for
what it shows. A part of a document makes a record as well, which has what was read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from mongo_session_service.codec import bson_values
from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.waiting_calls import (
    WAITING_FIELDS,
    WaitingCalls,
    decode_waiting,
)
from mongo_session_service.errors import SchemaVersionError, StorageError, quoted
from mongo_session_service.model import metadata
from mongo_session_service.model.metadata import (
    CONVERSATION,
    DETAILS,
    StoredDetails,
)
from mongo_session_service.model.records import (
    Document,
    FamilyKey,
    Marker,
    SessionKey,
)
from mongo_session_service.model.results import SessionSummary, TurnInfo

logger = logging.getLogger(__name__)

INITIAL: Final = "initial_state"
"""Where a session keeps the state it began with."""

LOG_BEGINS: Final = "log_begins"
"""Where a session that was trimmed keeps the revision after which its log begins.

Its initial state, as of then, is in the document before the log, under the same
revision. Events up to it may still be there; they count as removed.
"""

TRIMMING: Final = "trimming"
"""Where it keeps the revision after which such events may be there, if any may."""

REDACTIONS: Final = "redactions"
"""Where a session counts how often events of it were redacted."""

FORKED_FROM: Final = "forked_from"
"""Where a fork names the session it was made of, and what that one was made of.

Each has a ``session_id``, its ``create_time``, and the last ``revision`` of it that the
fork has as well; and ``repeats``, if the fork's next event repeats the one after that,
of which a message was asked again. The nearest is first.
"""

FAMILY: Final = "family"
"""Where a version of an edited message names its family, which has all else of it."""

COPIED_BY: Final = "copied_by"
"""Where an event and a session have ``fork`` or ``import``, if that has stored them."""

NEEDS: Final = "needs"
"""Where a session, and each of its events, lists what a release must know to touch it.

Whoever gives a session a need writes it into the events that are stored from then on,
since readers of a change stream see no session. Most have none, and no such field.
"""

EVENT_TIME: Final = "event_time"
"""Where a session keeps the time of its last event; ``update_time`` is the write's.

What has no such field has both in ``update_time``.
"""

HEAD: Final = ("revision", "create_time", "update_time", EVENT_TIME, NEEDS)
"""What every record is read with, whatever else."""

STATE_PATH: Final = "state."
"""What the path of a key of state begins with."""

STATES: Final = ("state", INITIAL)
"""What a record is read without where no state is needed: the rest of it is short."""

ANNOUNCED: Final = (*DETAILS, *WAITING_FIELDS, "create_time", FAMILY, "hidden")
"""What subscribers receive whenever one of these fields is changed."""

_UPDATED: Final = "updated"
"""Extra field of an announcement's ``_id``: the session is as it has it, from now on.
"""

_REMOVED: Final = "removed"
"""Extra field of an announcement's ``_id``: what is deleted next was no session."""

LISTED: Final = (*HEAD, "state", "title", "ttl", "expire_time", FAMILY)
"""What a long list of sessions is read with: all that ADK's sessions show."""

Origin: TypeAlias = tuple[str, float]
"""A session that another is a fork of: its id and its creation time."""

Item = TypeVar("Item")
Value = TypeVar("Value")

_NUMBER: Final = (int, float)
_KEY: Final = SessionKey._fields


def key_of(id_: Any, *more: str) -> SessionKey | None:
    """Read a session's key from an ``_id`` that has ``more`` fields behind it.

    None if it has others, as a document of another tool may.
    """
    if isinstance(id_, dict) and tuple(id_) == _KEY + more:
        app_name, user_id, session_id, *_ = id_.values()
        if type(app_name) is type(user_id) is type(session_id) is str:
            return SessionKey(app_name, user_id, session_id)
    return None


class UnknownNeedError(UnreadableError, SchemaVersionError):
    """A session needs what this release does not know; lists leave it out."""

    def __init__(self, message: str) -> None:
        StorageError.__init__(self, message)


def check_needs(document: Document) -> None:
    """Refuse a session, or an event of one, that needs what this release lacks.

    That is whatever it needs; None and an empty list are no needs. For writes the
    server asks by :data:`queries.NEEDS_KNOWN`.
    """
    if NEEDS in document and (unknown := unknown_needs(document)):
        raise UnknownNeedError(
            f"Session {quoted(str(document['_id']['session_id']))} needs"
            f" {', '.join(map(quoted, unknown))}, which this release does not know."
            " Upgrade mongo-session-service."
        )


def unknown_needs(document: Document) -> list[str]:
    """List what a session needs and this release does not know, which knows none."""
    needs = document.get(NEEDS)
    named = needs if isinstance(needs, list) else [needs]
    return [] if needs is None else [str(each) for each in named]


def state_fields(document: Document | None) -> Any:
    """The state of an app or a user, as it is stored; empty if none ever was."""
    return document.get("state") if document else {}


def decode_fields_of(owner: Owner, fields: Any) -> dict[str, Any]:
    """Decode the fields of a state; an error names whose it is."""
    try:
        return bson_values.decode_fields(fields)
    except (AttributeError, UnreadableError):
        raise UnreadableError(f"The state of {owner}") from None


def decode_turn(key: SessionKey, epoch: int, fields: Document) -> TurnInfo:
    """The turn of a session with these fields, of those that ``encode_turn`` makes."""
    return TurnInfo(
        *key,
        epoch=epoch,
        status=fields["status"],
        since=fields["since"].replace(tzinfo=UTC),
        host=fields["host"],
        reason=fields.get("reason"),
        error_type=fields.get("error"),
        session_create_time=fields.get("create_time"),
    )


class _Stored(Generic[Value]):
    """A field of a record that is fetched when it is asked for, and its default."""

    def __init__(self, name: str, default: Value) -> None:
        self.name, self.default = name, default

    def __get__(self, record: SessionRecord, _: object) -> Value:
        value: Value = record.document.get(self.name, self.default)
        return value


class SessionRecord:
    """A stored session, or the part of it that was read; frozen."""

    __slots__ = ("created", "document", "key", "revision", "updated")

    created: float
    revision: int
    updated: float
    redactions = _Stored[int](REDACTIONS, 0)
    """How often events of it were redacted."""
    expire_time = _Stored[object]("expire_time", None)
    turn = _Stored[Document]("turn", {})
    """The turn that it has, or had last; empty if it never had one."""
    forked_from = _Stored[Sequence[Document]](FORKED_FROM, ())
    initial = _Stored[Document](INITIAL, {})
    """The state that its log begins with, as it is stored; empty if unknown."""

    def __init__(self, key: SessionKey, document: Document) -> None:
        """Of a document that is known to be a session's; others go to :meth:`read`."""
        self.key, self.document = key, document
        # What every list asks for.
        self.revision = document["revision"]
        self.created = document["create_time"]
        written: float = document["update_time"]
        self.updated = document.get(EVENT_TIME, written)

    @classmethod
    def part(cls, key: SessionKey, document: Document) -> SessionRecord:
        """Of some fields of a session, as an announcement has; it has no others."""
        record = cls.__new__(cls)
        record.key, record.document = key, document
        record.created = document.get("create_time", 0.0)
        return record

    @classmethod
    def read(cls, document: Document) -> SessionRecord:
        """Take a document apart; one that is no session's is refused.

        Raises:
            UnknownNeedError: a later release has stored it.
            UnreadableError: another tool has damaged it.
        """
        if NEEDS in document:
            check_needs(document)
        try:
            key = key_of(document["_id"])
            record = cls(key, document) if key else None
        except KeyError:
            record = None
        # Spelt out, since a list asks it of each session.
        if record is None or not (
            isinstance(record.revision, int)
            and isinstance(record.created, _NUMBER)
            and isinstance(record.updated, _NUMBER)
            and isinstance(document.get(LOG_BEGINS, 0), int)
        ):
            raise _unreadable(document["_id"])
        return record

    @classmethod
    def read_removed(cls, document: Document) -> SessionRecord | None:
        """Of what is to be removed: damaged or not, but not a later release's.

        None for a tombstone, and for a reservation.
        """
        check_needs(document)
        if is_placeholder(document):
            return None
        record = cls.part(SessionKey(**document["_id"]), document)
        revision = document["revision"]
        record.revision = revision if isinstance(revision, int) else 0
        return record

    @classmethod
    def before_log(cls, document: Document) -> SessionRecord | None:
        """Of the document before a trimmed log: what the session was then."""
        key, begins = key_of(document["_id"], "revision"), log_begins(document)
        if key is None or not begins:
            return None
        then = {"revision": begins, "state": document.get(INITIAL)}
        then["update_time"] = document.get("create_time")
        return next(cls.read_all([{**document, **then, "_id": key.id}]), None)

    @classmethod
    def find(cls, documents: Iterable[Document], now: float) -> SessionRecord | None:
        """Read the first of what was found; None if that is no session, or is over."""
        for document in documents:
            check_needs(document)
            is_there = not is_placeholder(document) and not _has_expired(document, now)
            return cls.read(document) if is_there else None
        return None

    @classmethod
    def read_all(cls, documents: Iterable[Document]) -> Iterator[SessionRecord]:
        """Read a list; leave out what cannot be read, with a warning."""
        return readable(cls.read, documents)

    # What it has.

    @property
    def begins(self) -> int:
        """The revision after which its log begins; 0 if it is whole."""
        return log_begins(self.document)

    @property
    def written(self) -> float | None:
        """When it was last appended to; None if nobody has kept that."""
        return self.document["update_time"] if EVENT_TIME in self.document else None

    @property
    def event_count(self) -> int:
        return self.revision - self.begins

    @property
    def most_stored(self) -> int:
        """How many events of it are stored at most; an unfinished trim left some."""
        removed: int = self.document.get(TRIMMING, self.begins)
        return self.revision - removed

    def is_visible(self, now: float) -> bool:
        return not _has_expired(self.document, now)

    @property
    def marker(self) -> Marker:
        document = self.document
        expires = document.get("expire_time") is not None
        return Marker(self.revision, self.created, document.get("ttl"), expires)

    @property
    def details(self) -> StoredDetails:
        """Its details; one that another tool has damaged is refused."""
        known = {name: it for name, it in self.document.items() if name in DETAILS}
        try:
            if (labels := known.get("labels")) is not None:
                known["labels"] = {each["name"]: each["value"] for each in labels}
            return StoredDetails(**known)
        except (AttributeError, LookupError, TypeError, ValueError):
            # The original may quote what is stored.
            raise _unreadable(self.key.id) from None

    def waiting(self, hooks: Hooks) -> WaitingCalls:
        """The calls that wait for people."""
        return decode_waiting(self.key, self.document, hooks)

    def turn_info(self, *, is_free: bool) -> TurnInfo | None:
        """The turn that it has, abandoned if it is free, or had last, if any."""
        turn = self.turn
        fields = turn.get("ended")
        if "holder" in turn:
            stop = turn.get("stop")
            running = "running" if stop is None else "stopping"
            fields = {
                "status": "abandoned" if is_free else running,
                "since": turn["since"],
                "host": turn["holder"]["host"],
                **(stop or {}),
            }
        if fields is None:
            return None
        fields = {**fields, "create_time": self.created}
        return decode_turn(self.key, turn["epoch"], fields)

    # Where it comes from.

    @property
    def origin(self) -> Origin:
        """Itself, as its forks name it."""
        return self.key.session_id, self.created

    @property
    def family(self) -> str | None:
        """The id of its family; None without one, or if another tool damaged it."""
        family = self.document.get(FAMILY)
        return family if isinstance(family, str) else None

    @property
    def family_key(self) -> FamilyKey | None:
        return None if self.family is None else FamilyKey(*self.key[:2], self.family)

    @property
    def is_hidden(self) -> bool:
        """Whether its family shows another one; known of one that was joined to it."""
        return "hidden" in self.document

    def place_as_results(self) -> dict[str, Any]:
        """Return its family's id, and whether that shows it, or None each."""
        return {"root_id": self.family, "is_shown": self.family and not self.is_hidden}

    @property
    def has_conversation(self) -> bool:
        """Whether its title, which may be removed, or others of these were ever set."""
        return any(name in self.document for name in (*CONVERSATION, FAMILY))

    @property
    def conversation(self) -> Document:
        """The details that are its family's, if it has one; None for none."""
        return {name: self.document.get(name) for name in CONVERSATION}

    @property
    def origins(self) -> dict[Origin, float]:
        """The sessions that it is a fork of, and how many events it has of each."""
        try:
            return {
                (it["session_id"], it["create_time"]): it["revision"]
                for it in self.forked_from
            }
        except (KeyError, TypeError):  # another tool has damaged it
            return {}

    @property
    def held(self) -> dict[Origin, float]:
        """The same, with one event more of whose next one it repeats."""
        pairs = zip(self.origins.items(), self.forked_from, strict=False)
        return {origin: held + ("repeats" in each) for (origin, held), each in pairs}

    # Its state.

    @property
    def state(self) -> Document:
        """Its own state, as it is stored."""
        state = self.document.get("state")
        if not isinstance(state, dict):
            raise _unreadable(self.key.id)
        return state

    def own_state(self, hooks: Hooks) -> dict[str, Any]:
        """Its own state as it is shown: its title is the display name in it.

        With hooks that is left out, since titles are stored in clear.
        """
        state = self.document.get("state")
        if not (isinstance(state, dict) and bson_values.is_decoded(state)):
            state = decode_fields_of(Owner.of_session(self.key), state)
        if not hooks.is_missing:
            return hooks.loaded_state(state, Owner.of_session(self.key))
        if "title" not in self.document:  # as most are in a long list
            return state
        return metadata.with_title(state, self.document["title"])

    def with_initial(self, apart: Iterable[Document]) -> SessionRecord:
        """The record with its initial state, which may be in the one before its log.

        That may be of an earlier session of its id.
        """
        if INITIAL in self.document:
            return self
        return self.replaced({INITIAL: initial_beside(self.document, apart)})

    def as_of(self, revision: int, updated: float, state: Document) -> SessionRecord:
        """An earlier version of it, without the title: that is today's, in no log."""
        earlier = {"revision": revision, EVENT_TIME: updated, "state": state}
        return self.replaced({**earlier, "title": None})

    def at(self, revision: int) -> SessionRecord:
        return self.replaced({"revision": revision})

    def trimmed(self, log: list[Document]) -> list[Document]:
        """Leave out the events that a trim is about to remove: they count as gone."""
        if not (begins := self.begins):
            return log
        return [each for each in log if each["_id"]["revision"] > begins]

    def replaced(self, fields: Mapping[str, Any]) -> SessionRecord:
        changed = {**self.document, **fields}
        left = {name: it for name, it in changed.items() if it is not None}
        return SessionRecord(self.key, left)

    def summary(
        self,
        hooks: Hooks,
        state: dict[str, Any] | None = None,
    ) -> SessionSummary:
        """Summarise it, with its state if that is known."""
        waiting, details = self.waiting(hooks), self.details
        return SessionSummary(
            id=self.key.session_id,
            app_name=self.key.app_name,
            user_id=self.key.user_id,
            state=state,
            revision=self.revision,
            log_begins=self.begins,
            create_time=self.created,
            last_update_time=self.updated,
            **details.as_results(),
            waiting=waiting.named,
            waiting_more=waiting.more,
            root_id=self.family,
            branches=self.document.get("versions", 1),
        )

    # How it is written.

    def expected(self, *names: str) -> Document:
        """The filter that finds it only if these fields are as they were read."""
        read = {name: self.document.get(name) for name in names}
        return {"_id": self.key.id, "create_time": self.created, **read}

    @property
    def announced(self) -> Document:
        """What its subscribers receive whenever one of these fields is changed."""
        kept = {name: self.document.get(name) for name in ANNOUNCED}
        return {name: it for name, it in kept.items() if it is not None}

    @property
    def announcement(self) -> Document:
        """The document that shows it to a change stream, which sees no update of it."""
        return {**self.announced, "_id": {**self.key.id, _UPDATED: True}}

    def change(
        self,
        fields: Mapping[str, Any] | None = None,
        *,
        waiting: Document | None = None,
        begins: int | None = None,
        is_redaction: bool = False,
    ) -> RecordUpdate:
        """Change it: details by name, what waits, where its log begins; None ends one.

        Where the log begins anew, the initial state is kept beside it from then on.
        """
        changed: Document = {**(fields or {}), **(waiting or {})}
        if begins is not None:
            left = self.document.get(TRIMMING, self.begins)
            changed |= {LOG_BEGINS: begins, TRIMMING: left, INITIAL: None}
        counted = {REDACTIONS: 1} if is_redaction else {}
        return RecordUpdate(self, changed, counted)


class RecordUpdate(NamedTuple):
    """An update of a session: what is written, and what it is from then on."""

    before: SessionRecord
    fields: Mapping[str, Any]
    counted: Mapping[str, int] = {}

    @property
    def update(self) -> Document:
        common = () if self.before.family is None else CONVERSATION
        own = {name: it for name, it in self.fields.items() if name not in common}
        return fields_update(own, self.counted)

    @property
    def family_update(self) -> Document:
        """And of its family, which has the conversation's details; mostly none."""
        common = () if self.before.family is None else CONVERSATION
        fields = {it: self.fields[it] for it in common if it in self.fields}
        return fields_update(fields)

    @property
    def after(self) -> SessionRecord:
        return self.before.replaced(self.fields)


def fields_update(
    fields: Mapping[str, Any], counted: Mapping[str, int] = {}
) -> Document:
    """The operators that set fields, or remove those that are None."""
    kept = {name: value for name, value in fields.items() if value is not None}
    removed = {name: "" for name in fields if name not in kept}
    changes = {"$set": kept, "$unset": removed, "$inc": counted}
    return {operator: change for operator, change in changes.items() if change}


def removal_announcement(key: SessionKey) -> Document:
    """The document that shows a change stream that the next delete is of no session."""
    return {"_id": {**key.id, _REMOVED: True}}


def read_announcement(document: Document) -> SessionKey | SessionRecord | None:
    """Of an announcement: whose tombstone is removed, or the session as it is now.

    None of any other document.
    """
    id_ = document["_id"]
    if key := key_of(id_, _UPDATED):
        return SessionRecord.part(key, document)
    return key_of(id_, _REMOVED)


def initial_beside(session: Document, apart: Iterable[Document]) -> Document:
    """The initial state of a session, in the document before its log; or an empty one.

    Without transactions, a crash or a trim may have come between the two.
    """
    for each in apart:
        if all(each.get(it) == session.get(it) for it in ("create_time", LOG_BEGINS)):
            initial: Document = each.get(INITIAL, {})
            return initial
    return {}


def encode_origin(origin: Origin, shared: float, repeats: bool) -> Document:  # noqa: FBT001
    """The form in which a fork names a session, and how many events it has of it.

    It may repeat the next one as well.
    """
    session_id, created = origin
    fields = {"session_id": session_id, "create_time": created, "revision": shared}
    return fields | ({"repeats": True} if repeats else {})


def is_placeholder(document: Document) -> bool:
    """True of a tombstone and of a reservation, which have no revision."""
    return "revision" not in document


def _has_expired(document: Document, now: float) -> bool:
    expires = document.get("expire_time", math.inf)
    return isinstance(expires, _NUMBER) and expires <= now


def log_begins(document: Mapping[str, Any]) -> int:
    """The revision after which the log begins that a document is of, or precedes."""
    begins = document.get(LOG_BEGINS, 0)
    return begins if isinstance(begins, int) else 0


def readable(
    read: Callable[[Item], Value], sessions: Iterable[Item]
) -> Iterator[Value]:
    """Read something of each session of a list, but for those that are unreadable."""
    for each in sessions:
        try:
            yield read(each)
        except UnreadableError as error:
            logger.warning("A session is missing from a list. %s", error)


def _unreadable(id_: Any) -> UnreadableError:
    """Return the error that names a session as well as its ``_id`` allows."""
    name = id_.get("session_id") if isinstance(id_, dict) else None
    return UnreadableError(
        f"Session {quoted(name)}" if isinstance(name, str) else "A session"
    )
