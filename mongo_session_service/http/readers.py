"""Readers: clients over HTTP, and what is held for them until they have taken it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from starlette.types import Message, Send

from mongo_session_service.model.limits import Limits

_POLL: Final = 0.05  # seconds


class UnreadError(Exception):
    """A client takes too little of its answer."""


class Readers:
    """The clients that are answered about one user's sessions."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        # Held while something large is read from MongoDB for one of them.
        self.at_work = asyncio.Semaphore(limits.http_user_pages)
        self.at_session: WeakValueDictionary[str | None, asyncio.Lock] = (
            WeakValueDictionary()
        )
        self.sent_to: WeakSet[Reader] = WeakSet()


class Reader:
    """One client: it is cut off if it takes too little, or if others need the memory.

    Nobody waits for a slow one. Too little is less than ``http_least_rate``, after
    ``http_unread_seconds``.
    """

    def __init__(self, readers: Readers, session_id: str | None) -> None:
        self.limits = readers.limits
        self.held = 0
        """Bytes that are in memory for this client alone."""
        self._readers = readers
        self._session = readers.at_session.setdefault(session_id, asyncio.Lock())
        self._spare = self.limits.http_unread_seconds
        self.waits_since = math.inf
        """When the piece that is being sent began to wait for it."""
        self._timer: asyncio.Timeout | None = None

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Read something large: of a session alone, of a user beside few others."""
        async with self._session, self._readers.at_work:
            yield

    async def hold(self, size: int) -> None:
        """Hold bytes, once there is room for them: the slowest client is cut off."""
        patience = size / self.limits.http_claim_rate
        until = time.monotonic() + patience
        self.held = 0
        while True:
            others = [each for each in self._readers.sent_to if each.held]
            held = sum(each.held for each in others)
            if not others or held + size <= self.limits.http_user_bytes:
                break
            slowest = min(others, key=attrgetter("waits_since"))
            now = time.monotonic()
            if now > min(slowest.waits_since + patience, until):
                slowest.cut_off()
            else:
                await asyncio.sleep(_POLL)
        self.held = size
        self._readers.sent_to.add(self)

    def cut_off(self) -> None:
        """Have the client's answer end with ``UnreadError``."""
        self.held = 0
        self._spare = -math.inf
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(0)

    async def send(self, send: Send, message: Message) -> None:
        """Send a piece of the answer, or raise ``UnreadError``."""
        began = self.waits_since = time.monotonic()
        try:
            async with asyncio.timeout(self._spare) as self._timer:
                await send(message)
        except TimeoutError:
            raise UnreadError from None
        finally:
            self._timer, self.waits_since = None, math.inf
        gained = len(message.get("body", b"")) / self.limits.http_least_rate
        spare = self._spare - (time.monotonic() - began) + gained
        self._spare = min(spare, self.limits.http_unread_seconds)
