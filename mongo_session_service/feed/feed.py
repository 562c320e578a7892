"""Feed: the change stream of an event loop, which serves all subscriptions there.

Changes of running turns come by a second stream, which is open while somebody wants
them: they are many, and few read them.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import asdict
from typing import Final

from bson.timestamp import Timestamp

from mongo_session_service.backend import Backend, Backends
from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import ChangeRecord, WatchedCollections
from mongo_session_service.changes.routing import Router, Scope
from mongo_session_service.errors import (
    HistoryLostError,
    MongoSessionServiceError,
    SlowSubscriberError,
    service_closed_error,
)
from mongo_session_service.feed.stats import Counters, FeedStats
from mongo_session_service.model.records import Document
from mongo_session_service.storage.failures import PAUSE_AFTER_LOSS
from mongo_session_service.storage.tasks import Pace, background, log_death

logger = logging.getLogger(__name__)

_MANY: Final = 100
"""Recipients of a change whose readers run before the next one: it takes them 1 ms."""
_OPLOG_MEASURED_EVERY: Final = 60.0  # seconds
_SILENT: Final = 2.0
"""Seconds without a reply after which a stream counts as behind."""


class Inbox:
    """The queue of changes of one subscription."""

    def __init__(self, scope: Scope, capacity: int, max_bytes: int) -> None:
        self.scope = scope
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[ChangeRecord | None] = deque()
        self._routers: list[Router[Inbox]] = []
        self._has_news = asyncio.Event()
        self._has_ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_feed_ended(self) -> bool:
        """Whether it ended because the feed was closed, not by an error."""
        return self._has_ended and self._error is None

    def attach_to(self, router: Router[Inbox]) -> None:
        """Receive what is routed to it, until it ends."""
        if not self._has_ended:
            self._routers.append(router)
            router.attach(self)

    def put(self, record: ChangeRecord | None) -> bool:
        """Add a change, or None where changes were missed; False if it is full."""
        size = record.size if record else 0
        is_too_large = bool(self._waiting) and self._bytes + size > self._max_bytes
        if is_too_large or len(self._waiting) >= self._capacity:
            return False
        self._bytes += size
        self._waiting.append(record)
        self._has_news.set()
        return True

    def end(self, error: Exception | None = None, *, at_once: bool = False) -> None:
        """End it after the queued changes, or at once: its reader stops or raises."""
        if at_once:
            self._waiting.clear()
        if not self._has_ended:
            self._error = error
            self._has_ended = True
            self._has_news.set()
            for each in self._routers:
                each.detach(self)

    def replace_with_gap(self) -> None:
        """Replace the queued changes by None: changes were missed."""
        self._waiting.clear()
        self._bytes = 0
        self.put(None)

    async def take(self) -> ChangeRecord | None:
        """Take the next change; None if the feed has missed changes.

        StopAsyncIteration or an error at the end. A cancelled call has taken none.
        """
        while not self._waiting:
            if self._error is not None:
                # A copy for each reader, since raising adds a traceback.
                raise copy.copy(self._error)
            if self._has_ended:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        record = self._waiting.popleft()
        self._bytes -= record.size if record else 0
        return record


class _StreamReader(ABC):
    """Reads a change stream into inboxes, as long as there are any."""

    def __init__(
        self, backend: Backend, counters: Counters, pipeline: list[Document]
    ) -> None:
        self.inboxes: Router[Inbox] = Router()
        self._storage = backend.storage
        self._pipeline = pipeline
        self._counters = counters
        self._run: asyncio.Task[None] | None = None
        """The task that reads for the inboxes; None if there are none."""
        self._runs: set[asyncio.Task[None]] = set()
        """That one, and earlier ones that close their cursors."""
        self._start: asyncio.Future[Timestamp] = asyncio.Future()
        """Where its stream begins, once it is open."""
        self._read_until: Timestamp | None = None
        """Everything until then is in the inboxes; None while no stream is open."""
        self._wanted_at = 0.0
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._run is not None

    async def attach(self, inbox: Inbox) -> Timestamp:
        """Put into an inbox every change after the returned time."""
        if self._is_closed:  # with its backend, of which a call still had hold
            raise service_closed_error()
        inbox.attach_to(self.inboxes)
        self._wanted_at = time.monotonic()
        if self._run is None:
            self._start = asyncio.get_running_loop().create_future()
            self._run = background(self._read())
            self._runs.add(self._run)
            self._run.add_done_callback(self._runs.discard)
        if self._read_until is not None:
            return self._read_until
        start = self._start
        await asyncio.wait([start])
        if error := start.exception():
            raise copy.copy(error)
        return start.result()

    async def close(self) -> None:
        """End all inboxes, and close the stream."""
        self._is_closed = True
        if self._run is not None:  # the others need no more than to close their cursors
            self._run.cancel()
            self._end(None)
        if self._runs:
            await asyncio.wait(self._runs)

    async def _read(self) -> None:
        error: Exception | None = None
        loop = asyncio.get_running_loop()
        try:
            while not await self._follow():
                pass
        except asyncio.CancelledError:
            pass
        except MongoSessionServiceError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001  raised by the subscriptions
            if loop.is_closed():  # it is being garbage-collected
                return
            log_death("The change feed", failure)
            text = f"The change feed failed with {type(failure).__name__}."
            error = MongoSessionServiceError(text)
        if self._run is asyncio.current_task():
            self._end(error)

    async def _follow(self) -> bool:
        """Follow a stream from now on to the end; False if it cannot be resumed."""
        start = await self._storage.latest_time(patient=True)
        stream, pace = decoder.follow(self._storage, self._pipeline, start), Pace()
        self._open_at(start)
        try:
            while self._is_wanted():
                try:
                    change = await stream.next_change()
                except HistoryLostError as error:
                    self._resynchronise(error)
                    await asyncio.sleep(PAUSE_AFTER_LOSS)
                    return False
                if change is not None:
                    recipients = self._dispatch(self._decode(change))
                    self._read_until = change["clusterTime"]
                    if recipients >= _MANY:
                        await asyncio.sleep(0)
                    await pace.yield_to_loop()
                await self._observe(change, stream.reopened)
            self._end(None)  # an inbox attached from here on begins another run
            return True
        finally:
            await stream.close_cursor()

    def _open_at(self, start: Timestamp) -> None:
        self._read_until = start
        self._start.set_result(start)

    def _is_wanted(self) -> bool:
        now = time.monotonic()
        if self.inboxes:
            self._wanted_at = now
        return now - self._wanted_at <= self._storage.limits.feed_linger_seconds

    def _dispatch(self, record: ChangeRecord | None) -> int:
        """Put a change into the inboxes that it concerns; return how many these are."""
        recipients = self.inboxes.route(record) if record else []
        for inbox, part in recipients:  # decoded once for all
            if part.readable_change is not None and not inbox.put(part):
                self._counters.drops += 1
                inbox.end(SlowSubscriberError(None), at_once=True)
        return len(recipients)

    def _resynchronise(self, error: HistoryLostError) -> None:
        """Have session subscriptions read from storage, and end all others.

        A subscription opened from now on waits until the next stream is open.
        """
        logger.warning("The change feed restarts. %s", error)
        self._counters.resyncs += 1
        self._start = asyncio.get_running_loop().create_future()
        self._read_until = None
        for each in self.inboxes:
            if each.scope.is_session:
                each.replace_with_gap()
            else:
                each.end(error)

    def _end(self, error: Exception | None) -> None:
        self._run = self._read_until = None
        if not self._start.done():
            self._start.set_exception(error or service_closed_error())
            self._start.exception()  # perhaps nobody waits for it
        for each in self.inboxes:
            each.end(error)

    @abstractmethod
    def _decode(self, change: Document) -> ChangeRecord | None: ...

    async def _observe(  # noqa: B027  not every reader counts
        self, change: Document | None, reopened: int
    ) -> None:
        """Count an answer of a stream that was reopened so many times."""


class _LogReader(_StreamReader):
    """Reads what is committed of sessions, events and state."""

    def __init__(self, backend: Backend, counters: Counters) -> None:
        super().__init__(backend, counters, decoder.pipeline(backend.storage))
        self._names = WatchedCollections.of_storage(backend.storage)
        self._sweep = backend.sweep
        self._lag = 0.0
        self._answered_at = self._measured_at = 0.0
        self._reopened = 0

    @property
    def lag(self) -> float:
        """Seconds by which it is behind."""
        silence = time.monotonic() - self._answered_at
        is_silent = self._read_until is not None and silence > _SILENT
        return max(self._lag, silence) if is_silent else self._lag

    def _open_at(self, start: Timestamp) -> None:
        super()._open_at(start)
        self._answered_at, self._reopened = time.monotonic(), 0
        self._sweep.sweep_within(0)  # subscribers receive what it deletes

    def _decode(self, change: Document) -> ChangeRecord | None:
        record = decoder.decode_change(change, self._names, self._storage.hooks)
        if record is not None and record.kind in {"created", "updated"}:
            self._sweep.expect(record.session.expire_time)
        return record

    async def _observe(self, change: Document | None, reopened: int) -> None:
        now, self._lag = time.monotonic(), 0.0
        self._answered_at = now
        if change is not None:
            self._counters.delivered += 1
            self._lag = max(0.0, time.time() - decoder.committed_at(change))
        self._counters.reconnects += reopened - self._reopened
        self._reopened = reopened
        if now - self._measured_at > _OPLOG_MEASURED_EVERY:
            self._measured_at = now
            window = await self._storage.oplog_window_if_known()
            self._counters.oplog_window_seconds = window


class _PartialReader(_StreamReader):
    """Reads what running turns produce before it is stored."""

    def __init__(self, backend: Backend, counters: Counters) -> None:
        partials = f"{backend.storage.prefix}partials"
        super().__init__(backend, counters, decoder.partials_pipeline(partials))

    def _decode(self, change: Document) -> ChangeRecord | None:
        return decoder.decode_partial(change, self._storage.hooks)


class Feed:
    """The change streams of one event loop, and the inboxes of its subscriptions."""

    def __init__(self, backend: Backend, counters: Counters) -> None:
        self._storage = backend.storage
        self.log = _LogReader(backend, counters)
        self._partials = _PartialReader(backend, counters)
        backend.closers.append(self.close)
        backend.keep()

    async def open_inbox(
        self, scope: Scope, max_bytes: int, *, partials: bool
    ) -> tuple[Inbox, Timestamp]:
        """Open an inbox for every change of a scope after the returned time."""
        self._storage.check_watchable()
        inbox = Inbox(scope, self._storage.limits.inbox_changes, max_bytes)
        try:
            since = await self.log.attach(inbox)
            if partials:
                since = max(since, await self._partials.attach(inbox))
        except BaseException:
            inbox.end()
            raise
        return inbox, since

    async def close(self) -> None:
        """End every subscription, and close the streams."""
        await self.log.close()
        await self._partials.close()


class Feeds:
    """The feeds of a service: one for each event loop that subscribes."""

    def __init__(self, backends: Backends) -> None:
        self.backends = backends
        self.counters = Counters()

    def stats(self) -> FeedStats:
        """Figures of all feeds together."""
        parts = self.backends.parts(Feed)
        logs = [feed.log for loop, feed in parts.items() if not loop.is_closed()]
        inboxes = [inbox for log in logs for inbox in log.inboxes]
        return FeedStats(
            is_running=any(each.is_running for each in logs),
            subscriptions=len(inboxes),
            queue_depth=max(map(len, inboxes), default=0),
            lag_seconds=max((each.lag for each in logs), default=0.0),
            **asdict(self.counters),
        )
