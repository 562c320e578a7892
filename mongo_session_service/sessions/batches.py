"""Batches: which waiting writes go together, and what each of them expects."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform import time as platform_time
from google.adk.sessions.session import Session

from mongo_session_service.codec.adk_session import bring_in, mark, marker_of
from mongo_session_service.model.records import (
    Append,
    Marker,
    NewSession,
    Planned,
    StoredSession,
)
from mongo_session_service.sessions.intake import Place

MIN_WRITES: Final = 32
"""Of each of two batches that could be one: smaller ones cost more than they gain."""

MAX_BYTES: Final = 8_000_000
"""Of events and state per transaction; a larger write goes alone."""

DocumentId = tuple[str, ...]
"""A document that writes change: a session's key, or its app, or its app and user."""


@dataclass(eq=False, slots=True)
class SessionCopy:
    """A caller's ``Session``, which shows an event once it is stored."""

    session: Session
    event: Event
    actions: EventActions
    """The event's actions as stored: a rewind also restores the initial state."""
    base: Marker
    """The session's revision, if it carries no marker of its own."""
    apply: Callable[[Session, Event], Awaitable[Event]]
    """How ADK applies an event to a session in memory."""
    started: float = field(default_factory=time.monotonic)
    """When the call began: its time limit runs from here."""
    place: Place | None = None
    """What the call holds of its event loop's room for writes."""
    missed: StoredSession | None = None
    """What others have appended, which the session shows before the event."""

    def expected(self) -> Marker:
        """The marker that the stored session must have when the event is stored."""
        if self.missed is not None:
            return self.missed.marker
        return marker_of(self.session) or self.base

    async def show(self, marker: Marker) -> None:
        """Show what is stored, before the session's next event is planned."""
        if self.missed is not None:
            bring_in(self.session, self.missed)
        mark(self.session, marker)
        self.event.actions = self.actions
        self.session.last_update_time = self.event.timestamp
        await self.apply(self.session, self.event)


@dataclass(eq=False, slots=True)
class Caller:
    """A call that waits for its write."""

    write: Append | NewSession
    copy: SessionCopy | None = None
    """The session that shows an append; None for a session that is created."""
    place: Place | None = None
    """What its call holds, if it has no copy that says so."""
    started: float = field(default_factory=time.monotonic)
    """When the call began, if it has no copy that says so."""
    corrected: Marker | None = None
    """The session's marker, where only the time to live was not as expected."""
    documents: list[DocumentId] = field(init=False)
    """The documents that the write changes and other writes may change as well."""
    now: float = field(default_factory=platform_time.get_time)
    """The caller's time: its batch runs outside its context."""
    clock: float = field(init=False)
    """By how much the caller's time is ahead of the monotonic clock."""
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    is_withdrawn: bool = False
    """Whether the call was cancelled, so that its write is not tried again."""
    error: BaseException | None = None
    """Why it was not stored, once it is done."""
    retries: int = 10
    """How often its session may have another time to live than expected."""
    together: int = 1
    """How many writes were committed with it, itself included."""

    def __post_init__(self) -> None:
        app_name, user_id, _ = self.write.key
        if self.copy is not None:
            self.started, self.place = self.copy.started, self.copy.place
        self.clock = self.now - time.monotonic()
        self.documents = [self.write.key]
        if self.write.delta.app:
            self.documents.append((app_name,))
        if self.write.delta.user:
            self.documents.append((app_name, user_id))

    @property
    def session(self) -> object:
        """Whose revision it is: appends through one ``Session`` follow each other."""
        return self if self.copy is None else self.copy.session

    def expected(self) -> Marker:
        """The marker that the stored session must have when the write is done."""
        if self.corrected is not None:
            return self.corrected
        if isinstance(self.write, NewSession):
            return self.write.expected
        if self.copy is None:
            raise TypeError("An append has a session that shows it.")
        return self.copy.expected()

    def look_at_the_clock(self) -> None:
        """Bring the caller's time up to date: it has waited for long."""
        self.now = self.clock + time.monotonic()

    def settle(self, error: BaseException | None = None) -> None:
        """End the call's wait."""
        self.error = error
        self.is_done.set()


def take_batch(
    waiting: deque[Caller], most: int, busy: AbstractSet[DocumentId] = frozenset()
) -> list[Caller]:
    """Take the callers whose writes can go together, in order, off the queue.

    None of them changes a document that is ``busy``, nor one that the first caller left
    behind waits for, so that no caller waits for ever. Appends to one session go
    together only through one ``Session`` object: another object's expectation cannot be
    judged before these are stored.
    """
    batch: list[Caller] = []
    left: list[Caller] = []
    sessions: dict[object, object] = {}
    size = 0
    while waiting and len(batch) < most:
        caller = waiting.popleft()
        key = caller.write.key
        is_next = sessions.setdefault(key, caller.session) is caller.session
        fits = not batch or size + caller.write.size <= MAX_BYTES
        if is_next and fits and busy.isdisjoint(caller.documents):
            batch.append(caller)
            size += caller.write.size
        else:
            if not left:
                busy = busy | {*caller.documents}
            left.append(caller)
            sessions[key] = None  # so no later caller overtakes it
    waiting.extendleft(reversed(left))
    return batch


def halved(batch: list[Caller]) -> tuple[list[Caller], list[Caller]]:
    """Split a batch in two that can be stored side by side, if both are large."""
    middle = len(batch) // 2
    first, second = batch[:middle], batch[middle:]
    busy = {each for caller in first for each in caller.documents}
    is_apart = all(busy.isdisjoint(caller.documents) for caller in second)
    return (first, second) if is_apart and middle >= MIN_WRITES else (batch, [])


def plan(batch: Iterable[Caller]) -> list[Planned]:
    """The revision each write of a batch expects, given the ones before it."""
    planned: list[Planned] = []
    latest: dict[object, Marker] = {}
    for caller in batch:
        key = caller.write.key
        before = latest.get(key)
        expected = caller.expected() if before is None else before
        planned.append(Planned(caller.write, expected, caller.now))
        latest[key] = expected.next()
    return planned


def by_document(batch: Iterable[Caller], length: int) -> dict[DocumentId, list[Caller]]:
    """The callers that change documents of one kind, by document.

    A session's callers stay together, so that their order is kept; those that change no
    such document are under an empty id.

    Args:
        batch: The callers.
        length: How many parts the ids have: 1 for apps, 2 for users, 3 for sessions.
    """
    ids: dict[DocumentId, DocumentId] = {}
    for caller in batch:
        own = [each for each in caller.documents if len(each) == length]
        ids[caller.write.key] = ids.get(caller.write.key) or next(iter(own), ())
    groups: dict[DocumentId, list[Caller]] = {}
    for caller in batch:
        groups.setdefault(ids[caller.write.key], []).append(caller)
    return groups
