"""Feed reader: reads the change streams and delivers changes to subscriptions.

It runs in one event loop. An inbox of another thread is queued by ``admit_inbox()`` and
attached between two changes.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from bson.timestamp import Timestamp

from mongo_session_service import errors
from mongo_session_service.backend import Backend, Backends
from mongo_session_service.changes import decoder
from mongo_session_service.feed.inbox import Inbox, Inboxes
from mongo_session_service.feed.stats import Counters
from mongo_session_service.model.limits import Limits
from mongo_session_service.storage import oplog
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.retries import PAUSE_AFTER_LOSS
from mongo_session_service.storage.stream import Stream
from mongo_session_service.storage.tasks import Supervisor

_SUPERVISOR: Final = Supervisor("The change feed")
_OPLOG_MEASURED_EVERY: Final = 60.0  # seconds
_SWEPT_EVERY: Final = 1.0  # seconds
_DISPATCHED_IN_A_ROW: Final = 256
"""Changes in a row, after which the subscriptions' readers get to run."""
_REST: Final = 0.001  # seconds


class Reader:
    """One run of the feed: from its first subscription to its last, or a failure.

    Everything but ``run_feed()`` can be called from any thread.
    """

    def __init__(self, backends: Backends, counters: Counters) -> None:
        self._backends = backends
        self._counters = counters
        self._inboxes = Inboxes(counters)
        self._lock = threading.Lock()
        self._waiting: list[tuple[Inbox, Future[Timestamp]]] = []
        self._served: set[asyncio.AbstractEventLoop] = set()
        """The event loops of its subscriptions, of former ones as well."""
        self.has_ended = False
        """Whether no subscription can be attached any more."""
        self.thread: threading.Thread | None = None
        """The thread that it runs in, if that is its own."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._partials = PartialReader(counters)
        self._task: asyncio.Task[Any] | None = None
        self._position: Timestamp | None = None
        self._emptied_at = time.monotonic()

    def admit_inbox(self, inbox: Inbox) -> Future[Timestamp] | None:
        """Deliver to an inbox from now on; return None if this run is over.

        The result is the time from which on it receives every change.
        """
        future: Future[Timestamp] = Future()
        with self._lock:
            if self.has_ended:
                return None
            self._waiting.append((inbox, future))
            self._served.add(asyncio.get_running_loop())
            if self._loop is not None:
                try:
                    self._loop.call_soon_threadsafe(self._attach_waiting)
                except RuntimeError:  # the loop was closed under it
                    self.has_ended = True
                    return None
        return future

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that an event loop ends; with the last one, this run ends as well."""
        with self._lock:
            self._served.discard(loop)
        if not self._served:
            self.stop_soon()

    def stop_soon(self) -> None:
        """End soon."""
        with self._lock:
            self.has_ended = True
            if self._task is not None and self._loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._task.cancel)

    def inboxes(self) -> list[Inbox]:
        """The inboxes that somebody reads."""
        return [each for each in self._inboxes.router if not each.is_over]

    async def run_feed(self) -> None:
        """Read until there are no subscriptions any more, or until it fails."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
        error: Exception | None = None
        try:
            with suppress(asyncio.CancelledError):
                await self._run()
        except errors.MongoSessionServiceError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001  raised by the subscriptions
            _SUPERVISOR.log_death(failure)
            text = f"The change feed failed with {type(failure).__name__}."
            error = errors.MongoSessionServiceError(text)
        finally:
            self.end_run(error)

    async def _run(self) -> None:
        if self.has_ended:
            return
        async with self._backends.in_call() as opened:
            oplog.check_watchable(opened.connection)
            self._partials.connection = opened.connection
            try:
                await self._follow_streams(opened)
            finally:
                await self._partials.close_stream()

    async def _follow_streams(self, opened: Backend) -> None:
        """Follow one stream after the other, until there are no subscriptions."""
        connection = opened.connection
        while not self._is_over(connection.limits):
            start = await connection.retry(oplog.latest_time, connection)
            stream = decoder.follow(connection, decoder.pipeline(connection), start)
            self._position = start
            self._counters.note_open()
            opened.sweep.sweep_within(0)  # at what subscribers hear of next
            self._attach_waiting()
            try:
                await self._follow(opened, stream)
            finally:
                await stream.close_cursor()

    async def _follow(self, backend: Backend, stream: Stream) -> None:
        """Dispatch the stream's changes until it cannot be resumed."""
        connection = backend.connection
        names = decoder.WatchedCollections.of_connection(connection)
        reopened, measured_at, swept_at = 0, 0.0, 0.0
        while not self._is_over(connection.limits):
            self._partials.raise_failure()
            try:
                change = await stream.next_change()
            except errors.HistoryLostError as error:
                # Subscriptions attached from here on wait until the next stream has
                # started; nothing is delivered before.
                self._position = None
                self._inboxes.resynchronise(error)
                await asyncio.sleep(PAUSE_AFTER_LOSS)
                return
            self._counters.note_answer(decoder.committed_at(change) if change else None)
            self._counters.reconnects += stream.reopened - reopened
            reopened = stream.reopened
            if change is not None:
                record = decoder.decode_change(change, names, connection.hooks)
                if record is not None:
                    self._inboxes.dispatch(record)
                    backend.sweep.expect(record.expire_time)
                self._position = decoder.cluster_time(change)
                if self._counters.delivered % _DISPATCHED_IN_A_ROW == 0:
                    # The driver may have thousands buffered. A pause of 0 suffices in a
                    # shared event loop, but keeps the GIL from threads that read.
                    await asyncio.sleep(_REST)
            if time.monotonic() - swept_at > _SWEPT_EVERY:
                swept_at = time.monotonic()
                self._inboxes.detach_ended()
            if time.monotonic() - measured_at > _OPLOG_MEASURED_EVERY:
                measured_at = time.monotonic()
                window = await oplog.oplog_window_if_known(connection)
                self._counters.oplog_window = window

    def _attach_waiting(self) -> None:
        position = self._position
        if position is None:
            return  # the stream is not open yet; this is called again when it is
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for inbox, entered in waiting:
            self._inboxes.router.attach(inbox)
            if inbox.wants_partials:
                self._partials.admit_inbox(inbox, entered, position)
            elif entered.set_running_or_notify_cancel():
                entered.set_result(position)

    def _is_over(self, limits: Limits) -> bool:
        with self._lock:
            if self._inboxes.router or self._waiting:
                self._emptied_at = time.monotonic()
            elif time.monotonic() - self._emptied_at > limits.feed_linger_seconds:
                self.has_ended = True
            elif all(each.is_closed() for each in self._served):
                self.has_ended = True  # no subscriber is left to come back
            return self.has_ended

    def end_run(self, error: Exception | None) -> None:
        """End all subscriptions."""
        with self._lock:
            self.has_ended = True
            waiting, self._waiting = self._waiting, []
        closed = errors.MongoSessionServiceError("The service was closed meanwhile.")
        opening = [it for _, it in waiting]
        opening += [it for _, it, _ in self._partials.waiting]
        for entered in opening:
            if entered.set_running_or_notify_cancel():
                entered.set_exception(copy.copy(error or closed))
        self._inboxes.end_all(error)
        self._counters.is_running = False


class PartialReader:
    """Follows what running turns say; in the event loop of the feed's reader alone.

    Its stream is open while a subscription wants it: much is said, and read by few.
    """

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
            start = await connection.retry(oplog.latest_time, connection)
            stream = decoder.follow(connection, pipeline, start)
            self._attach_waiting(start)
            try:
                await self._follow(stream)
            except errors.HistoryLostError as error:
                # Whoever comes from here on waits until the next stream has started.
                self._position = None
                self._inboxes.resynchronise(error)
                await asyncio.sleep(PAUSE_AFTER_LOSS)
            finally:
                self._position = None
                await stream.close_cursor()

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
            if change is None:
                continue
            record = decoder.decode_partial(change, self.connection.hooks)
            if record is not None:
                self._inboxes.dispatch(record)
