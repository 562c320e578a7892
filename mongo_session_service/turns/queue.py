"""Turn queue: those in one event loop who wait for the turns of sessions.

One task serves all of them: it renews their documents, receives the calls of the
change feed, and wakes whoever is first in line now and then, since the holder of a turn
may have died. Without a feed it looks more often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakValueDictionary

from pymongo.errors import PyMongoError

from mongo_session_service.driver.cancellation import background
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import is_passing
from mongo_session_service.errors import (
    MongoSessionServiceError,
    session_not_found_error,
)
from mongo_session_service.feed.calls import Calls
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import turns

LOOK_EVERY: Final = 1.0
"""Seconds between looks at who is first in line."""

POLL_EVERY: Final = 0.1
"""The same where there is no feed."""

_RENEW_EVERY: Final = 2.0  # seconds


class Called(asyncio.Event):
    """Is set when a waiter may take its turn, or has to give up."""

    error: Exception | None = None
    """Why it has to."""


class Queue:
    """Those in one event loop who wait."""

    def __init__(self, connection: Connection, listen: Callable[[], Calls]) -> None:
        """Nobody waits yet; ``listen`` gives a subscription to the feed."""
        self._connection = connection
        self._listen = listen
        self._lines: dict[SessionKey, dict[int, Called]] = {}
        """Who waits, by session and ticket."""
        self._serving: asyncio.Task[None] | None = None
        self._calls: Calls | None = None
        self._arrivals: WeakValueDictionary[SessionKey, asyncio.Lock]
        self._arrivals = WeakValueDictionary()

    def arrival(self, key: SessionKey) -> asyncio.Lock:
        """What each caller holds until it has a turn or a ticket.

        So they get them in the order in which they come: the server may do what was
        sent later first.
        """
        return self._arrivals.setdefault(key, asyncio.Lock())

    def has_line(self, key: SessionKey) -> bool:
        """Whether anybody waits for a session's turn here."""
        return key in self._lines

    @contextmanager
    def place(self, key: SessionKey, ticket: int) -> Iterator[Called]:
        """A place in the queue.

        Who has the same ticket already waits for a session of this id that was deleted.
        """
        line = self._lines.setdefault(key, {})
        if outlived := line.get(ticket):
            outlived.error = session_not_found_error(key.session_id)
            outlived.set()
        called = line[ticket] = Called()
        if self._serving is None:
            self._serving = background(self._serve())
        try:
            yield called
        finally:
            if line.get(ticket) is called:
                del line[ticket]
            if not line and self._lines.get(key) is line:
                del self._lines[key]
            if not self._lines:
                self._serving = None
                if self._calls is not None:
                    self._calls.close()

    def call(self, key: SessionKey, ticket: int) -> None:
        """Wake a waiter, if it is one of this event loop."""
        if called := self._lines.get(key, {}).get(ticket):
            called.set()

    def close(self) -> None:
        """Let nobody wait any longer: the service was closed."""
        self._end(MongoSessionServiceError("The service was closed meanwhile."))

    def _end(self, error: Exception) -> None:
        for called in self._all().values():
            called.error = error
            called.set()

    def _all(self) -> dict[tuple[SessionKey, int], Called]:
        lines = self._lines.items()
        return {(key, each): line[each] for key, line in lines for each in line}

    async def _serve(self) -> None:
        task = asyncio.current_task()
        calls = await self._opened()
        if self._serving is task:
            self._calls = calls
        looked_at = renewed_at = 0.0
        clock = asyncio.get_running_loop().time
        try:
            while self._serving is task:
                try:
                    if clock() >= renewed_at + _RENEW_EVERY:
                        renewed_at = clock()
                        await turns.renew_waiters(self._connection, self._all())
                    await self._wake_first()
                except PyMongoError as error:
                    if not is_passing(error):
                        self._end(error)
                looked_at = clock()
                if calls is None:
                    await asyncio.sleep(POLL_EVERY)
                elif not await self._relay(calls, looked_at + LOOK_EVERY):
                    calls = None
        finally:
            if calls is not None:
                calls.close()

    async def _opened(self) -> Calls | None:
        """A subscription to calls; None where there is no feed."""
        if not self._connection.has_transactions:
            return None
        with suppress(MongoSessionServiceError):  # of which subscribers are told
            return await self._listen().__aenter__()
        return None

    async def _relay(self, calls: Calls, until: float) -> bool:
        """Wake those who are called, for a while; False if the feed has ended."""
        try:
            while (called := await calls.next(until)) is not None:
                self.call(called.key, called.ticket)
        except TimeoutError:
            pass
        except (StopAsyncIteration, MongoSessionServiceError):
            return False
        return True

    async def _wake_first(self) -> None:
        keys = await turns.unheld(self._connection, self._lines.keys())
        first = await turns.first_waiters(self._connection, keys)
        for (key, ticket), called in self._all().items():
            # One whose own document was removed is first if nobody is before it.
            if key in keys and first.get(key, ticket) >= ticket:
                called.set()
