"""Group commit: writes that wait at the same time are committed together.

A transaction costs a few round trips and one wait for the majority's journals, however
many events it stores. So while one is being committed, the next appends and new
sessions gather, and then go as one: nobody waits for a timer, and a lone one goes at
once. Two batches may be under way if they have no document in common: the server works
on one while this process prepares the other.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform import time as platform_time
from google.adk.sessions.session import Session

from mongo_session_service.codec.adk_session import bring_in, mark, marker_of
from mongo_session_service.codec.limits import outgrown
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.errors import DocumentTooLargeError, StorageUnavailableError
from mongo_session_service.model.records import (
    Append,
    Marker,
    NewSession,
    Planned,
    StoredSession,
)
from mongo_session_service.sessions import store as storage
from mongo_session_service.sessions.deletion import ATTEMPTS, remove_expired
from mongo_session_service.telemetry import note_batch

MAX_WRITES: Final = 128
"""Writes per transaction: more gain little, and lose more to a conflict."""

MAX_BATCHES: Final = 2
"""Under way at the same time: this process and the server are both busy with two."""

MIN_WRITES: Final = 16
"""Of each of two batches that could be one: smaller ones cost more than they gain."""

MAX_BYTES: Final = 8_000_000
"""Of events and state per transaction; a larger write goes alone."""

MAX_WAITING: Final = 4096
"""Writes waiting per event loop, beyond which callers wait before they queue."""


@dataclass(eq=False, slots=True)
class SessionCopy:
    """A caller's ``Session``, which shows an event as soon as that is stored."""

    session: Session
    event: Event
    actions: EventActions
    """The event's as they are stored: a rewind restores the initial state as well."""
    base: Marker
    """What the session is at, if it carries no marker of its own."""
    apply: Callable[[Session, Event], Awaitable[Event]]
    """How ADK shows an event in a session in memory."""
    missed: StoredSession | None = None
    """What others have appended, and the session shows before the event."""

    def expected(self) -> Marker:
        """What the stored session must be at when it is the event's turn."""
        if self.missed is not None:
            return self.missed.marker
        return marker_of(self.session) or self.base

    async def show(self, marker: Marker) -> None:
        """Show what is stored, before it is the turn of the session's next event."""
        if self.missed is not None:
            bring_in(self.session, self.missed)
        mark(self.session, marker)
        self.event.actions = self.actions
        self.session.last_update_time = self.event.timestamp
        await self.apply(self.session, self.event)


@dataclass(eq=False, slots=True)
class Caller:
    """Someone who waits for a write."""

    write: Append | NewSession
    copy: SessionCopy | None = None
    """What shows an append; None for a session that is created."""
    corrected: Marker | None = None
    """What its session is at, where only the time to live was not as expected."""
    documents: list[tuple[str, ...]] = field(init=False)
    """What the write changes that others may want to change as well, as their ids."""
    now: float = field(default_factory=platform_time.get_time)
    """The caller's time: its batch runs outside its context."""
    is_done: asyncio.Event = field(default_factory=asyncio.Event)
    error: BaseException | None = None
    """Why it was not stored, once it is done."""
    retries: int = 10
    """How often it may find its session with another time to live than expected."""
    together: int = 1
    """How many writes were committed with it, itself included."""

    def __post_init__(self) -> None:
        app_name, user_id, _ = self.write.key
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
        """What the stored session must be at when it is the write's turn."""
        if self.corrected is not None:
            return self.corrected
        if isinstance(self.write, NewSession):
            return self.write.expected
        if self.copy is None:
            raise TypeError("An append has a session that shows it.")
        return self.copy.expected()

    def settle(self, error: BaseException | None = None) -> None:
        """Let the caller go on."""
        self.error = error
        self.is_done.set()


def take_batch(
    waiting: deque[Caller], most: int, busy: AbstractSet[tuple[str, ...]] = frozenset()
) -> list[Caller]:
    """Take the callers whose writes can go together, in order, off the queue.

    None of them changes what is ``busy``, nor what the first who is left waits for, so
    that nobody is passed for ever. Appends to one session go together only through one
    ``Session`` object: another's expectation cannot be judged before these are stored.
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
            sessions[key] = None  # and so nobody overtakes it
    waiting.extendleft(reversed(left))
    return batch


def halved(batch: list[Caller]) -> tuple[list[Caller], list[Caller]]:
    """Who of a batch goes first, and who is prepared while these are being stored."""
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


class Committer:
    """The one writer of sessions and events in an event loop."""

    def __init__(
        self, connection: Connection, store: storage.SessionStore, *, together: bool
    ) -> None:
        self._connection = connection
        self._store = store
        self._most = MAX_WRITES if together else 1
        self._most_batches = MAX_BATCHES if together else 1
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._waiting: deque[Caller] = deque()
        self._under_way: list[list[Caller]] = []
        self._busy: set[tuple[str, ...]] = set()
        self._is_blocked = False
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, caller: Caller) -> None:
        """Return when the caller's write is committed by a majority.

        A cancelled caller whose turn has not come withdraws; else its write is
        finished before the cancellation is raised, so that its outcome is known.

        Raises:
            What :meth:`SessionStore.commit` and :func:`explain` raise for
            this write; others are not affected.
        """
        async with self._room:
            self._waiting.append(caller)
            self._start_soon()
            try:
                await caller.is_done.wait()
            except asyncio.CancelledError:
                if caller in self._waiting:
                    self._waiting.remove(caller)
                else:
                    await uninterrupted(caller.is_done.wait())
                raise
            if caller.error is not None:
                raise caller.error
            note_batch(caller.together)

    async def create(self, new: NewSession) -> None:
        """Store a new session, also in the place of one that has expired.

        Raises:
            AlreadyExistsError: there is one that has not expired.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                await self.commit(Caller(new))
            except AlreadyExistsError:
                now = platform_time.get_time()
                if not (await remove_expired(self._connection, new.key, now) and left):
                    raise
            else:
                return

    async def settled(self) -> None:
        """Return when nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start_soon(self) -> None:
        """Start a batch once all who are about to come have come."""
        if self._waiting and self._starting is None:
            # Not in the caller's context, whose deadlines are not everyone's, nor by
            # create_task(), by which it would begin at once where tasks are eager.
            self._starting = asyncio.Task(self._run(), context=Context())
            self._tasks.add(self._starting)
            self._starting.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._starting is task:  # it was cancelled before it began
            self._starting = None
            self._start_soon()

    async def _run(self) -> None:
        self._starting = None
        if not (batch := self._next_batch()):
            return
        self._under_way.append(batch)
        self._busy.update(*(each.documents for each in batch))
        self._start_soon()  # there may be enough for another
        try:
            await self._commit(batch)
        finally:
            for caller in batch:
                if not caller.is_done.is_set():  # the loop is being shut down
                    caller.settle(asyncio.CancelledError())
            self._under_way.remove(batch)
            self._busy.difference_update(*(each.documents for each in batch))
            self._is_blocked = False
            self._start_soon()

    def _next_batch(self) -> list[Caller]:
        """Who goes now; a second batch only if it is no smaller than the first.

        Few would pay for a transaction of their own what they gain by not waiting.
        """
        under_way = sum(map(len, self._under_way))
        if (
            not self._waiting
            or self._is_blocked
            or len(self._under_way) == self._most_batches
            or len(self._waiting) < under_way
        ):
            return []
        batch = take_batch(self._waiting, self._most, self._busy)
        if not under_way and len(self._waiting) < len(batch):
            batch, others = halved(batch)
            self._waiting.extendleft(reversed(others))
        self._is_blocked = not batch
        return batch

    async def _commit(self, batch: list[Caller]) -> None:
        """Commit a batch; if it is refused, find out whose fault it is by halves."""
        planned = plan(batch)
        try:
            with translated():
                await self._store.commit(planned)
        except Exception as error:  # noqa: BLE001  told to whom it concerns
            if len(batch) > 1 and not isinstance(error, StorageUnavailableError):
                middle = len(batch) // 2
                await self._commit(batch[:middle])
                await self._commit(batch[middle:])
            elif isinstance(error, storage.RefusedError):
                await self._explain(batch[0], planned[0])
            elif isinstance(error, DocumentTooLargeError):
                batch[0].settle(outgrown(batch[0].write))
            else:
                for caller in batch:
                    # One each: it collects the traceback of whoever raises it.
                    caller.settle(copy.copy(error))
        else:
            for caller, each in zip(batch, planned, strict=True):
                caller.together = len(batch)
                await _tell(caller, each.expected.next())

    async def _explain(self, caller: Caller, planned: Planned) -> None:
        try:
            with translated():
                revision = await storage.explain(
                    self._connection, planned, may_retry=caller.retries > 0
                )
        except storage.OtherTtlError as error:
            caller.corrected = error.expected
            caller.retries -= 1
            await self._commit([caller])
        except Exception as error:  # noqa: BLE001  as above
            caller.settle(error)
        else:
            if revision == planned.expected.revision + 1:
                await _tell(caller, planned.expected.next())
            else:
                # The session knows this event from before, or is stale in any case.
                caller.settle()


async def _tell(caller: Caller, marker: Marker) -> None:
    try:
        if caller.copy is not None:
            await caller.copy.show(marker)
    except Exception as error:  # noqa: BLE001  the caller's, and not its neighbours'
        caller.settle(error)
    else:
        caller.settle()
