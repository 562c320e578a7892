"""Group commit: writes that wait at the same time are committed together.

A transaction costs a few round trips and one wait for the majority's journals, however
many events it stores. So while one is being committed, further appends and new sessions
wait, and then share the next one. A lone write is committed at once: there is no timer.
Two batches may be in flight if they have no document in common: the server works on one
while this process prepares the other.

A document may be locked by another writer's open transaction. A batch that meets a lock
leaves its place, and is halved until the locked document is known. Its writes are then
retried in a *lane*, in order and in transactions of their own, while all other writes
are committed as usual.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections import deque
from collections.abc import Awaitable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, TypeVar

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time

from mongo_session_service.codec.limits import outgrown
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.errors import (
    DocumentTooLargeError,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from mongo_session_service.model.records import Marker, NewSession, Planned
from mongo_session_service.sessions import batch as storage
from mongo_session_service.sessions import batches
from mongo_session_service.sessions.batches import Caller, DocumentId, SessionCopy
from mongo_session_service.sessions.deletion import ATTEMPTS, remove_expired
from mongo_session_service.sessions.intake import Intake
from mongo_session_service.telemetry import count_retry, note_batch

Result = TypeVar("Result")

MAX_WRITES: Final = 128
"""Writes per transaction: more gain little, and lose more to a conflict."""

MAX_BATCHES: Final = 2
"""Batches in flight: this process and the server are both busy with two."""

MAX_RETRIED: Final = 4
"""Lanes whose transactions are in flight at the same time."""

MAX_RETRIES: Final = 15
"""Transactions per second that all lanes together retry, about."""

_FIRST_PAUSE: Final = 0.01  # seconds
_LONGEST_PAUSE: Final = 1.0  # seconds, while there are few lanes

_LOCKED: Final = (
    "Another writer's transaction has locked a document of this session, or of the"
    " state it shares, for {:g} seconds. Nothing was stored: append again once that"
    " transaction has ended."
)
TOO_LATE: Final = (
    "MongoDB is unavailable: it did not finish a transaction within {:g} seconds."
)


@dataclass(eq=False, slots=True)
class Lane:
    """Writes that are retried in order, until a lock is released."""

    held: DocumentId
    """The locked document; empty as long as it may be any of several."""
    waiting: deque[Caller] = field(default_factory=deque)
    documents: set[DocumentId] = field(default_factory=set)
    """What brings a caller here: the locked document, and each waiting session."""
    pause: float = 0.0
    """Seconds until the next attempt."""
    is_over: bool = False
    awake: asyncio.Event = field(default_factory=asyncio.Event)


class Committer:
    """The one writer of sessions and events in an event loop."""

    def __init__(
        self, connection: Connection, store: storage.BatchStore, *, together: bool
    ) -> None:
        self._connection = connection
        self._store = store
        self._most = MAX_WRITES if together else 1
        self._most_batches = MAX_BATCHES if together else 1
        self._limit = connection.patience
        self.intake = Intake()
        self._waiting: deque[Caller] = deque()
        self._in_flight: list[list[Caller]] = []
        self._lone: Caller | None = None
        """A new session that is stored without a transaction, beside the batches."""
        self._busy: set[DocumentId] = set()
        self._is_blocked = False
        self._lanes: dict[DocumentId, Lane] = {}
        self._lane_slots = asyncio.Semaphore(MAX_RETRIED)
        self._claims: dict[Lane, list[DocumentId]] = {}
        """What lanes need next: batches leave it to them."""
        self._freed = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._expires_at = 0.0  # on the monotonic clock
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, caller: Caller) -> None:
        """Return when the caller's write is committed by a majority.

        If the call is cancelled before its turn, nothing is written; afterwards the
        write is finished before the cancellation is raised, so that its outcome is
        known.

        Raises:
            StorageUnavailableError: the call took ``timeoutMS``, or a minute.
            Exception: what :meth:`SessionStore.commit` and :func:`explain` raise for
                this write; other callers are not affected.
        """
        self._waiting.append(caller)
        self._start_soon()
        self._expire_by(caller.started + self._limit)
        try:
            await caller.is_done.wait()
        except asyncio.CancelledError:
            caller.is_withdrawn = True
            for queue in self._queues():
                if caller in queue:
                    queue.remove(caller)
                    raise
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
        started = time.monotonic()
        async with self.intake.place() as place:
            place.hold(new.size)
            for left in reversed(range(ATTEMPTS)):
                try:
                    await self.commit(Caller(new, place=place, started=started))
                except AlreadyExistsError:
                    now = platform_time.get_time()
                    is_free = await remove_expired(self._connection, new.key, now)
                    if not is_free or not left:
                        raise
                else:
                    return

    async def settled(self) -> None:
        """Return when nothing is in flight, nor retried."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def left(self, caller: Caller | SessionCopy) -> float:
        """Seconds until a call is given up."""
        return caller.started + self._limit - time.monotonic()

    async def reading(
        self, caller: Caller | SessionCopy, read: Awaitable[Result]
    ) -> Result:
        """What a read returns that is part of a call.

        Raises:
            StorageUnavailableError: the call took ``timeoutMS``, or a minute.
        """
        try:
            async with asyncio.timeout(self.left(caller)) as timer:
                return await read
        except TimeoutError:
            if not timer.expired():
                raise
            raise StorageUnavailableError(TOO_LATE.format(self._limit)) from None

    @property
    def _open_lanes(self) -> set[Lane]:
        return {*self._lanes.values()}

    def _start_soon(self) -> None:
        """Start a batch in the next turn of the loop, when all callers have queued."""
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
        first, is_one = batch[0], len(batch) == 1
        if is_one and not self._lone and storage.is_one_document(first.write):
            self._lone = first
        else:
            self._in_flight.append(batch)
        try:
            await self._occupy(batch, None)
        finally:
            if self._lone is first:
                self._lone = None
            else:
                self._in_flight.remove(batch)
            self._unblock()

    async def _occupy(self, batch: list[Caller], lane: Lane | None) -> None:
        """Commit a batch, while no other one changes the same documents."""
        is_over = False
        self._busy.update(*(each.documents for each in batch))
        self._start_soon()  # there may be enough for another
        try:
            await self._commit(batch, lane)
            is_over = True
        finally:
            for caller in () if is_over else batch:  # the loop is being shut down
                if not caller.is_done.is_set():
                    caller.settle(asyncio.CancelledError())
            self._busy.difference_update(*(each.documents for each in batch))
            if self._claims:
                self._freed.set()
                self._freed = asyncio.Event()

    def _unblock(self) -> None:
        self._is_blocked = False
        self._start_soon()

    def _next_batch(self) -> list[Caller]:
        """The next batch; a second one only if it is no smaller than the first.

        A few writes would pay for a transaction of their own what they gain by not
        waiting.
        """
        if self._lanes:
            self._bring_to_lanes()
        in_flight = sum(map(len, self._in_flight))
        if (
            not self._waiting
            or self._is_blocked
            or len(self._in_flight) == self._most_batches
            or len(self._waiting) < in_flight
        ):
            return []
        busy = self._busy.union(*self._claims.values()) if self._claims else self._busy
        batch = batches.take_batch(self._waiting, self._most, busy)
        if not in_flight and len(self._waiting) < len(batch):
            batch, others = batches.halved(batch)
            self._waiting.extendleft(reversed(others))
        self._is_blocked = not batch and bool(in_flight)
        return batch

    async def _commit(self, batch: list[Caller], lane: Lane | None = None) -> None:
        """Commit a batch; if it is refused, find out whose fault it is by halves."""
        batch = self._in_time(batch, TOO_LATE if lane is None else _LOCKED)
        if not batch:
            return self._close(lane)
        planned = batches.plan(batch)
        limit = min(map(self.left, batch))
        attempts = storage.ATTEMPTS if lane is None else 1
        if lane is not None:
            count_retry(self._connection.database.name)
        try:
            with translated():
                await self._store.commit_batch(
                    planned,
                    limit=limit,
                    attempts=attempts,
                    is_lone=batch[0] is self._lone,
                )
        except storage.LockedError as error:
            return self._set_aside(batch, error.length, lane)
        except Exception as error:  # noqa: BLE001  raised by the calls it concerns
            self._close(lane)
            await self._fail(batch, planned, error)
        else:
            self._close(lane)
            if lane is not None:
                self._wake_another()
            for caller, each in zip(batch, planned, strict=True):
                caller.together = len(batch)
                await _tell(caller, each.expected.next())
        return None

    async def _fail(
        self, batch: list[Caller], planned: list[Planned], error: Exception
    ) -> None:
        if isinstance(error, StorageUnavailableError):
            self._give_up(batch, error)
        elif len(batch) > 1:
            middle = len(batch) // 2
            await self._commit(batch[:middle])
            # A session's later writes follow its earlier ones.
            others = self._put_behind(batch[:middle], batch[middle:])
            await self._commit(self._without_followers(others))
        elif isinstance(error, storage.RefusedError):
            await self._explain(batch[0], planned[0])
        elif isinstance(error, DocumentTooLargeError):
            batch[0].settle(outgrown(batch[0].write))
        else:
            batch[0].settle(error)

    def _give_up(self, batch: list[Caller], error: StorageUnavailableError) -> None:
        """End the calls of a batch, or only those whose time limit ended it.

        The others are tried again, even if the outcome is unknown: an append that is
        stored is recognised.
        """
        is_late = any(self.left(each) <= 0 for each in batch)
        is_unknown = isinstance(error, UnknownOutcomeError)
        again = []
        for caller in batch:
            is_new = isinstance(caller.write, NewSession)
            if is_late and self.left(caller) > 0 and not (is_new and is_unknown):
                again.append(caller)
            else:
                if is_late and not is_unknown:
                    error = StorageUnavailableError(TOO_LATE.format(self._limit))
                # One each: an error collects the traceback of every caller raising it.
                caller.settle(copy.copy(error))
        self._waiting.extendleft(reversed(again))

    async def _explain(self, caller: Caller, planned: Planned) -> None:
        try:
            with translated():
                revision = await self._store.explain_refusal(
                    planned,
                    limit=self.left(caller),
                    may_retry=caller.retries > 0,
                )
        except storage.OtherTtlError as error:
            caller.corrected = error.expected
            caller.retries -= 1
            await self._commit([caller])
        except StorageUnavailableError as error:
            self._give_up([caller], error)
        except Exception as error:  # noqa: BLE001  as above
            caller.settle(error)
        else:
            if revision == planned.expected.revision + 1:
                await _tell(caller, planned.expected.next())
            else:
                # The session knows this event from before, or is stale in any case.
                caller.settle()

    def _in_time(
        self, batch: Iterable[Caller], message: str = TOO_LATE
    ) -> list[Caller]:
        """The callers whose writes may still be tried; the calls of the others end."""
        kept = []
        for caller in batch:
            if caller.is_withdrawn:
                caller.settle()
            elif self.left(caller) <= 0:
                text = message.format(self._limit)
                caller.settle(StorageUnavailableError(text))
            else:
                kept.append(caller)
        return kept

    def _queues(self) -> list[deque[Caller]]:
        return [self._waiting, *(lane.waiting for lane in self._open_lanes)]

    def _expire_by(self, moment: float) -> None:
        """End the calls that wait for too long, even if no batch ever ends."""
        if self._expiry is not None:
            if self._expires_at <= moment:
                return
            self._expiry.cancel()
        self._expires_at = moment
        seconds = max(moment - time.monotonic(), 0.0)
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._waiting = deque(self._in_time(self._waiting))
        for lane in self._open_lanes:
            lane.waiting = deque(self._in_time(lane.waiting, _LOCKED))
        waiting = [*chain.from_iterable(self._queues())]
        if waiting or self._tasks:  # whose callers may have to wait again
            started = (each.started for each in waiting)
            self._expire_by(min(started, default=time.monotonic()) + self._limit)

    def _set_aside(self, batch: list[Caller], length: int, lane: Lane | None) -> None:
        """Move writes that met a lock to lanes, and let the others continue.

        Args:
            batch: The callers; nothing of theirs was written.
            length: How many parts the id of the locked document has.
            lane: The lane that they come from.
        """
        batch = self._in_time(batch, _LOCKED)
        if lane is not None and len(lane.held) == length:
            lane.waiting.extendleft(reversed(batch))
            least = max(_FIRST_PAUSE, len(self._open_lanes) / MAX_RETRIES)
            lane.pause = max(min(1.5 * lane.pause, _LONGEST_PAUSE), least)
            return
        groups = batches.by_document(batch, length)
        others = groups.pop((), [])
        several = [*groups]
        held = several[0] if len(several) == 1 else ()
        is_small = len(several) <= 2 * MAX_RETRIED
        parts = len(several) if is_small else MAX_RETRIED
        for first in range(parts):
            part = several[first::parts]
            chosen = {*chain.from_iterable(groups[each] for each in part)}
            self._send(held, [each for each in batch if each in chosen])
        self._close(lane)
        self._waiting.extendleft(reversed(others))

    def _send(
        self, held: DocumentId, callers: list[Caller], lane: Lane | None = None
    ) -> None:
        """Let callers wait in the lane of a locked document, or in one of their own."""
        if not callers:
            return
        lane = lane or (self._lanes.get(held) if held else None)
        if lane is None or lane.held != held:
            lane = Lane(held, pause=_FIRST_PAUSE if held else 0.0)
            task = asyncio.Task(self._retry(lane), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        lane.waiting.extend(callers)
        for caller in callers:
            if caller.place is not None:
                caller.place.set_aside()
        lane.documents |= {each.write.key for each in callers}
        if held:
            lane.documents.add(held)
        self._lanes |= dict.fromkeys(lane.documents, lane)

    def _without_followers(
        self, callers: Iterable[Caller], busy: AbstractSet[DocumentId] = frozenset()
    ) -> list[Caller]:
        """The callers that belong to no lane; the others wait in theirs from now on.

        A caller goes where the earlier ones of its session are. If they are here as
        well, or ``busy``, it stays behind them: they may yet end in another lane.
        """
        kept: list[Caller] = []
        stays: set[DocumentId] = set()
        for caller in callers:
            key = caller.write.key
            documents = [key] if key in stays or key in busy else caller.documents
            lane = next(filter(None, map(self._lanes.get, documents)), None)
            if lane is None:
                kept.append(caller)
                stays.add(key)
            else:
                self._send(lane.held, [caller], lane)
        return kept

    def _put_behind(self, first: list[Caller], second: list[Caller]) -> list[Caller]:
        """Let callers wait behind those of their sessions that are tried again.

        Returns the others.
        """
        again = {*first}.intersection(self._waiting)
        keys = {each.write.key for each in again}
        behind = [each for each in second if each.write.key in keys]
        if behind:
            ahead = [each for each in self._waiting if each in again]
            later = [each for each in self._waiting if each not in again]
            self._waiting = deque([*ahead, *behind, *later])
        return [each for each in second if each.write.key not in keys]

    def _bring_to_lanes(self) -> None:
        self._waiting = deque(self._without_followers(self._waiting, self._busy))

    def _close(self, lane: Lane | None) -> None:
        """End a lane: its lock is released, or is another's concern."""
        if lane is None or lane.is_over:
            return
        lane.is_over = True
        for each in lane.documents:
            if self._lanes.get(each) is lane:
                del self._lanes[each]
        self._waiting.extendleft(reversed(lane.waiting))

    def _wake_another(self) -> None:
        """Retry one more lane: the lock's holder may have held several documents."""
        sleeping = (it for it in self._lanes.values() if not it.awake.is_set())
        if lane := next(sleeping, None):
            lane.awake.set()

    async def _retry(self, lane: Lane) -> None:
        """Try the writes of a lane until they are stored, or their time is over."""
        try:
            while not lane.is_over:
                pause = lane.pause * random.uniform(0.5, 1)  # noqa: S311  no secret
                with suppress(TimeoutError):
                    rest = min(map(self.left, lane.waiting), default=0.0)
                    async with asyncio.timeout(max(min(pause, rest), 0.0)):
                        await lane.awake.wait()
                async with self._lane_slots:
                    lane.awake.set()
                    batch = await self._claim(lane)
                    await self._occupy(batch, lane)
                    lane.awake.clear()
                self._unblock()
        except BaseException:
            for caller in lane.waiting:  # the loop is being shut down
                caller.settle(asyncio.CancelledError())
            raise
        finally:
            self._close(lane)

    async def _claim(self, lane: Lane) -> list[Caller]:
        """The next batch of a lane, once no other batch changes its documents."""
        while True:
            lane.waiting = deque(self._in_time(lane.waiting, _LOCKED))
            batch = batches.take_batch(lane.waiting, self._most, self._busy)
            if batch or not lane.waiting:
                self._claims.pop(lane, None)
                for caller in batch:
                    caller.look_at_the_clock()
                return batch
            self._claims[lane] = lane.waiting[0].documents
            await self._freed.wait()


async def _tell(caller: Caller, marker: Marker) -> None:
    try:
        if caller.copy is not None:
            await caller.copy.show(marker)
    except Exception as error:  # noqa: BLE001  the caller's, and not its neighbours'
        caller.settle(error)
    else:
        caller.settle()
