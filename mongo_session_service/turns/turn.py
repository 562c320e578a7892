"""Turn: the exclusive right to work on a session, held for the body of a statement."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.session import Session

from mongo_session_service.backend import Backend, Backends, forget_closed_loops
from mongo_session_service.codec.adk_session import to_session
from mongo_session_service.driver.cancellation import running_loop, uninterrupted
from mongo_session_service.errors import (
    MongoSessionServiceError,
    quoted,
    session_not_found_error,
)
from mongo_session_service.feed.calls import Calls
from mongo_session_service.model.records import Hold
from mongo_session_service.sessions.turns import Claim, first_waiters
from mongo_session_service.telemetry import Operation
from mongo_session_service.turns.queue import Called, Queue
from mongo_session_service.turns.renewal import Renewer

if TYPE_CHECKING:
    from mongo_session_service.feed.feed import Feed
    from mongo_session_service.model.records import SessionKey

logger = logging.getLogger(__name__)

_held: ContextVar[tuple[Turn, ...]] = ContextVar("turns", default=())
"""The turns in whose bodies the running code is."""

_FAREWELL: Final = 5.0
"""Seconds to release a turn, which expires by itself soon after."""

_NESTED: Final = (
    "The turn of session {} is held here already, so that a second one would wait for"
    " itself. Use the Session of the first."
)


class Turns:
    """The turns of one service."""

    def __init__(self, backends: Backends, feed: Feed, database_name: str) -> None:
        self.backends = backends
        self.database_name = database_name
        self._feed = feed
        self._queues: dict[asyncio.AbstractEventLoop, Queue] = {}
        self.renewer = Renewer()

    def __reduce__(self) -> tuple[type[Turns], tuple[Backends, Feed, str]]:
        # No turn is held where it is unpickled.
        return type(self), (self.backends, self._feed, self.database_name)

    def held(self, key: SessionKey) -> Turn | None:
        """The turn of a session in whose body the caller is."""
        for each in _held.get():
            if each.key == key and each.turns is self and not each.is_over:
                return each
        return None

    def queue(self, backend: Backend) -> Queue:
        """Those who wait in the running event loop."""
        loop = running_loop()
        queue = self._queues.get(loop)
        if queue is None:
            forget_closed_loops(self._queues)
            queue = Queue(backend.connection, lambda: Calls(self._feed))
            self._queues[loop] = queue
        return queue

    def close(self) -> None:
        """Let nobody wait any longer."""
        queues, self._queues = self._queues, {}
        for loop, queue in queues.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(queue.close)
        self.renewer.stop()


class Turn:
    """A turn of a session: an async context manager that gives it as it is then."""

    def __init__(self, turns: Turns, key: SessionKey, wait: float | None) -> None:
        self.turns = turns
        self.key = key
        self.token = uuid.uuid4().hex
        self.epoch = 0
        """Which turn of the session it is; 0 before it was taken."""
        self.hold: Hold | None = None
        """What an append within it expects."""
        self.is_over = True
        """Whether it is not held: not yet, or not any more."""
        self.renewed_at = 0.0
        """When it was renewed last, on the monotonic clock."""
        self._limit = math.inf if wait is None else wait
        self._ticket: int | None = None
        """Its place in the queue, while it has one."""

    @property
    def is_abandoned(self) -> bool:
        """Whether its event loop was closed under it."""
        return self._loop.is_closed()

    async def __aenter__(self) -> Session:
        app_name, _, session_id = self.key
        backends = self.turns.backends
        if self.turns.held(self.key) is not None:
            raise MongoSessionServiceError(_NESTED.format(quoted(session_id)))
        self.epoch = 0
        self._loop = running_loop()
        self._started = time.monotonic()
        with Operation("turn", self.turns.database_name, app_name):
            async with backends.call() as backend:
                self.connection = backend.connection
                self._claim = Claim(backend.connection, self.key, self.token)
                try:
                    session = await self._begin(backend)
                except BaseException:
                    await self._end()
                    raise
        _held.set((*_held.get(), self))
        return session

    async def __aexit__(self, *_: object) -> None:
        await self._end()
        _held.set(tuple(each for each in _held.get() if not each.is_over))

    async def _begin(self, backend: Backend) -> Session:
        """Take the turn, and load the session as it is then.

        Raises:
            TimeoutError: the caller does not wait for as long.
            SessionNotFoundError: the session is not stored.
        """
        if self._limit:
            try:
                limit = None if self._limit == math.inf else self._left
                async with asyncio.timeout(limit) as timer:
                    await self._take_in_line(self.turns.queue(backend))
            except TimeoutError:
                if not timer.expired():
                    raise
        elif not await self._take(is_first=False) and await self._is_first():
            await self._take(is_first=True)  # those who waited have died
        if not self.epoch:
            raise await self._busy()
        self.is_over = False
        self.turns.renewer.add(self)
        loading = backend.store.load_session(self.key)
        stored, _ = await asyncio.gather(loading, self._leave())
        if stored is None:
            raise session_not_found_error(self.key.session_id)
        self.hold = Hold(self.epoch, stored.marker.create_time)
        return to_session(stored)

    @property
    def _left(self) -> float:
        """Seconds that the caller still waits."""
        return max(self._started + self._limit - time.monotonic(), 0.0)

    async def _take(self, *, is_first: bool) -> bool:
        """Try to take the turn; whatever else happens, ``epoch`` tells the outcome."""

        async def take() -> None:
            self.renewed_at = time.monotonic()
            limit = self._left
            self.epoch = await self._claim.take(is_first=is_first, limit=limit) or 0

        await uninterrupted(take())
        return bool(self.epoch)

    async def _take_in_line(self, queue: Queue) -> None:
        """Take the turn once all who came before have had theirs."""
        async with queue.arrival(self.key):
            if not queue.has_line(self.key) and await self._take(is_first=False):
                return
            await uninterrupted(self._queue_up())
            place = queue.place(self.key, self._ticket or 0)
        with place as called:
            await self._take_when_called(called)

    async def _take_when_called(self, called: Called) -> None:
        # It may have been released before this caller was in line.
        if "holder" not in await self._claim.look() and await self._is_first():
            called.set()
        while True:
            await called.wait()
            called.clear()
            if called.error is not None:
                raise called.error
            if await self._take(is_first=True):
                return
            await self._claim.look()  # raises if the session was deleted

    async def _is_first(self) -> bool:
        """Whether nobody is before this caller."""
        first = await first_waiters(self.connection, [self.key])
        ticket = first.get(self.key)
        return ticket is None or ticket == self._ticket

    async def _queue_up(self) -> None:
        self._ticket = await self._claim.draw()
        await self._claim.queue_up(self._ticket)

    async def _leave(self) -> None:
        if self._ticket is not None:
            await self._claim.leave(self._ticket)
            self._ticket = None

    async def _busy(self) -> TimeoutError:
        """The error that says who has the turn."""
        turn = await self._claim.look()
        who = "others wait for its turn as well"
        if holder := turn.get("holder"):
            since = f"{turn['since']:%Y-%m-%d %H:%M:%S} UTC"
            where = f"process {holder['pid']} on host {holder['host']}"
            who = f"{where} has had its turn since {since}"
        return TimeoutError(
            f"Session {quoted(self.key.session_id)} was not free within"
            f" {self._limit:g} seconds: {who}. Try again, or wait for longer with"
            " turn(wait=...)."
        )

    async def _end(self) -> None:
        """Release the turn, leave the queue, and call who is next."""
        self.is_over = True
        self.turns.renewer.discard(self)
        try:
            with suppress(SessionNotFoundError):  # it was deleted, and its turn with it
                await uninterrupted(self._let_go())
        except (MongoSessionServiceError, TimeoutError) as error:
            logger.warning("A turn was not released, and expires by itself. %s", error)

    async def _let_go(self) -> None:
        async with (
            asyncio.timeout(_FAREWELL),
            # Perhaps with another client: the body may have closed the service.
            self.turns.backends.call(sets_up=False) as backend,
        ):
            self._claim = replace(self._claim, connection=backend.connection)
            has_waited = self._ticket is not None
            turn = await self._claim.release()
            await self._leave()
            if turn is None and has_waited:
                turn = await self._claim.look()
            called = turn and await self._claim.call_next(turn)
            if called:
                self.turns.queue(backend).call(self.key, called)
