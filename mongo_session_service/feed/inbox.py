"""Inboxes: the bounded, thread-safe queues between the feed and its subscriptions.

The feed runs in its own thread; a subscription is read in its caller's event loop. Only
plain objects cross over, and one call into an event loop wakes all its readers.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from contextlib import suppress

from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.changes.routing import Router, Scope
from mongo_session_service.errors import HistoryLostError, SlowSubscriberError
from mongo_session_service.feed.stats import Counters

logger = logging.getLogger(__name__)


class Waker:
    """Wakes the readers of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: deque[Inbox] = deque()
        self._is_scheduled = False

    def schedule(self, inbox: Inbox) -> None:
        """Wake the reader of this inbox; from any thread, while its loop is open."""
        if self.is_closed:
            raise RuntimeError("The event loop is closed.")
        self._pending.append(inbox)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._wake)

    @property
    def is_closed(self) -> bool:
        """Tell whether its event loop is closed."""
        return self._loop.is_closed()

    def _wake(self) -> None:
        # First, so that whatever is added from here on schedules another call.
        self._is_scheduled = False
        while self._pending:
            self._pending.popleft().wake()


class Inbox:
    """The changes that wait for one subscription: any writers, one reader."""

    def __init__(
        self,
        scope: Scope,
        waker: Waker,
        capacity: int,
        max_bytes: int,
        *,
        wants_partials: bool = False,
    ) -> None:
        self.scope = scope
        self.wants_partials = wants_partials
        """Whether partials are put into it, too."""
        self._waker = waker
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        """Upper bound of the bytes that wait; only the writing thread uses it."""
        self._waiting: deque[ChangeRecord | None] = deque()
        self._arrived = asyncio.Event()
        self._has_ended = False
        self._end: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Tell whether nobody reads it any more: its event loop may be closed."""
        return self._has_ended or self._waker.is_closed

    @property
    def has_feed_ended(self) -> bool:
        """Tell whether it ended because the feed was closed, not by an error."""
        return self._has_ended and self._end is None

    def put(self, record: ChangeRecord | None) -> bool:
        """Add a change, or None where changes were missed; False if it is full."""
        size = record.size if record else 0
        self._bytes += size
        if self._bytes > self._max_bytes:
            waiting = sum(each.size for each in self._waiting.copy() if each)
            self._bytes = waiting + size
        is_too_large = bool(self._waiting) and self._bytes > self._max_bytes
        if is_too_large or len(self._waiting) >= self._capacity:
            return False
        self._waiting.append(record)
        if len(self._waiting) == 1:
            self._waker.schedule(self)
        return True

    def end(self, error: Exception | None) -> None:
        """End it after what is left: the reader then stops, or raises the error."""
        if not self._has_ended:
            self._end = error
            self._has_ended = True
            with suppress(RuntimeError):  # its loop is closed
                self._waker.schedule(self)

    def clear(self) -> None:
        """Remove everything."""
        self._waiting.clear()

    def abandon(self) -> None:
        """End it at once, by its reader: the feed puts nothing more into it."""
        self.clear()
        self.end(None)

    def wake(self) -> None:
        """Wake the reader; in its event loop only."""
        self._arrived.set()

    async def take(self) -> ChangeRecord | None:
        """Take the next change; None if the feed has missed changes.

        StopAsyncIteration or an error at the end. A cancelled call has taken none.
        """
        while True:
            # Checked first: what was added before the end is read before it.
            has_ended = self._has_ended
            with suppress(IndexError):  # it is empty, or was cleared just now
                return self._waiting.popleft()
            if has_ended:
                if self._end is not None:
                    # A copy for each reader, since raising adds a traceback.
                    raise copy.copy(self._end)
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()


class Inboxes:
    """The inboxes that receive the changes of one stream."""

    def __init__(self, counters: Counters) -> None:
        self.router: Router[Inbox] = Router()
        self._counters = counters

    def dispatch(self, record: ChangeRecord) -> None:
        """Put a change into the inboxes that it concerns, decoded once for all."""
        for inbox, part in self.router.route(record):
            if part.readable_change is not None:
                self._deliver(inbox, part)

    def _deliver(self, inbox: Inbox, record: ChangeRecord | None) -> None:
        """Put a change into an inbox; end one that is full."""
        try:
            has_room = inbox.is_over or inbox.put(record)
        except RuntimeError:  # its loop is closed
            has_room = True
        if not has_room:
            self._counters.drops += 1
            inbox.clear()
            inbox.end(SlowSubscriberError(None))
        if inbox.is_over:
            self.router.detach(inbox)

    def detach_ended(self) -> None:
        """Detach what has ended, or was left open in an event loop that is closed."""
        for each in self.router:
            if each.is_over:
                self.router.detach(each)

    def resynchronise(self, error: HistoryLostError) -> None:
        """Have session subscriptions read from storage, and end all others."""
        logger.warning("The change feed restarts. %s", error)
        self._counters.resyncs += 1
        for each in self.router:
            if each.scope.is_session:
                each.clear()
                self._deliver(each, None)
            else:
                each.end(error)
        self.detach_ended()

    def end_all(self, error: Exception | None) -> None:
        """End all inboxes."""
        for each in self.router:
            each.end(error)
        self.detach_ended()
