"""Waiting line: those who wait for the turn of a session, in order of their tickets.

A turn is a lease in the field ``turn`` of the session's document, which has two more
fields once somebody has waited: ``ticket``, the latest number that was drawn, and
``is_awaited`` while somebody may be waiting: then only a waiter acquires the turn.

A waiter has a document in ``leases``, whose ``_id`` is the session's and the number of
the ticket, and renews it as a lease is renewed. Neither revision nor update time of the
session changes, so no loaded ``Session`` becomes stale.

One task looks for all who wait in an event loop, ten times a second and whenever a turn
is released in this process: which of their sessions have a free turn, and who is first
in line there. That takes two commands, however many wait. It also renews their tickets.

Of those who interrupt only the latest goes on waiting; the others fail. It has whoever
gets the turn before it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from mongo_session_service.codec.document_size import cut_by_id_size
from mongo_session_service.codec.record import NEEDS, unknown_needs
from mongo_session_service.errors import (
    MongoSessionServiceError,
    StorageUnavailableError,
    service_closed_error,
    turn_interrupted_error,
)
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.reads import missing_session_error
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import lease_is_free, renewed_at_condition
from mongo_session_service.storage.statements import Delete, Query, Update
from mongo_session_service.storage.tasks import keep_running

_RENEW_EVERY: Final = 2.0  # seconds
_AT_ONCE: Final = 10
"""Turns that are acquired at the same time, in one event loop."""


_NUMBER: Final = "ticket"
"""Extra field of the ``_id`` of a waiter's document, beside its session's."""
_RENEWAL: Final = {"$currentDate": {"renewed_at": True}}


class Ticket(NamedTuple):
    """A place in the line for the turn of a session."""

    key: SessionKey
    number: int
    create_time: float
    """The session's; one that is deleted and created again has another line."""
    interrupts: bool
    """Whether it takes the place of all before it that interrupt as well."""

    @property
    def id(self) -> Document:
        """The ``_id`` of its document."""
        return {**self.key.id, _NUMBER: self.number}


class TurnStatus(NamedTuple):
    """The turn of a stored session."""

    create_time: float
    """The session's."""
    is_free: bool
    epoch: int
    stop: Document | None
    """The reason for which somebody wants it to be stopped, if somebody does."""
    is_known: bool
    """Whether this release may write the session."""


async def draw_ticket(storage: Storage, key: SessionKey, *, interrupts: bool) -> Ticket:
    """Draw a ticket; from now on the turn is acquired in the order of tickets."""
    draw = {"$inc": {"turn.ticket": 1}, "$set": {"turn.is_awaited": True}}
    session = await storage.find_and_update(
        Update("sessions", stored_session_filter(storage, key), draw),
        fields=("turn.ticket", "create_time"),
    )
    if session is None:
        raise await missing_session_error(storage, key)
    number, create_time = session["turn"]["ticket"], session["create_time"]
    ticket = Ticket(key, number, create_time, interrupts)
    new = {**_RENEWAL, "$set": {"interrupts": interrupts}}
    await storage.commit(Update("leases", {"_id": ticket.id}, new, upsert=True))
    return ticket


async def return_ticket(storage: Storage, ticket: Ticket) -> None:
    """Leave the line."""
    await storage.commit(Delete("leases", {"_id": ticket.id}))


async def renew_tickets(storage: Storage, tickets: Iterable[Ticket]) -> None:
    for some in cut_by_id_size(tickets):
        ids = {"_id": {"$in": [each.id for each in some]}}
        await storage.commit(Update("leases", ids, _RENEWAL, many=True))


async def load_turn_states(
    storage: Storage, keys: Iterable[SessionKey]
) -> dict[SessionKey, TurnStatus]:
    """Load the turns of those sessions that are stored."""
    visible = queries.visible_filter(storage.clock.now())
    fields = {
        **dict.fromkeys(("create_time", NEEDS, "turn.epoch", "turn.stop"), 1),
        "is_free": lease_is_free(storage, "turn."),
    }
    turns: dict[SessionKey, TurnStatus] = {}
    for some in cut_by_id_size(keys):
        wanted = {"_id": {"$in": [each.id for each in some]}, **visible}
        query = Query("sessions", wanted, then=({"$project": fields},))
        (found,) = await storage.read(query)
        for each in found:
            turn = each.get("turn", {})
            turns[SessionKey(**each["_id"])] = TurnStatus(
                each["create_time"],
                each["is_free"],
                turn.get("epoch", 0),
                turn.get("stop"),
                not unknown_needs(each),
            )
    return turns


async def load_heads(
    storage: Storage, keys: Iterable[SessionKey]
) -> dict[SessionKey, tuple[int, int]]:
    """Load who is next in the line of each session that has waiters.

    The first number is the lowest of those who are to have the turn, the second that
    of the last one who interrupts, or 0.
    """
    is_alive = {"$expr": renewed_at_condition(storage, "$gte")}
    number = f"$_id.{_NUMBER}"
    group: Document = {
        "_id": {name: f"$_id.{name}" for name in SessionKey._fields},
        "first": {"$min": {"$cond": ["$interrupts", None, number]}},
        "latest": {"$max": {"$cond": ["$interrupts", number, None]}},
    }
    heads: dict[SessionKey, tuple[int, int]] = {}
    for some in cut_by_id_size(keys):
        waiting = {"$or": [_waiters_filter(key) for key in some], **is_alive}
        (found,) = await storage.read(
            Query("leases", waiting, then=({"$group": group},))
        )
        for each in found:
            numbers = [each[name] for name in ("first", "latest") if each[name]]
            heads[SessionKey(**each["_id"])] = min(numbers), each["latest"] or 0
    return heads


async def end_line(storage: Storage, last: Ticket) -> None:
    """Mark the line as empty, unless a ticket was drawn after the last one."""
    silent = {**_waiters_filter(last.key), **_silent_filter(storage)}
    await storage.commit(Delete("leases", silent, many=True))
    own = {"_id": last.key.id, "turn.ticket": last.number}
    await storage.commit(Update("sessions", own, {"$unset": {"turn.is_awaited": ""}}))


async def remove_silent_waiters(storage: Storage) -> None:
    silent = {f"_id.{_NUMBER}": {"$gte": 0}, **_silent_filter(storage)}
    await storage.commit(Delete("leases", silent, many=True))


def stored_session_filter(storage: Storage, key: SessionKey) -> Document:
    return {"_id": key.id, **queries.writable_filter(storage)}


def _waiters_filter(key: SessionKey) -> Document:
    return {"_id": {"$gt": key.id, "$lt": {**key.id, _NUMBER: {}}}}


def _silent_filter(storage: Storage) -> Document:
    """The filter of waiters that have not renewed their documents."""
    return {"$expr": renewed_at_condition(storage, "$lt")}


class Waiter:
    """One caller in the line."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self._is_called = asyncio.Event()
        self._error: Exception | None = None
        self._is_free = False

    async def wait_until_called(self) -> bool:
        """Wait until this caller has something to do; raise what has failed it.

        Returns:
            Whether the turn is free for it. Else it is to stop who has the turn.
        """
        await self._is_called.wait()
        self._is_called.clear()
        if self._error is not None:
            raise self._error
        return self._is_free

    def wake(self, error: Exception | None = None, *, is_free: bool = True) -> None:
        """Wake the caller, to raise the first error or to go for the turn."""
        self._error, self._is_free = self._error or error, is_free
        self._is_called.set()


class WaitingLine:
    """The callers in one event loop that wait for turns."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lines: dict[SessionKey, set[Waiter]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._has_to_check = asyncio.Event()
        self.acquiring = asyncio.Semaphore(_AT_ONCE)
        """Held while a turn is acquired. The answer to more at once may come late: each
        that has a turn works in this event loop, before those are read that follow."""
        self._arrivals: WeakValueDictionary[SessionKey, asyncio.Lock]
        self._arrivals = WeakValueDictionary()

    def arrival(self, key: SessionKey) -> asyncio.Lock:
        """Return the lock that each caller holds until it has a turn or a ticket.

        So they get them in the order in which they come: the server may do what was
        sent later first.
        """
        return self._arrivals.setdefault(key, asyncio.Lock())

    def has_waiters(self, key: SessionKey) -> bool:
        return key in self._lines

    @contextmanager
    def join(self, ticket: Ticket) -> Iterator[Waiter]:
        """Wait in the line, for as long as the block lasts."""
        waiter = Waiter(ticket)
        line = self._lines.setdefault(ticket.key, set())
        line.add(waiter)
        if self._checking is None:
            self._checking = keep_running(
                "The check for free turns", self._keep_checking
            )
        self.check_turns()  # the turn may have been released before
        try:
            yield waiter
        finally:
            line.remove(waiter)
            if not line:
                del self._lines[ticket.key]
            if not self._lines:
                self._checking = None
                self.check_turns()

    def check_turns(self) -> None:
        """Check the turns now: one was released in this process."""
        self._has_to_check.set()

    def fail_all(self) -> None:
        """Fail all waiters: the service was closed."""
        self._fail(service_closed_error())

    def _fail(self, error: Exception) -> None:
        for each in self._all_waiters():
            each.wake(error)

    def _all_waiters(self) -> list[Waiter]:
        return [each for line in self._lines.values() for each in line]

    async def _keep_checking(self) -> None:
        task = asyncio.current_task()
        clock = asyncio.get_running_loop().time
        renewed_at = clock()
        while self._checking is task:
            self._has_to_check.clear()
            try:
                if clock() >= renewed_at + _RENEW_EVERY:
                    renewed_at = clock()
                    tickets = [each.ticket for each in self._all_waiters()]
                    await renew_tickets(self._storage, tickets)
                await self._call_first()
            except StorageUnavailableError:
                pass  # it looks again soon
            except MongoSessionServiceError as error:
                self._fail(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._storage.limits.turn_poll_seconds):
                    await self._has_to_check.wait()

    async def _call_first(self) -> None:
        """Wake who is first in line for a free turn, or interrupts one that runs."""
        waiters = self._all_waiters()
        turns = await load_turn_states(self._storage, list(self._lines))
        asked = {each.ticket.key for each in waiters if each.ticket.interrupts}
        asked |= {key for key, turn in turns.items() if turn.is_free}
        heads = await load_heads(self._storage, asked)
        for each in waiters:
            key, number, create_time, interrupts = each.ticket
            turn = turns.get(key)
            first, latest = heads.get(key, (number, 0))
            if turn is None or turn.create_time != create_time or not turn.is_known:
                each.wake(await missing_session_error(self._storage, key))
            elif interrupts and number < latest:
                each.wake(turn_interrupted_error(key.session_id))
            # One whose own document was removed is first if nobody is before it.
            elif turn.is_free and first >= number:
                each.wake()
            elif not turn.is_free and interrupts and turn.stop is None:
                each.wake(is_free=False)
