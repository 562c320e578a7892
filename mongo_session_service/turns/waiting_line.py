"""Waiting line: those in one event loop who wait through a service for turns.

They have the turn of a session in the order in which they come. Between services, event
loops and processes there is no order: whoever finds the turn free has it.

One task looks for all who wait in an event loop, about ten times a second and whenever
a turn is released in this process: which of their sessions have a free turn. That takes
one command, however many wait.

Of those who interrupt, in whichever process, only the latest goes on waiting: the field
``turn.interrupter`` of the session's document is its lease's token. It has whoever gets
the turn before it stopped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from mongo_session_service.codec.document_size import cut_by_id_size
from mongo_session_service.codec.record import NEEDS, SessionRecord, unknown_needs
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
from mongo_session_service.storage.lease import lease_is_free
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.tasks import keep_running, wait_at_most

_AT_ONCE: Final = 10
"""Turns that are acquired at the same time, in one event loop."""

INTERRUPTER: Final = "turn.interrupter"


class TurnStatus(NamedTuple):
    """The turn of a stored session."""

    create_time: float
    """The session's."""
    is_free: bool
    epoch: int
    stop: Document | None
    """The reason for which somebody wants it to be stopped, if somebody does."""
    interrupter: str | None
    """The token of the latest one who interrupts."""
    is_known: bool
    """Whether this release may write the session."""


async def load_turn_states(
    storage: Storage, keys: Iterable[SessionKey]
) -> dict[SessionKey, TurnStatus]:
    """Load the turns of those sessions that are stored."""
    visible = queries.visible_filter(storage.clock.now())
    names = ("create_time", NEEDS, "turn.epoch", "turn.stop", INTERRUPTER)
    fields = {**dict.fromkeys(names, 1), "is_free": lease_is_free(storage, "turn.")}
    turns: dict[SessionKey, TurnStatus] = {}
    for some in cut_by_id_size(keys):
        wanted = {"_id": {"$in": [each.id for each in some]}, **visible}
        query = Query("sessions", wanted, then=({"$project": fields},))
        (found,) = await storage.read(query)
        for each in found:
            session = SessionRecord.part(SessionKey(**each["_id"]), each)
            turn = session.turn
            turns[session.key] = TurnStatus(
                session.created,
                each["is_free"],
                turn.get("epoch", 0),
                turn.get("stop"),
                turn.get("interrupter"),
                not unknown_needs(each),
            )
    return turns


class Waiter:
    """One caller in the line."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        """That of one who interrupts."""
        self.create_time: float | None = None
        """The session's; one that is deleted and created again has another line."""
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
        self._lines: dict[SessionKey, list[Waiter]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._has_to_check = asyncio.Event()
        self.acquiring = asyncio.Semaphore(_AT_ONCE)
        """Held while a turn is acquired. The answer to more at once may come late: each
        that has a turn works in this event loop, before those are read that follow."""
        self._arrivals = WeakValueDictionary[SessionKey, asyncio.Lock]()

    def arrival(self, key: SessionKey) -> asyncio.Lock:
        """Return the lock that each caller holds until it has a turn or is in the line.

        So they come in order: the server may do what was sent later first.
        """
        return self._arrivals.setdefault(key, asyncio.Lock())

    def has_waiters(self, key: SessionKey) -> bool:
        return key in self._lines

    @contextmanager
    def join(self, key: SessionKey, token: str | None) -> Iterator[Waiter]:
        """Wait in the line, for as long as the block lasts."""
        waiter = Waiter(token)
        line = self._lines.setdefault(key, [])
        line.append(waiter)
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
                del self._lines[key]
            if not self._lines:
                self._checking = None
            self.check_turns()

    def check_turns(self) -> None:
        """Check the turns now: one was released in this process."""
        self._has_to_check.set()

    def fail_all(self, error: Exception | None = None) -> None:
        """Fail all waiters; without another error, because the service was closed."""
        for line in self._lines.values():
            for each in line:
                each.wake(error or service_closed_error())

    async def _keep_checking(self) -> None:
        task = asyncio.current_task()
        while self._checking is task:
            self._has_to_check.clear()
            try:
                await self._call_waiters()
            except StorageUnavailableError:
                pass  # it looks again soon
            except MongoSessionServiceError as error:
                self.fail_all(error)
            # So that no process is always the first to look.
            chance = random.uniform(0.5, 1.5)  # noqa: S311  no secret
            pause = self._storage.limits.turn_poll_seconds * chance
            await wait_at_most(pause, self._has_to_check)

    async def _call_waiters(self) -> None:
        """Wake who is first in line for a free turn, or interrupts one that runs."""
        lines = {key: [*line] for key, line in self._lines.items()}
        turns = await load_turn_states(self._storage, lines)
        for key, line in lines.items():
            turn = turns.get(key)
            for each in line:
                if turn is not None and each.create_time is None:
                    each.create_time = turn.create_time
                is_own = turn is not None and turn.create_time == each.create_time
                if turn is None or not is_own or not turn.is_known:
                    each.wake(await missing_session_error(self._storage, key))
                elif each.token is not None and each.token != turn.interrupter:
                    each.wake(turn_interrupted_error(key.session_id))
                elif turn.is_free and each is line[0]:
                    each.wake()
                elif not turn.is_free and each.token is not None and turn.stop is None:
                    each.wake(is_free=False)
