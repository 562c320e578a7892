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
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final

from .database import uninterrupted
from .errors import StorageUnavailableError
from .records import Append, Marker, NewSession, Planned
from .store import RefusedError, SessionStore
from .translation import translated

MAX_WRITES: Final = 128
"""Writes per transaction: more gain little, and lose more to a conflict."""

MAX_BATCHES: Final = 2
"""Under way at the same time: this process and the server are both busy with two."""

WORTH_HALVING: Final = 16
"""Writes that go as two batches, if they can, where none is under way."""

MAX_BYTES: Final = 8_000_000
"""Of events and state per transaction; a larger write goes alone."""

MAX_WAITING: Final = 4096
"""Writes waiting per event loop, beyond which callers wait before they queue."""


@dataclass(eq=False, slots=True)
class Caller:
    """Someone who waits for a write."""

    write: Append | NewSession
    session: object
    """Whose revision it is: appends through one ``Session`` follow each other."""
    expected: Callable[[], Marker]
    """What the caller's session is at, asked when it is the write's turn."""
    stored: Callable[[Marker], Awaitable[None]]
    """Told what the session is at now, before anyone else's turn."""
    done: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @classmethod
    def creating(cls, session: NewSession) -> Caller:
        """Someone who creates a session, and has none yet to be told of."""

        async def stored(_: Marker) -> None:
            pass

        return cls(session, session, lambda: session.expected, stored)


def documents(write: Append | NewSession) -> list[tuple[str, ...]]:
    """What a write changes that others may want to change as well, as tuples of ids."""
    app_name, user_id, _ = write.key
    changed: list[tuple[str, ...]] = [write.key]
    if write.delta.app:
        changed.append((app_name,))
    if write.delta.user:
        changed.append((app_name, user_id))
    return changed


def take_batch(
    waiting: deque[Caller], most: int, busy: AbstractSet[tuple[str, ...]] = frozenset()
) -> list[Caller]:
    """Take the callers whose writes can go together, in order, off the queue.

    None of them changes what is ``busy``. Appends to one session go together only
    through one ``Session`` object: another copy's expectation cannot be judged before
    these are stored.
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
        if is_next and fits and busy.isdisjoint(documents(caller.write)):
            batch.append(caller)
            size += caller.write.size
        else:
            left.append(caller)
            sessions[key] = None  # and so nobody overtakes it
    waiting.extendleft(reversed(left))
    return batch


def halves(batch: list[Caller]) -> list[list[Caller]]:
    """A batch as two that can be under way together, if it can be two."""
    middle = len(batch) // 2
    one, other = batch[:middle], batch[middle:]
    busy = {each for caller in one for each in documents(caller.write)}
    is_free = all(busy.isdisjoint(documents(caller.write)) for caller in other)
    return [one, other] if is_free else [batch]


def plan(batch: Iterable[Caller]) -> list[Planned]:
    """The revision each write of a batch expects, given the ones before it."""
    planned: list[Planned] = []
    latest: dict[object, Marker] = {}
    for caller in batch:
        key = caller.write.key
        before = latest.get(key)
        expected = caller.expected() if before is None else before
        planned.append(Planned(caller.write, expected))
        latest[key] = expected.next()
    return planned


class Committer:
    """The one writer of sessions and events in an event loop."""

    def __init__(self, store: SessionStore, *, together: bool) -> None:
        self._store = store
        self._most = MAX_WRITES if together else 1
        self._most_batches = MAX_BATCHES if together else 1
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._waiting: deque[Caller] = deque()
        self._under_way: dict[asyncio.Task[None], list[Caller]] = {}
        self._busy: set[tuple[str, ...]] = set()
        self._is_blocked = False
        self._is_starting = False

    async def commit(self, caller: Caller) -> None:
        """Return when the caller's write is committed by a majority.

        A cancelled caller whose turn has not come withdraws; else its write is
        finished before the cancellation is raised, so that its outcome is known.

        Raises:
            What :meth:`SessionStore.commit` and :meth:`SessionStore.explain` raise for
            this write; others are not affected.
        """
        async with self._room:
            self._waiting.append(caller)
            self._start_soon()
            try:
                await asyncio.shield(caller.done)
            except asyncio.CancelledError:
                if caller in self._waiting:
                    self._waiting.remove(caller)
                    caller.done.cancel()
                    raise
                with suppress(Exception):  # of no interest to who was cancelled
                    await uninterrupted(caller.done)
                raise

    def _start_soon(self) -> None:
        """Start batches once all who are about to come have come."""
        if not self._is_starting:
            self._is_starting = True
            # Not in the caller's context: its deadlines are not everyone's.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._start, context=Context())

    def _start(self) -> None:
        """Start what can be; a second batch if it is no smaller than the first.

        Few would pay for a transaction of their own what they gain by not waiting.
        """
        self._is_starting = False
        while (
            self._waiting
            and not self._is_blocked
            and len(self._under_way) < self._most_batches
            and len(self._waiting) >= sum(map(len, self._under_way.values()))
        ):
            batch = take_batch(self._waiting, self._most, self._busy)
            self._is_blocked = not batch
            is_alone = not self._waiting and not self._under_way
            if is_alone and len(batch) >= WORTH_HALVING:
                parts = halves(batch)
            else:
                parts = [batch] if batch else []
            for part in parts:
                self._busy.update(*(documents(each.write) for each in part))
                self._under_way[asyncio.create_task(self._run(part))] = part

    async def _run(self, batch: list[Caller]) -> None:
        task = asyncio.current_task()
        assert task  # noqa: S101  for the type checker
        try:
            await self._commit(batch)
        finally:
            # Only when the loop is being shut down is anyone still waiting here.
            for caller in batch:
                caller.done.cancel()
            del self._under_way[task]
            self._busy.difference_update(*(documents(each.write) for each in batch))
            self._is_blocked = False
            self._start_soon()

    async def _commit(self, batch: list[Caller]) -> None:
        """Commit a batch; if it is refused, find out whose fault it is by halves."""
        planned = plan(batch)
        try:
            with translated():
                await self._store.commit(planned)
        except StorageUnavailableError as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001  told to whom it concerns
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._commit(batch[:middle])
                await self._commit(batch[middle:])
            elif isinstance(error, RefusedError):
                await self._explain(batch[0], planned[0])
            else:
                _fail(batch, error)
        else:
            for caller, each in zip(batch, planned, strict=True):
                await _tell(caller, each.expected.next())

    async def _explain(self, caller: Caller, planned: Planned) -> None:
        try:
            with translated():
                revision = await self._store.explain(caller.write)
        except Exception as error:  # noqa: BLE001  as above
            _fail([caller], error)
            return
        if revision == planned.expected.revision + 1:
            await _tell(caller, planned.expected.next())
        else:
            # The session knows this event from before, or is stale in any case.
            caller.done.set_result(None)


async def _tell(caller: Caller, marker: Marker) -> None:
    try:
        await caller.stored(marker)
    except Exception as error:  # noqa: BLE001  the caller's, and not its neighbours'
        _fail([caller], error)
    else:
        caller.done.set_result(None)


def _fail(batch: list[Caller], error: Exception) -> None:
    for caller in batch:
        # One each: an exception collects the traceback of whoever raises it.
        caller.done.set_exception(copy.copy(error))
