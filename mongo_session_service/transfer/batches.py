"""Batches: a source's items encoded as the service stores them, in bounded parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import bson
from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.document_size import (
    MAX_DOCUMENT_BYTES,
    check_stored,
)
from mongo_session_service.codec.documents import (
    decode_state,
    encode_append,
    encode_state,
    event_document,
    session_document,
)
from mongo_session_service.codec.family_record import FamilyRecord
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.record import COPIED_BY, EVENT_TIME
from mongo_session_service.codec.waiting_calls import REDACTED, waiting_calls
from mongo_session_service.errors import DocumentTooLargeError, InvalidInputError
from mongo_session_service.model.metadata import NO_DETAILS, StoredDetails
from mongo_session_service.model.records import (
    Append,
    Document,
    NewSession,
    ScopedState,
    SessionKey,
    session_key,
)
from mongo_session_service.model.results import WaitingCall
from mongo_session_service.model.validation import check_id
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import infer_initial_state
from mongo_session_service.transfer.sources import (
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    Source,
    session_text,
)

MAX_EVENTS: Final = 1000
"""Documents written together."""
MAX_BYTES: Final = 8_000_000
"""Events and state written together; a larger event is written alone."""


@dataclass(slots=True)
class EncodedSession:
    """An encoded session, or a part of one that is too large for one write."""

    key: SessionKey
    """The source's, without white space around its session's id."""
    header: SessionHeader
    state: Document
    own_size: int
    """Bytes of its state and its initial state."""
    size: int
    """And of the events of this part."""
    details: StoredDetails = NO_DETAILS
    initial: Document | None = None
    """The initial state; None if the source does not have it."""
    appends: list[Append] = field(default_factory=list)
    offset: int = 0
    """The revision before this part."""
    began: float | None = None
    """The time of the first event."""
    is_last: bool = True
    changed: set[str] = field(default_factory=set)
    """The state keys that its events have set so far."""
    asked: set[WaitingCall] = field(default_factory=set)
    """What its events so far ask of people."""
    redacted: set[int] = field(default_factory=set)
    """The revisions, so far, of events that do not show any more what they asked."""

    @property
    def revision(self) -> int:
        return self.offset + len(self.appends)

    @property
    def is_first(self) -> bool:
        return self.offset == self.header.log_begins

    def documents(
        self, after: int = 0, waiting: Mapping[int, Document] | None = None
    ) -> Iterator[Document]:
        """Yield its event documents after a revision, with the waiting calls given."""
        origins = self.header.forked_from
        shared = origins[0]["revision"] if origins else 0
        for index, append in enumerate(self.appends):
            if (revision := self.offset + index + 1) > after:
                yield event_document(
                    append,
                    revision,
                    waiting=(waiting or {}).get(revision),
                    copied_by="fork" if revision <= shared else "import",
                )

    def session_document(self) -> Document:
        """Build the session's document, which is stored after all events."""
        document = {
            **session_document(self.as_new_session()),
            "state": self.state,
            "revision": self.revision,
            "update_time": self.header.written or self.header.update_time,
        }
        if self.header.written is not None:
            document[EVENT_TIME] = self.header.update_time
        # Else it may be full to the last byte.
        has_room = self.size < MAX_DOCUMENT_BYTES
        return document | {COPIED_BY: "import"} if has_room else document

    def as_new_session(self) -> NewSession:
        """Return the session as it was created; a missing initial state is inferred."""
        header, initial = self.header, self.initial
        create_time = header.create_time
        if initial is None:
            initial = infer_initial_state(self.state, [self.changed])
        if create_time is None:
            # The time of the first event is the best guess.
            create_time = header.update_time if self.began is None else self.began
        return NewSession(
            self.key,
            create_time,
            ScopedState(session=initial),
            len(bson.encode(initial)),
            self.details,
            header.log_begins,
            header.forked_from,
        )

    def as_loaded(self, hooks: Hooks) -> SessionHeader:
        """Return its header as it is read once this part is stored."""
        decode = partial(decode_state, owner=Owner.of_session(self.key), hooks=hooks)
        return replace(
            self.header,
            key=self.key,
            state=decode(self.state),
            details=self.header.details and self.details,
            initial=None if self.initial is None else decode(self.initial),
            revision=self.revision,
        )

    def next_part(self) -> EncodedSession:
        self.is_last = False
        size, offset = self.own_size, self.revision
        return replace(self, size=size, appends=[], offset=offset, is_last=True)


@dataclass(frozen=True, slots=True)
class EncodedState:
    shared: SharedState
    state: Document
    digest: str | None
    """None for an app with hooks: a digest of what they seal lets others guess it."""

    @property
    def id(self) -> Any:
        if self.shared.user_id is None:
            return self.shared.app_name
        return queries.user_state_id(self.shared.app_name, self.shared.user_id)


@dataclass(slots=True)
class Batch:
    """Sessions and shared state that are written together, or one part of a session."""

    states: dict[tuple[str, str | None], EncodedState] = field(default_factory=dict)
    sessions: dict[SessionKey, EncodedSession] = field(default_factory=dict)
    events: int = 0
    size: int = 0
    families: list[FamilyRecord] = field(default_factory=list)
    """Those of sessions in this batch, or in one before."""
    problems: list[Problem] = field(default_factory=list)
    conflicts: list[Problem] = field(default_factory=list)
    """Sessions of the source that have the id of another one."""
    sessions_read: int = 0
    """Sessions of the source that have begun since the batch before."""
    events_read: int = 0
    states_read: int = 0
    """Shared states that are not empty."""
    expired: int = 0
    """Expired sessions, which are left out."""

    @property
    def is_full(self) -> bool:
        documents = self.events + len(self.sessions) + len(self.states)
        return documents >= MAX_EVENTS or self.size >= MAX_BYTES

    def add(self, session: EncodedSession) -> None:
        self.sessions[session.key] = session
        self.events += len(session.appends)
        self.size += session.size


class BatchEncoder:
    """Groups a source's items into batches; what cannot be stored becomes a problem."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._batch = Batch()
        self._current: EncodedSession | None = None
        self._ids: set[str] = set()
        self._stripped: set[SessionKey] = set()
        """Keys that the source has with white space around the session's id."""

    def add_item(self, item: Item) -> Iterable[Batch]:
        """Add an item; return the batches that it completes."""
        match item:
            case Problem():
                self._batch.problems.append(item)
            case Event():
                self._batch.events_read += 1
                yield from self._add_event(item)
            case SessionHeader():
                yield from self._end_session()
                if item.has_expired(platform_time.get_time()):
                    self._batch.expired += 1
                else:
                    self._batch.sessions_read += 1
                    yield from self._begin_session(item)
            case FamilyRecord():
                yield from self._end_session()
                self._batch.families.append(item)
            case SharedState():
                yield from self._end_session()
                self._batch.states_read += bool(item.state)
                self._add_state(item)
        if self._batch.is_full:
            yield self._finished_batch()

    def end_batch(self) -> Iterable[Batch]:
        yield from self._end_session()
        yield self._finished_batch()

    def _finished_batch(self) -> Batch:
        batch, self._batch = self._batch, Batch()
        return batch

    @contextmanager
    def _reporting_problems(self, where: str) -> Iterator[None]:
        """Add what is refused in the block to the batch's problems."""
        try:
            yield
        except (InvalidInputError, DocumentTooLargeError) as error:
            problem = Problem(where, str(error))
            self._batch.problems.append(problem)

    def _begin_session(self, header: SessionHeader) -> Iterable[Batch]:
        self._ids.clear()
        where = session_text(header.key)
        with self._reporting_problems(where):
            key = session_key(*header.key)
            if key in self._batch.sessions:
                # Once the first is stored, the second is compared with it.
                yield self._finished_batch()
            if key in self._stripped:
                reason = (
                    "the source has another one whose id differs only in white space"
                )
                self._batch.conflicts.append(Problem(where, reason))
                return
            if key != header.key:
                self._stripped.add(key)
            owner = Owner.of_session(key)
            state, size = encode_state(header.state, owner, self._hooks)
            initial = None
            if header.initial is not None:
                initial, more = encode_state(header.initial, owner, self._hooks)
                size += more
            details = header.details or NO_DETAILS
            if self._hooks.is_missing:
                details = details.with_display_name(header.state)
            current = EncodedSession(
                key,
                replace(header, state={}, initial=None),  # which are encoded now
                state,
                size,
                size,
                details,
                initial,
                offset=header.log_begins,
            )
            if size > MAX_DOCUMENT_BYTES:
                check_stored(state, current.session_document())
            self._current = current

    def _end_session(self) -> Iterable[Batch]:
        current, self._current = self._current, None
        if current is not None and current.is_first:
            self._batch.add(current)
        elif current is not None:
            yield from self._batch_alone(current)

    def _batch_alone(self, part: EncodedSession) -> Iterable[Batch]:
        """Yield the batch so far, then a part in a batch of its own."""
        yield self._finished_batch()
        self._batch.add(part)
        yield self._finished_batch()

    def _add_event(self, event: Event) -> Iterable[Batch]:
        current = self._current
        if current is None:
            return  # its session was refused, or has expired
        append = None
        where = f"event {event.id!r} of {session_text(current.key)}"
        with self._reporting_problems(where):
            id_ = check_id("The event's id", event.id)
            if id_ in self._ids:
                message = "the session already has an event with this id"
                raise InvalidInputError(message)
            append = encode_append(current.key, event, self._hooks)
        if append is None:
            return
        self._ids.add(id_)
        if current.began is None:
            current.began = min(append.timestamp, current.header.update_time)
        is_full = len(current.appends) >= MAX_EVENTS
        if current.appends and (is_full or current.size + append.size > MAX_BYTES):
            rest = current.next_part()
            yield from self._batch_alone(current)
            self._current = current = rest
        current.appends.append(append)
        current.changed |= append.delta.session.keys()
        current.asked.update(waiting_calls([(current.revision, append.waiting)]))
        if REDACTED in (event.custom_metadata or {}):
            current.redacted.add(current.revision)
        current.size += append.size

    def _add_state(self, shared: SharedState) -> None:
        with self._reporting_problems(str(shared)):
            owner = check_id("app_name", shared.app_name), shared.user_id
            if shared.user_id is not None:
                owner = owner[0], check_id("user_id", shared.user_id)
            shared = SharedState(*owner, shared.state)
            encoded, size = encode_state(shared.state, shared.owner, self._hooks)
            digest = _digest(encoded) if self._hooks.is_missing else None
            new = EncodedState(shared, encoded, digest)
            if size > MAX_DOCUMENT_BYTES:
                document = {"_id": new.id, "state": encoded, "revision": 1}
                check_stored(encoded, document)
            self._batch.states[owner] = new
            self._batch.size += size


def _digest(state: Document) -> str:
    """Hash a state, whatever the order of its keys."""
    # Text that UTF-8 cannot hold is stored as bytes.
    text = json.dumps(state, sort_keys=True, default=bytes.hex)
    return hashlib.sha256(text.encode()).hexdigest()


async def encoded_batches(
    source: Source, selection: Selection, hooks: Hooks
) -> AsyncGenerator[Batch]:
    """Read the selected items of an open source, encoded and grouped."""
    encoder = BatchEncoder(hooks)
    async with aclosing(source.read(selection)) as items:
        async for item in items:
            for batch in encoder.add_item(item):
                yield batch
    for batch in encoder.end_batch():
        yield batch
