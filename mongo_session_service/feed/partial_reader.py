"""Partial reader: what running turns say, by a change stream of its own.

It is open while a subscription wants it: what is said is much, and read by few.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

from bson.timestamp import Timestamp

from mongo_session_service.changes import decoder
from mongo_session_service.changes.stream import Stream
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.calls import PAUSE_AFTER_LOSS
from mongo_session_service.driver.connection import Connection
from mongo_session_service.errors import HistoryLostError
from mongo_session_service.feed.inbox import Inbox, Inboxes
from mongo_session_service.feed.stats import Counters


class PartialReader:
    """Follows what running turns say; in the event loop of the feed's reader alone."""

    def __init__(self, counters: Counters) -> None:
        self.connection: Connection
        self.waiting: list[tuple[Inbox, Future[Timestamp], Timestamp]] = []
        """Inboxes that receive what is said once the stream is open."""
        self._inboxes = Inboxes(counters)
        self._position: Timestamp | None = None
        """Where the stream stands; None while it is not open."""
        self._task: asyncio.Task[None] | None = None

    def admit_inbox(
        self, inbox: Inbox, entered: Future[Timestamp], position: Timestamp
    ) -> None:
        """Deliver to an inbox once the stream is open.

        It receives all other changes from ``position`` on. The result is the time from
        which on it receives both.
        """
        self.waiting.append((inbox, entered, position))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._follow_streams())
        elif self._position is not None:
            self._attach_waiting(self._position)

    def raise_failure(self) -> None:
        """Raise the error that has ended it, if one has."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def close_stream(self) -> None:
        """Close the stream."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow_streams(self) -> None:
        connection = self.connection
        pipeline = decoder.partials_pipeline(connection.partials.name)
        while self.waiting or self._inboxes.router:
            start = await connection.retry(snapshots.latest_time, connection)
            stream = Stream(connection, pipeline, start)
            self._attach_waiting(start)
            try:
                await self._follow(stream)
            except HistoryLostError as error:
                # Whoever comes from here on waits until the next stream has started.
                self._position = None
                self._inboxes.resynchronise(error)
                await asyncio.sleep(PAUSE_AFTER_LOSS)
            finally:
                self._position = None
                await stream.close()

    def _attach_waiting(self, start: Timestamp) -> None:
        self._position = start
        for inbox, entered, position in self.waiting:
            if entered.set_running_or_notify_cancel():
                self._inboxes.router.attach(inbox)
                entered.set_result(max(position, start))
        self.waiting = []

    async def _follow(self, stream: Stream) -> None:
        wanted_at = time.monotonic()
        lingers = self.connection.limits.feed_linger_seconds
        while self._inboxes.router or time.monotonic() - wanted_at < lingers:
            self._inboxes.detach_ended()
            if self._inboxes.router:
                wanted_at = time.monotonic()
            change = await stream.next_change()
            document = (change or {}).get("fullDocument") or {}
            item = decoder.decode_turn_progress(document, self.connection.hooks)
            if change is not None and item is not None:
                self._inboxes.dispatch(item, change)
