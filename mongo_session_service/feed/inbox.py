"""Where the feed leaves what a subscriber has not read yet: bounded, and thread-safe.

The feed has a thread of its own; a subscriber reads in its event loop. Only plain
objects cross over, and one call into a loop wakes all its readers.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from bson.timestamp import Timestamp

from mongo_session_service.changes.change import Change

CAPACITY: Final = 1024
"""Changes that may wait for one subscriber."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A change, and when it was committed on the deployment's clock."""

    at: Timestamp
    change: Change | None
    """None if the session that is watched expires at another time than it did."""


MISSED: Final = Notice(Timestamp(2**32 - 1, 2**32 - 1), None)
"""Whoever follows has to read from storage what the feed could not tell."""

EXPIRING: Final = Notice(MISSED.at, None)
"""The session that is watched may have expired."""


class Doorbell:
    """Wakes the readers of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rung: deque[Inbox] = deque()
        self._is_ringing = False

    def ring(self, inbox: Inbox) -> None:
        """Wake who waits for this inbox; from any thread.

        Raises:
            RuntimeError: the loop is closed.
        """
        if self.is_broken:
            raise RuntimeError("The event loop is closed.")
        self._rung.append(inbox)
        if not self._is_ringing:
            self._is_ringing = True
            self._loop.call_soon_threadsafe(self._wake)

    @property
    def is_broken(self) -> bool:
        """Whether nobody can be woken any more: the loop is closed."""
        return self._loop.is_closed()

    def _wake(self) -> None:
        # First, so that whoever rings from here on calls again.
        self._is_ringing = False
        while self._rung:
            self._rung.popleft().wake()


class Inbox:
    """What waits for one subscriber. Writers are in any thread, its reader in one."""

    __slots__ = ("_arrived", "_doorbell", "_end", "_has_ended", "_notices", "_size")

    def __init__(self, doorbell: Doorbell, size: int) -> None:
        self._doorbell = doorbell
        self._size = size
        self._notices: deque[Notice] = deque()
        self._arrived = asyncio.Event()
        self._has_ended = False
        self._end: Exception | None = None

    def __len__(self) -> int:
        return len(self._notices)

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody can read it any more: its loop is closed."""
        return self._doorbell.is_broken

    @property
    def is_closed(self) -> bool:
        """Whether it has ended for no other reason than that the feed was closed."""
        return self._has_ended and self._end is None

    def put(self, notice: Notice) -> bool:
        """Leave something; False if there is no room left for it.

        Raises:
            RuntimeError: the reader's loop is closed.
        """
        if len(self._notices) >= self._size:
            return False
        self._notices.append(notice)
        if len(self._notices) == 1:
            self._doorbell.ring(self)
        return True

    def remind(self) -> None:
        """Have the reader look, after what waits already, if its session has expired.

        In its loop only. There is always room for it.
        """
        self._notices.append(EXPIRING)
        self._arrived.set()

    def end(self, error: Exception | None) -> None:
        """Let the reader read what is left, and then nothing or an error."""
        if not self._has_ended:
            self._end = error
            self._has_ended = True
            with suppress(RuntimeError):  # its loop is closed
                self._doorbell.ring(self)

    def clear(self) -> None:
        """Forget all that waits."""
        self._notices.clear()

    def wake(self) -> None:
        """Tell the reader to look; in its loop only."""
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        while True:
            # Asked before looking: what is left before the end is read before it.
            has_ended = self._has_ended
            with suppress(IndexError):  # it is empty, or was cleared just now
                return self._notices.popleft()
            if has_ended:
                if self._end is not None:
                    # One each: it collects the traceback of whoever raises it.
                    raise copy.copy(self._end)
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
