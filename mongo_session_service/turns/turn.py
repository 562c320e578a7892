"""Turn: the exclusive right to work on a session, held for the body of a statement."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import Final

from google.adk.sessions.session import Session

from mongo_session_service.backend import Backend, Backends, forget_closed_loops
from mongo_session_service.codec.adk_session import to_session
from mongo_session_service.driver.cancellation import running_loop, uninterrupted
from mongo_session_service.driver.lease import Lease, LeaseRenewer
from mongo_session_service.errors import (
    MongoSessionServiceError,
    quoted,
    session_not_found_error,
)
from mongo_session_service.model.records import Hold, SessionKey
from mongo_session_service.telemetry import Operation
from mongo_session_service.turns import tickets
from mongo_session_service.turns.tickets import Ticket
from mongo_session_service.turns.waiting_line import WaitingLine

logger = logging.getLogger(__name__)

_held: ContextVar[tuple[Turn, ...]] = ContextVar("turns", default=())
"""The turns in whose bodies the running code is."""

_NESTED: Final = (
    "The turn of session {} is held here already, so that a second one would wait for"
    " itself. Use the Session of the first."
)


class Turns:
    """The turns of one service."""

    def __init__(
        self, backends: Backends, renewer: LeaseRenewer, database_name: str
    ) -> None:
        self.backends = backends
        self.renewer = renewer
        self.database_name = database_name
        self._lines: dict[asyncio.AbstractEventLoop, WaitingLine] = {}

    def __reduce__(self) -> tuple[type[Turns], tuple[Backends, LeaseRenewer, str]]:
        # No turn is held where it is unpickled.
        return type(self), (self.backends, self.renewer, self.database_name)

    def held_turn(self, key: SessionKey) -> Turn | None:
        """The turn of a session in whose body the caller is."""
        for each in _held.get():
            if each.key == key and each.turns is self and each.is_held:
                return each
        return None

    def waiting_line(self, backend: Backend) -> WaitingLine:
        """Those who wait in the running event loop."""
        loop = running_loop()
        line = self._lines.get(loop)
        if line is None:
            forget_closed_loops(self._lines)
            line = self._lines[loop] = WaitingLine(backend.connection)
        return line

    def announce_release(self) -> None:
        """Have all who wait in this process look now."""
        for loop, line in list(self._lines.items()):
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(line.look)

    def close(self) -> None:
        """Let nobody wait any longer."""
        lines, self._lines = self._lines, {}
        for loop, line in lines.items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(line.fail_all)


class Turn:
    """A turn of a session: an async context manager that gives it as it is then."""

    def __init__(self, turns: Turns, key: SessionKey, wait: float | None) -> None:
        self.turns = turns
        self.key = key
        self.hold: Hold | None = None
        """What an append within it expects: the fence."""
        self.is_held = False
        self._limit = math.inf if wait is None else wait
        self._ticket: Ticket | None = None
        """Its place in the line, while it has one."""

    def note_append(self, started: float) -> None:
        """Note an append in its body, which has renewed it."""
        self._lease.renewed_at = started

    async def __aenter__(self) -> Session:
        app_name, _, session_id = self.key
        if self.turns.held_turn(self.key) is not None:
            raise MongoSessionServiceError(_NESTED.format(quoted(session_id)))
        self._started = time.monotonic()
        with Operation("turn", self.turns.database_name, app_name):
            async with self.turns.backends.call() as backend:
                at = backend.connection
                self._lease = Lease(at, at.sessions.name, self.key.id, "turn.")
                try:
                    session = await self._begin_turn(backend)
                except BaseException:
                    await self._end_turn()
                    raise
        _held.set((*_held.get(), self))
        return session

    async def __aexit__(self, *_: object) -> None:
        await self._end_turn()
        _held.set(tuple(each for each in _held.get() if each.is_held))

    async def _begin_turn(self, backend: Backend) -> Session:
        """Acquire the turn, and load the session as it is then.

        Raises:
            TimeoutError: the caller does not wait for as long.
            SessionNotFoundError: the session is not stored.
        """
        if not self._limit:
            await self._try_once()
        else:
            limit = None if self._limit == math.inf else self._seconds_left
            try:
                async with asyncio.timeout(limit) as timer:
                    await self._wait_in_line(self.turns.waiting_line(backend))
            except TimeoutError:
                if not timer.expired():
                    raise
        if not self._lease.epoch:
            raise await self._busy_error()
        self.is_held = True
        self.turns.renewer.add_lease(self._lease)
        loading = backend.store.load_session(self.key)
        stored, _ = await asyncio.gather(loading, self._return_ticket())
        if stored is None:
            raise session_not_found_error(self.key.session_id)
        self.hold = Hold(self._lease.epoch, stored.marker.create_time)
        return to_session(stored)

    @property
    def _seconds_left(self) -> float:
        """Seconds that the caller still waits."""
        return max(self._started + self._limit - time.monotonic(), 0.0)

    async def _acquire(self, ticket: Ticket | None = None) -> bool:
        """Acquire the turn if it is free, and not awaited by those with a ticket."""
        where = tickets.visible_session(self.key)
        if ticket is None:
            where["turn.is_awaited"] = None
        turn = await self._lease.acquire(where, self._seconds_left)
        if turn is not None and ticket and turn["ticket"] == ticket.number:
            await uninterrupted(tickets.end_line(self._lease.connection, ticket))
        return turn is not None

    async def _try_once(self) -> None:
        if await self._acquire():
            return
        at, key = self._lease.connection, self.key
        turn = (await tickets.find_turns(at, [key])).get(key)
        if turn and turn.is_free and not await tickets.first_tickets(at, [key]):
            await self._acquire(await self._draw_ticket())  # all who waited have died

    async def _wait_in_line(self, line: WaitingLine) -> None:
        """Acquire the turn once all who came before have had theirs."""
        async with line.arrival(self.key):
            if not line.has_waiters(self.key) and await self._acquire():
                return
            ticket = await self._draw_ticket()
        with line.join(ticket) as waiter:
            while not self._lease.epoch:
                await waiter.called()
                await self._acquire(ticket)

    async def _draw_ticket(self) -> Ticket:
        async def draw() -> Ticket:
            self._ticket = await tickets.draw_ticket(self._lease.connection, self.key)
            return self._ticket

        return await uninterrupted(draw())

    async def _return_ticket(self) -> None:
        if self._ticket is not None:
            await tickets.return_ticket(self._lease.connection, self._ticket)
            self._ticket = None

    async def _busy_error(self) -> TimeoutError:
        """The error that says who has the turn.

        Raises:
            SessionNotFoundError: the session is not stored.
        """
        sessions = self._lease.connection.sessions
        session = await sessions.find_one(
            tickets.visible_session(self.key), {"turn": 1}
        )
        if session is None:
            raise session_not_found_error(self.key.session_id)
        turn = session.get("turn", {})
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

    async def _end_turn(self) -> None:
        """Release the turn, and leave the line."""
        self.is_held = False
        self.turns.renewer.discard_lease(self._lease)
        try:
            await uninterrupted(self._release_turn())
        except (MongoSessionServiceError, TimeoutError) as error:
            logger.warning("A turn was not released, and expires by itself. %s", error)
        finally:
            self.turns.announce_release()

    async def _release_turn(self) -> None:
        # Perhaps with another client: the body may have closed the service.
        async with self.turns.backends.call(sets_up=False) as backend:
            self._lease.connection = backend.connection
            await self._lease.release()
            await self._return_ticket()
