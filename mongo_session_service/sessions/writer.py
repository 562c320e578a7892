"""Writer: appends and new sessions that wait at the same time share one transaction.

A transaction costs a few round trips and one wait for the majority's journals, however
many events it stores. So while one is being committed, further writes wait, and then
share the next. A lone write is committed at once: there is no timer.

All that waits is in one queue, in order. A batch takes from it what can go together. It
leaves out what changes a document of another batch in flight. A write that meets a
document that another program's transaction has locked is tried again alone, with
growing pauses, while batches leave that document out.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

from mongo_session_service import telemetry
from mongo_session_service.codec.document_size import outgrown_error
from mongo_session_service.codec.documents import needs_initial_document
from mongo_session_service.errors import (
    DocumentTooLargeError,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import Append, Marker, NewSession
from mongo_session_service.sessions.deletion import store_in_place
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import LockedError, RefusedError
from mongo_session_service.storage.tasks import ReraisedCancellation, backoff

MAX_WRITES: Final = 128
"""Writes per transaction: more gain little, and lose more to a conflict."""

MAX_BYTES: Final = 8_000_000
"""Bytes of events and state per transaction; a larger write goes alone."""

MAX_BATCHES: Final = 2
"""Batches in flight: this process and the server are both busy with two."""

MIN_HALF: Final = 32
"""Writes of each of two batches that could be one."""

ATTEMPTS: Final = 2
"""How often a batch is tried before a document of it counts as locked."""

MAX_HELD_BACK: Final = 4
"""Writes that were held back for a lock, and are tried again at the same time."""

MAX_ENCODED: Final = 128
"""Writes that are admitted, to be encoded, in one iteration of the event loop."""

_FIRST_PAUSE: Final = 0.01  # seconds
_LONGEST_PAUSE: Final = 0.05  # seconds: who pauses longer loses a hot key to others

_LOCKED: Final = (
    "Another writer's transaction has locked a document of this session, or of the"
    " state it shares, for {:g} seconds. Nothing was stored: append again once that"
    " transaction has ended."
)


class AlreadyStored(NamedTuple):
    """Verdict on a write that was refused: it is stored already."""

    revision: int


class Outdated(NamedTuple):
    """Verdict: it would be stored if this marker were expected."""

    marker: Marker


Verdict: TypeAlias = AlreadyStored | Outdated
Commit = Callable[[list["QueuedWrite"], float, int | None], Awaitable[None]]
"""Stores writes as one transaction, in so many seconds and attempts."""
Judge = Callable[["QueuedWrite"], Awaitable[Verdict]]
"""Finds out why a single write was refused, or raises that."""

DocumentId = tuple[str, ...]
"""A document that writes change: a session's key, or its app, or its app and user."""


@dataclass(slots=True, eq=False)
class _PendingSessionWrites:
    """The writes of one ``Session`` object that are under way, one after the other."""

    count: int = 0
    marker: Marker | None = None
    """The marker that the last of them has left the session at."""


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """A caller's write in the queue, planned anew with each batch."""

    write: Append | NewSession
    known: Marker
    """The marker that its caller expects of its session."""
    expected: Marker
    """The marker that its batch expects, given the writes before it."""
    after: Marker
    """The marker that it leaves its session at then."""
    now: float
    """The server's time when its caller began to wait."""
    pending: _PendingSessionWrites
    deadline: float
    documents: tuple[DocumentId, ...]
    answer: asyncio.Future[None]
    outcome: Marker | BaseException | None = None
    has_ended: bool = False
    is_cancelled: bool = False
    is_held_back: bool = False
    together: int = 1
    retries: int = 10
    """How often its session may still have another time to live than expected."""

    def answer_caller(self, outcome: Marker | BaseException | None) -> None:
        self.outcome, self.has_ended = outcome, True
        if not self.answer.done():
            self.answer.set_result(None)


_deadline_of: Final = attrgetter("deadline")
_documents_of: Final = attrgetter("documents")
_key_of: Final = attrgetter("write.key")


class _WriteBuffer:
    """Room for writes that are encoded and wait: so many, and so many bytes of them."""

    def __init__(self, limits: Limits) -> None:
        self._writes, self._bytes = limits.queued_writes, limits.queued_bytes
        self._count = self._size = 0
        self._admitted = 0
        """Writes in this iteration of the event loop."""
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def await_room(self) -> None:
        """Wait until there is room for one more write, which is encoded only then."""
        loop = asyncio.get_running_loop()
        if self._waiters or self._is_full():
            waiter = loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._admit_waiters()
                raise
        if not self._admitted:
            loop.call_soon(self._end_iteration)
        self._admitted += 1

    def reserve(self, size: int) -> None:
        self._count += 1
        self._size += size

    def release(self, size: int) -> None:
        self._count -= 1
        self._size -= size
        if self._waiters and not self._admitted:
            self._admit_waiters()

    def _is_full(self) -> bool:
        return (
            self._admitted >= MAX_ENCODED
            or self._count >= self._writes
            or self._size >= self._bytes
        )

    def _end_iteration(self) -> None:
        self._admitted = 0
        if self._waiters:
            self._admit_waiters()

    def _admit_waiters(self) -> None:
        room = 0 if self._is_full() else MAX_ENCODED - self._admitted
        room = min(room, self._writes - self._count)
        while self._waiters and room > 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1


class Writer:
    def __init__(self, storage: Storage, commit: Commit, judge: Judge) -> None:
        self._storage, self._commit, self._judge = storage, commit, judge
        self.buffer = _WriteBuffer(storage.limits)
        self._most = MAX_WRITES if storage.has_transactions else 1
        self._most_batches = MAX_BATCHES if storage.has_transactions else 1
        self.write_timeout = storage.write_timeout
        self._queue: deque[QueuedWrite] = deque()
        self._pending: dict[int, _PendingSessionWrites] = {}
        self._busy: set[DocumentId] = set()
        """Documents of the batches in flight."""
        self._locked: set[DocumentId] = set()
        """Documents of the writes that are tried alone."""
        self._retry_slots = asyncio.Semaphore(MAX_HELD_BACK)
        self._flying: list[int] = []
        """How many writes each batch in flight has."""
        self._has_lone = self._is_blocked = False
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    async def write(
        self,
        write: Append | NewSession,
        expected: Marker,
        session: object = None,
        started: float | None = None,
    ) -> Marker | None:
        """Store a write, and return the marker of its session once a majority has it.

        It returns None if the event was stored before, and others after it. If the call
        is cancelled before its batch begins, nothing is written. Afterwards the write
        is finished: what is stored is returned in spite of the cancellation, so that
        the session can show it.

        The stored session must have the ``expected`` marker. But writes through one
        ``session`` object follow each other: what the one before it has left the
        session at is what the next one expects. The time limit runs from when the call
        ``started``.
        """
        pending = self._pending.get(id(session))
        if pending is None:
            pending = _PendingSessionWrites()
            if session is not None:
                self._pending[id(session)] = pending
        pending.count += 1
        began = monotonic() if started is None else started
        # ADK's clock is that of the caller's context.
        now, deadline = self._storage.clock.now(), began + self.write_timeout
        documents: tuple[DocumentId, ...] = (write.key,)
        if write.delta.app:
            documents += (write.key[:1],)
        if write.delta.user:
            documents += (write.key[:2],)
        answer = asyncio.get_running_loop().create_future()
        markers = expected, expected, expected
        queued = QueuedWrite(write, *markers, now, pending, deadline, documents, answer)
        self._queue.append(queued)
        self.buffer.reserve(write.size)
        if self._alarm is None or deadline < self._alarm_at:
            self._set_alarm(deadline)
        self._start_soon()
        try:
            await self._outcome_of(queued)
        finally:
            pending.count -= 1
            if not pending.count:
                self._pending.pop(id(session), None)
            self.buffer.release(write.size)
        if isinstance(queued.outcome, BaseException):
            raise asyncio.CancelledError if queued.is_cancelled else queued.outcome
        telemetry.note_batch(queued.together)
        return queued.outcome

    async def create(self, new: NewSession) -> None:
        """Store a new session, also in the place of one that has expired."""
        started = monotonic()
        await self.buffer.await_room()

        async def write() -> None:
            with ReraisedCancellation():
                await self.write(new, new.expected, started=started)

        await store_in_place(self._storage, new.key, write)

    async def finish_writes(self) -> None:
        while waiting := [*self._tasks, *(each.answer for each in self._queue)]:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def _outcome_of(self, queued: QueuedWrite) -> None:
        while not queued.has_ended:
            try:
                await queued.answer
            except asyncio.CancelledError:
                if queued in self._queue:
                    self._queue.remove(queued)
                    raise
                queued.is_cancelled = True
                if not queued.has_ended:
                    queued.answer = asyncio.get_running_loop().create_future()

    # --- Batches ---

    def _start_soon(self) -> None:
        """Start a batch in the next iteration of the loop, when all have queued."""
        if self._starting is not None or not self._queue:
            return
        if len(self._flying) == self._most_batches or self._is_blocked:
            return
        # Not in the caller's context, whose deadlines are not everyone's, nor by
        # create_task(), by which it would begin at once where tasks are eager.
        self._starting = asyncio.Task(self._write_next(), context=Context())
        self._tasks.add(self._starting)
        self._starting.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._starting is task:  # it was cancelled before it began
            self._starting = None
            self._start_soon()

    async def _write_next(self) -> None:
        self._starting = None
        batch = self._next_batch()
        if not batch:
            return
        documents = {*chain.from_iterable(map(_documents_of, batch))}
        self._busy |= documents
        size, first = len(batch), batch[0].write
        # A lone new session without state of others changes one document alone.
        is_lone = (
            size == len(documents) == 1
            and not self._has_lone
            and isinstance(first, NewSession)
            and not needs_initial_document(first)
        )
        if is_lone:
            self._has_lone = True
        else:
            self._flying.append(size)
        if self._queue:  # there may be enough for another
            self._start_soon()
        try:
            attempts = None if is_lone else ATTEMPTS
            again = await self._write_bisecting(batch, attempts)
            self._queue.extendleft(reversed(again))
        except BaseException:
            for queued in batch:  # the loop is being shut down
                if not queued.has_ended:
                    queued.answer_caller(asyncio.CancelledError())
            raise
        finally:
            self._busy -= documents
            if is_lone:
                self._has_lone = False
            else:
                self._flying.remove(size)
            self._is_blocked = False
            if self._queue:
                self._start_soon()

    def _next_batch(self) -> list[QueuedWrite]:
        """Take the next batch; a second one only if it is no smaller than the first.

        A few writes would pay for a transaction of their own what they gain by not
        waiting.
        """
        flying, waiting = sum(self._flying), len(self._queue)
        is_full = len(self._flying) == self._most_batches
        if self._is_blocked or is_full or waiting < flying:
            return []
        half = -(-waiting // 2)
        most = half if not flying and half >= MIN_HALF else self._most
        batch = self._take_compatible_writes(min(most, self._most))
        self._is_blocked = not batch and bool(flying)
        return batch

    def _take_compatible_writes(self, most: int) -> list[QueuedWrite]:
        """Take the writes off the queue that can go together, in order.

        None of them changes a document that is busy or locked, nor one that the first
        write left behind waits for, so that none waits for ever. Writes to one session
        go together only through one ``Session`` object: another object's expectation
        cannot be judged before these are stored.
        """
        batch: list[QueuedWrite] = []
        left: list[QueuedWrite] = []
        by_session: dict[DocumentId, _PendingSessionWrites | None] = {}
        queue, busy, size, has_reserved = self._queue, self._busy, 0, False
        while queue and len(batch) < most:
            queued = queue.popleft()
            write, documents = queued.write, queued.documents
            is_open = self._locked.isdisjoint(documents)
            is_next = by_session.setdefault(write.key, queued.pending) is queued.pending
            fits = not batch or size + write.size <= MAX_BYTES
            if is_next and is_open and fits and busy.isdisjoint(documents):
                batch.append(queued)
                size += write.size
                continue
            left.append(queued)
            by_session[write.key] = None  # so no later write overtakes it
            if is_next and is_open and not has_reserved:
                busy, has_reserved = busy.union(documents), True
        queue.extendleft(reversed(left))
        return batch

    async def _write_bisecting(
        self, batch: list[QueuedWrite], attempts: int | None
    ) -> list[QueuedWrite]:
        """Write a batch; if it fails, split it in two until the failing write is found.

        Returns the writes that are to be tried again, in order.
        """
        again: list[QueuedWrite] = []
        parts = [batch]
        while parts:
            # A session's later writes follow its earlier ones.
            closed = self._locked.union(map(_key_of, again))
            part: list[QueuedWrite] = []
            for queued in self._end_late(parts.pop()):
                is_open = closed.isdisjoint(queued.documents)
                (part if is_open else again).append(queued)
            error = await self._commit_part(part, attempts)
            middle = len(part) // 2
            if error and middle and not isinstance(error, StorageUnavailableError):
                parts += [part[middle:], part[:middle]]
            else:
                again += await self._settle(part, error)
        return again

    async def _commit_part(
        self, part: list[QueuedWrite], attempts: int | None
    ) -> Exception | None:
        """Write one transaction; return why it failed, which its callers raise."""
        if not part:
            return None
        _plan(part)
        time_limit = min(map(_deadline_of, part)) - monotonic()
        try:
            await self._commit(part, time_limit, attempts)
        except Exception as error:  # noqa: BLE001  the callers raise it
            return error
        return None

    async def _settle(
        self, part: list[QueuedWrite], error: Exception | None
    ) -> list[QueuedWrite]:
        """End writes; return those that are to be tried again."""
        if error is None:
            for queued in part:
                queued.together = len(part)
                queued.pending.marker = queued.after
                queued.answer_caller(queued.after)
            return []
        if isinstance(error, LockedError):
            return self._hold_back_locked(part, error.collection)
        if isinstance(error, StorageUnavailableError):
            return self._give_up(part, error)
        (queued,) = part
        if isinstance(error, RefusedError):
            return await self._settle_refused(queued)
        is_large = isinstance(error, DocumentTooLargeError)
        queued.answer_caller(outgrown_error(queued.write) if is_large else error)
        return []

    async def _settle_refused(self, queued: QueuedWrite) -> list[QueuedWrite]:
        """End a write that expected what is not so, or return it to be tried again."""
        try:
            verdict = await self._judge(queued)
        except StorageUnavailableError as failure:
            return self._give_up([queued], failure)
        except Exception as reason:  # noqa: BLE001  the caller raises it
            # Its traceback need not begin with the refusal of the batch.
            reason.__suppress_context__ = True
            queued.answer_caller(reason)
            return []
        if isinstance(verdict, Outdated):
            queued.known = queued.pending.marker = verdict.marker
            queued.retries -= 1
            return [queued]
        if verdict.revision == queued.expected.revision + 1:
            return await self._settle([queued], None)
        # The session knows the event from before, or is stale in any case.
        queued.answer_caller(None)
        return []

    # --- Time limits ---

    def late_error(self) -> StorageUnavailableError:
        seconds = self.write_timeout
        text = f"it did not finish a transaction within {seconds:g} seconds"
        return self._storage.late_error(text)

    def _give_up(
        self, part: list[QueuedWrite], error: StorageUnavailableError
    ) -> list[QueuedWrite]:
        """End writes, or only those whose time limit ended their transaction.

        The others, which it returns, are tried again, even if the outcome is unknown:
        an append that is stored is recognised.
        """
        now = monotonic()
        is_late = any(each.deadline <= now for each in part)
        is_unknown = isinstance(error, UnknownOutcomeError)
        again = []
        for queued in part:
            is_new = isinstance(queued.write, NewSession)
            if is_late and queued.deadline > now and not (is_new and is_unknown):
                again.append(queued)
                continue
            if is_late and not is_unknown:
                error = self.late_error()
            # One each: an error collects the traceback of every caller raising it.
            queued.answer_caller(copy.copy(error))
        return again

    def _end_late(self, writes: Iterable[QueuedWrite]) -> list[QueuedWrite]:
        now, kept = monotonic(), []
        for queued in writes:
            if queued.is_cancelled:
                queued.answer_caller(asyncio.CancelledError())
            elif queued.deadline > now:
                kept.append(queued)
            else:
                is_locked = not self._locked.isdisjoint(queued.documents)
                locked = StorageUnavailableError(_LOCKED.format(self.write_timeout))
                queued.answer_caller(locked if is_locked else self.late_error())
        return kept

    def _set_alarm(self, moment: float) -> None:
        """Set when late writes end: then, or earlier."""
        if self._alarm is not None:
            if self._alarm_at <= moment:
                return
            self._alarm.cancel()
        self._alarm_at = moment
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(moment - monotonic(), 0.0), self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self._queue = deque(self._end_late(self._queue))
        now = monotonic()
        moments = [*map(_deadline_of, self._queue)]
        if moments or self._tasks:
            self._set_alarm(min(moments, default=now + self.write_timeout))
        self._start_soon()

    # --- Locked documents ---

    def _hold_back_locked(
        self, part: list[QueuedWrite], collection: str
    ) -> list[QueuedWrite]:
        """Hold back the writes that may have met a lock, to be tried each by itself.

        Batches leave their documents out meanwhile. It returns the other writes.
        """
        if part[0].is_held_back:
            return self._end_late(part)
        length = {"app_states": 1, "user_states": 2}.get(collection, 3)
        again = []
        for queued in part:
            key: DocumentId = queued.write.key
            held = {key, key[:length]}
            if not held.issubset(queued.documents) or held & self._locked:
                again.append(queued)
                continue
            queued.is_held_back = True
            self._locked |= held
            task = asyncio.Task(self._write_held_back(queued), context=Context())
            self._tasks.add(task)
            task.add_done_callback(partial(self._release_locked, queued, held))
        return again

    async def _write_held_back(self, queued: QueuedWrite) -> None:
        attempts, left = 0, [queued]
        while left:
            pause = backoff(attempts, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
            pause = max(min(pause, queued.deadline - monotonic()), 0.0)
            # Its caller's cancellation ends the pause.
            await asyncio.wait([queued.answer], timeout=pause)
            left = self._end_late(left)
            if left and not self._retry_slots.locked():
                async with self._retry_slots:
                    attempts += 1
                    telemetry.count(telemetry.RETRIES, self._storage.database.name)
                    queued.now = self._storage.clock.now()
                    error = await self._commit_part(left, attempts=1)
                    left = await self._settle(left, error)

    def _release_locked(
        self, queued: QueuedWrite, held: set[DocumentId], task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        self._locked -= held
        if not queued.has_ended:  # the loop is being shut down
            queued.answer_caller(asyncio.CancelledError())
        self._is_blocked = False
        self._start_soon()


def _plan(writes: Iterable[QueuedWrite]) -> None:
    """Set which marker each write of a batch expects, given the ones before it."""
    latest: dict[object, Marker] = {}
    for queued in writes:
        key = queued.write.key
        queued.expected, before = queued.known, latest.get(key) or queued.pending.marker
        # Between a commit and the caller's waking up its session's marker is old.
        if before is not None and before.revision > queued.known.revision:
            queued.expected = before
        latest[key] = queued.after = queued.expected.after_append()
