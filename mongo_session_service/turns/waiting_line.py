"""Waiting line: those in one event loop who wait for the turns of sessions.

One task looks for all of them, ten times a second and whenever a turn is released in
this process: which of their sessions have a free turn, and who is first in line there.
That takes two commands, however many wait. It also renews their tickets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakValueDictionary

from pymongo.errors import PyMongoError

from mongo_session_service.driver.calls import is_passing
from mongo_session_service.driver.cancellation import background
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.supervisor import Supervisor
from mongo_session_service.errors import (
    MongoSessionServiceError,
    session_not_found_error,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.turns.tickets import (
    Ticket,
    first_tickets,
    load_turn_states,
    renew_tickets,
)

_RENEW_EVERY: Final = 2.0  # seconds
_SUPERVISOR: Final = Supervisor("The look for free turns")


_AT_ONCE: Final = 10
"""Turns that are acquired at the same time, in one event loop."""


class Waiter:
    """One caller in the line."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self._is_called = asyncio.Event()
        self._error: Exception | None = None

    async def called(self) -> None:
        """Wait until the turn is free, and nobody is before this caller.

        Raises:
            SessionNotFoundError: the session was deleted.
            MongoSessionServiceError: the service was closed.
        """
        await self._is_called.wait()
        self._is_called.clear()
        if self._error is not None:
            raise self._error

    def call(self, error: Exception | None = None) -> None:
        """Have this caller try to acquire the turn, or fail."""
        self._error = error
        self._is_called.set()


class WaitingLine:
    """The callers in one event loop who wait."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lines: dict[SessionKey, set[Waiter]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self.acquiring = asyncio.Semaphore(_AT_ONCE)
        """Held while a turn is acquired. The answer to more at once may come late: each
        that has a turn works in this event loop, before those are read that follow."""
        self._arrivals: WeakValueDictionary[SessionKey, asyncio.Lock]
        self._arrivals = WeakValueDictionary()

    def arrival(self, key: SessionKey) -> asyncio.Lock:
        """The lock that each caller holds until it has a turn or a ticket.

        So they get them in the order in which they come: the server may do what was
        sent later first.
        """
        return self._arrivals.setdefault(key, asyncio.Lock())

    def has_waiters(self, key: SessionKey) -> bool:
        """Whether anybody waits here for a session's turn."""
        return key in self._lines

    @contextmanager
    def join(self, ticket: Ticket) -> Iterator[Waiter]:
        """Wait in the line, for as long as the block lasts."""
        waiter = Waiter(ticket)
        line = self._lines.setdefault(ticket.key, set())
        line.add(waiter)
        if self._looking is None:
            self._looking = background(_SUPERVISOR.run_task(self._keep_looking))
        self.look()  # the turn may have been released before
        try:
            yield waiter
        finally:
            line.remove(waiter)
            if not line:
                del self._lines[ticket.key]
            if not self._lines:
                self._looking = None
                self.look()

    def look(self) -> None:
        """Look now: a turn was released in this process."""
        self._look.set()

    def fail_all(self) -> None:
        """Let nobody wait any longer: the service was closed."""
        self._fail(MongoSessionServiceError("The service was closed meanwhile."))

    def _fail(self, error: Exception) -> None:
        for each in self._all_waiters():
            each.call(error)

    def _all_waiters(self) -> list[Waiter]:
        return [each for line in self._lines.values() for each in line]

    async def _keep_looking(self) -> None:
        task = asyncio.current_task()
        clock = asyncio.get_running_loop().time
        renewed_at = clock()
        while self._looking is task:
            self._look.clear()
            try:
                if clock() >= renewed_at + _RENEW_EVERY:
                    renewed_at = clock()
                    tickets = [each.ticket for each in self._all_waiters()]
                    await renew_tickets(self._connection, tickets)
                await self._call_first()
            except PyMongoError as error:
                if not is_passing(error):
                    self._fail(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._connection.limits.turn_poll_seconds):
                    await self._look.wait()

    async def _call_first(self) -> None:
        """Call whoever is first in line for a turn that is free."""
        waiters = self._all_waiters()
        turns = await load_turn_states(self._connection, list(self._lines))
        free = [key for key, turn in turns.items() if turn.is_free]
        first = await first_tickets(self._connection, free)
        for each in waiters:
            key, number, create_time = each.ticket
            turn = turns.get(key)
            if turn is None or turn.create_time != create_time:
                each.call(session_not_found_error(key.session_id))
            # One whose own document was removed is first if nobody is before it.
            elif turn.is_free and first.get(key, number) >= number:
                each.call()
