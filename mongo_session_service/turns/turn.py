"""Turn: the exclusive right to work on a session, held for the body of a statement."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from mongo_session_service.backend import Backend, Backends
from mongo_session_service.codec.adk_session import to_session
from mongo_session_service.codec.partials import encode_turn
from mongo_session_service.errors import (
    MongoSessionServiceError,
    TurnTakenError,
    quoted,
    session_not_found_error,
    turn_stopped_error,
)
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import (
    SessionKey,
    StoredSession,
    TurnFence,
)
from mongo_session_service.model.results import TurnInfo, TurnPhase
from mongo_session_service.storage.lease import Lease, LeaseRenewer
from mongo_session_service.storage.retries import retry_soon
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.telemetry import ABANDONED_TURNS, Operation, count
from mongo_session_service.turns import turn_status, waiting_line
from mongo_session_service.turns.partial_writer import announce_abandoned
from mongo_session_service.turns.seals import abandoned_seals, with_reason
from mongo_session_service.turns.waiting_line import Ticket, WaitingLine

logger = logging.getLogger(__name__)

_held: ContextVar[tuple[Turn, ...]] = ContextVar("turns", default=())
"""The turns in whose bodies the running code is."""

_DIED: Final = "its process died"
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

    def __reduce__(self) -> tuple[type[Turns], tuple[Backends, LeaseRenewer, str]]:
        # No turn is held where it is unpickled.
        return type(self), (self.backends, self.renewer, self.database_name)

    def held_turn(self, key: SessionKey) -> Turn | None:
        """Find the session's turn that the caller is in; raise if it was stopped."""
        for each in _held.get():
            if each.key == key and each.turns is self:
                if each.is_held:
                    return each
                if each.is_stopped:
                    raise turn_stopped_error(key.session_id)
        return None

    def announce_release(self) -> None:
        """Wake all who wait in this process, to look for free turns."""
        for loop, line in self.backends.parts(WaitingLine).items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(line.look)

    def fail_waiters(self) -> None:
        """Have all who wait for turns fail: the service is closed."""
        for loop, line in self.backends.parts(WaitingLine).items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(line.fail_all)


class Turn:
    """A turn of a session: an async context manager that gives it as it is then."""

    def __init__(self, turns: Turns, key: SessionKey, wait: float | None) -> None:
        self.turns = turns
        self.key = key
        self.fence: TurnFence | None = None
        """The fence: an append within it expects this."""
        self.is_held = False
        self._limit = math.inf if wait is None else wait
        self.abandoned_invocation: str | None = None
        """The invocation that the turn before was running when its process died."""
        self._first_revision = 0
        """The revision of its first event; 0 if it has none."""
        self._since = datetime.min  # noqa: DTZ901  as the driver decodes times
        self._ticket: Ticket | None = None
        """Its place in the line, while it has one."""
        self.is_stopped = False
        """Whether somebody has stopped it; what still runs in it can append nothing."""
        self.stop_reason: str | None = None
        self.has_failed = False
        self.error_type: str | None = None
        """The class of the error that has ended it."""

    @property
    def epoch(self) -> int:
        """How often the turn of this session was acquired, this time included."""
        return self._lease.epoch

    @property
    def is_lost(self) -> bool:
        """Whether a renewal has shown that another caller has taken it over."""
        return self._lease.is_lost

    @property
    def limits(self) -> Limits:
        """The limits of the service."""
        return self._lease.connection.limits

    async def load_own_events(self) -> list[Event]:
        """Load the events that were appended in this turn."""
        async with self.turns.backends.in_call() as backend:
            self._first_revision = await turn_status.first_revision(
                backend.connection, self.key
            )
            return self._own_events(await self._load(backend))

    def note_death(self) -> None:
        """Note that a process has died in it, if that is why the caller has it."""
        if self._lease.replaces_dead:
            self.has_failed, self.stop_reason = True, _DIED

    async def note_resumption(self) -> str | None:
        """Note that the abandoned invocation is resumed; its id, the first time."""
        invocation_id = self.abandoned_invocation
        if invocation_id is not None:
            async with self.turns.backends.in_call() as backend:
                if await turn_status.note_resumption(
                    backend.connection, self.key, invocation_id
                ):
                    return invocation_id
        return None

    async def append_event(self, event: Event) -> None:
        """Append an event at the end of the log, after whatever is there."""
        started = time.monotonic()
        async with self.turns.backends.in_write() as backend:
            end = to_session(await backend.reads.load_end(self.key))
            event = with_reason(event, self.stop_reason)
            await backend.appender.append(
                self.key, end, event, self.fence, started, is_rebasing=True
            )

    def note_append(self, started: float) -> None:
        """Note an append in its body, which has renewed it."""
        self._lease.renewed_at = started

    async def __aenter__(self) -> Session:
        app_name, _, session_id = self.key
        if self.turns.held_turn(self.key) is not None:
            raise MongoSessionServiceError(_NESTED.format(quoted(session_id)))
        self._started = time.monotonic()
        with Operation("turn", self.turns.database_name, app_name, session_id):
            async with self.turns.backends.in_call() as backend:
                connection = backend.connection
                self._lease = Lease(
                    connection, connection.sessions.name, self.key.id, "turn."
                )
                self._client_sessions = backend.connection.client_sessions
                self._line = backend.part(WaitingLine, connection)
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
        """Acquire the turn in time, and load the session as it is then."""
        if not self._limit:
            await self._try_once()
        else:
            limit = None if self._limit == math.inf else self._seconds_left
            try:
                async with asyncio.timeout(limit) as timer:
                    await self._wait_in_line()
            except TimeoutError:
                if not timer.expired():
                    raise
        if not self._lease.epoch:
            raise await self._busy_error()
        self.is_held = True
        self.turns.renewer.add_lease(self._lease)
        stored, _ = await asyncio.gather(self._load(backend), self._return_ticket())
        if self._first_revision:  # whoever had the turn before has not released it
            count(ABANDONED_TURNS, self.turns.database_name)
            own = self._own_events(stored)
            self.abandoned_invocation = own[-1].invocation_id if own else None
            if seals := abandoned_seals(own):
                for seal in seals:
                    await self.append_event(seal)
                stored = await self._load(backend)
            connection = backend.connection
            await announce_abandoned(connection, self.key, self.epoch - 1, self._since)
            await turn_status.forget_first_revision(connection, self.key)
        return to_session(stored)

    async def _load(self, backend: Backend) -> StoredSession:
        stored = await backend.reads.load_session(self.key)
        if stored is None:
            raise session_not_found_error(self.key.session_id)
        self.fence = TurnFence(self._lease.epoch, stored.marker.create_time)
        return stored

    def _own_events(self, stored: StoredSession) -> list[Event]:
        """The events of a session from the first one of this turn on."""
        count = stored.marker.revision - self._first_revision + 1
        return stored.events[-count:] if self._first_revision and count > 0 else []

    @property
    def _seconds_left(self) -> float:
        return max(self._started + self._limit - time.monotonic(), 0.0)

    async def _acquire(self, ticket: Ticket | None = None) -> bool:
        """Acquire the turn if it is free, and not awaited by those with a ticket."""
        self._lease.client_sessions = await self._client_sessions.ids()
        where = waiting_line.stored_session_filter(self._lease.connection, self.key)
        if ticket is None:
            where["turn.is_awaited"] = None
        async with self._line.acquiring:
            turn = await self._lease.acquire(
                where, self._seconds_left, forget=("stop", "ended")
            )
        if turn is not None:
            self._since = turn["since"]
            self._first_revision = turn.get("first_revision", 0)
        if turn is not None and ticket and turn["ticket"] == ticket.number:
            await uninterrupted(waiting_line.end_line(self._lease.connection, ticket))
        return turn is not None

    async def _try_once(self) -> None:
        if await self._acquire():
            return
        connection, key = self._lease.connection, self.key
        turn = (await waiting_line.load_turn_states(connection, [key])).get(key)
        is_free = turn is not None and turn.is_free
        if is_free and not await waiting_line.first_tickets(connection, [key]):
            await self._acquire(await self._draw_ticket())  # all who waited have died

    async def _wait_in_line(self) -> None:
        """Acquire the turn once all who came before have had theirs."""
        line = self._line
        async with line.arrival(self.key):
            if not line.has_waiters(self.key) and await self._acquire():
                return
            ticket = await self._draw_ticket()
        with line.join(ticket) as waiter:
            while not self._lease.epoch:
                await waiter.until_called()
                await self._acquire(ticket)

    async def _draw_ticket(self) -> Ticket:
        async def draw() -> Ticket:
            drawing = waiting_line.draw_ticket(self._lease.connection, self.key)
            self._ticket = await self._lease.write_past_dead_holder(drawing)
            return self._ticket

        return await uninterrupted(draw())

    async def _return_ticket(self) -> None:
        if self._ticket is not None:
            await waiting_line.return_ticket(self._lease.connection, self._ticket)
            self._ticket = None

    async def _busy_error(self) -> TimeoutError:
        """The error that says who has the turn."""
        connection = self._lease.connection
        where = waiting_line.stored_session_filter(connection, self.key)
        session = await retry_soon(connection.sessions.find_one, where, {"turn": 1})
        if session is None:
            raise session_not_found_error(self.key.session_id)
        turn = session.get("turn", {})
        who = "others wait for its turn as well"
        if holder := turn.get("holder"):
            since = f"{turn['since']:%Y-%m-%d %H:%M:%S} UTC"
            process = f"process {holder['pid']} on host {holder['host']}"
            who = f"{process} has had its turn since {since}"
        return TurnTakenError(
            f"Session {quoted(self.key.session_id)} was not free within"
            f" {self._limit:g} seconds: {who}. Try again, or wait for longer with"
            " turn(wait=...)."
        )

    async def _end_turn(self) -> None:
        self.is_held = False
        self.turns.renewer.discard_lease(self._lease)
        try:
            await uninterrupted(self._release_turn())
        except (MongoSessionServiceError, TimeoutError) as error:
            what = "turn was not released" if self._lease.epoch else "ticket is left"
            logger.warning("A %s, and expires by itself. %s", what, error)
        finally:
            self.turns.announce_release()

    def turn_info(self, status: TurnPhase | None = None) -> TurnInfo:
        """The turn with this status; by default that with which it ends."""
        ended: TurnPhase = "failed" if self.has_failed else "ended"
        return TurnInfo(
            *self.key,
            epoch=self.epoch,
            status=status or ("stopped" if self.is_stopped else ended),
            since=self._since.replace(tzinfo=UTC),
            host=socket.gethostname(),
            reason=self.stop_reason,
            error_type=self.error_type,
        )

    async def _release_turn(self) -> None:
        # Perhaps with another client: the body may have closed the service.
        async with self.turns.backends.in_call() as backend:
            self._lease.connection = backend.connection
            ended = encode_turn(self.turn_info())
            await self._lease.release_lease(ended, forget=("stop", "first_revision"))
            await self._return_ticket()
