"""Feed reader: reads the change stream and delivers changes to subscriptions.

It runs in one event loop. An inbox of another thread is queued by ``admit()`` and
attached between two changes.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

import bson
from bson.timestamp import Timestamp

from mongo_session_service import errors
from mongo_session_service.backend import Backend, Opener
from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import Dropped, Names
from mongo_session_service.changes.routing import Router
from mongo_session_service.changes.stream import Stream
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.calls import PAUSE_AFTER_LOSS
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.supervisor import Supervisor
from mongo_session_service.feed.inbox import RESYNC, Inbox, Notification
from mongo_session_service.feed.stats import Counters
from mongo_session_service.model.records import Document

logger = logging.getLogger(__name__)

LINGER: Final = 10.0
"""Seconds the stream stays open after its last subscription, if event loops remain."""

_SUPERVISOR: Final = Supervisor("The change feed")
_OPLOG_MEASURED_EVERY: Final = 60.0  # seconds
_SWEPT_EVERY: Final = 1.0  # seconds
_BATCH: Final = 256
"""Changes in a row, after which the subscriptions' readers get to run."""
_REST: Final = 0.001  # seconds


class Reader:
    """One run of the feed: from its first subscription to its last, or a failure.

    Everything but ``run()`` can be called from any thread.
    """

    def __init__(self, opener: Opener, counters: Counters) -> None:
        self._opener = opener
        self._counters = counters
        self._router: Router[Inbox] = Router()
        self._lock = threading.Lock()
        self._waiting: list[tuple[Inbox, Future[Timestamp]]] = []
        self._served: set[asyncio.AbstractEventLoop] = set()
        """The event loops of its subscriptions, of former ones as well."""
        self.has_ended = False
        """Whether no subscription can be attached any more."""
        self.thread: threading.Thread | None = None
        """The thread that it runs in, if that is its own."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection
        self._task: asyncio.Task[Any] | None = None
        self._position: Timestamp | None = None
        self._partial_router: Router[Inbox] = Router()
        """The subscriptions that want what running turns say, too."""
        self._partial_position: Timestamp | None = None
        self._partial_task: asyncio.Task[None] | None = None
        self._emptied_at = time.monotonic()

    def admit(self, inbox: Inbox) -> Future[Timestamp] | None:
        """Deliver to an inbox from now on; None if this run is over.

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
            self.stop()

    def stop(self) -> None:
        """End soon."""
        with self._lock:
            self.has_ended = True
            if self._task is not None and self._loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._task.cancel)

    def inboxes(self) -> list[Inbox]:
        """The inboxes that somebody reads."""
        return [each for each in self._router if not each.is_abandoned]

    async def run(self) -> None:
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
            self.end(error)

    async def _run(self) -> None:
        if self.has_ended:
            return
        async with self._opener() as opened:
            connection = self._connection = opened.connection
            snapshots.check(connection)
            try:
                await self._follow_all(opened)
            finally:
                if self._partial_task is not None:
                    self._partial_task.cancel()
                    await asyncio.wait({self._partial_task})

    async def _follow_all(self, opened: Backend) -> None:
        """Follow one stream after the other, until there are no subscriptions."""
        connection = opened.connection
        names = Names.of(connection)
        while not self._is_over():
            start = await connection.retry(snapshots.now, connection)
            pipeline = decoder.pipeline(names)
            stream = Stream(connection, names, pipeline, start)
            self._position = start
            self._counters.opened()
            opened.sweep.look_within(0)  # at what subscribers hear of next
            self._attach_waiting()
            try:
                await self._follow(opened, stream, names)
            finally:
                await stream.close()

    def _start_partials(self) -> None:
        if self._partial_task is None or self._partial_task.done():
            follow = self._follow_partials(self._connection)
            self._partial_task = asyncio.create_task(follow)

    async def _follow_partials(self, connection: Connection) -> None:
        """Deliver what running turns say, as long as a subscription wants it."""
        names = Names.of(connection)
        pipeline = decoder.partials_pipeline(connection.partials.name)
        while True:
            start = await connection.retry(snapshots.now, connection)
            stream = Stream(connection, names, pipeline, start)
            self._partial_position = start
            self._attach_waiting()
            try:
                await self._read_partials(stream, connection.hooks)
            except errors.HistoryLostError as error:
                self._resynchronise(self._partial_router, error)
                await asyncio.sleep(PAUSE_AFTER_LOSS)
            else:
                return
            finally:
                self._partial_position = None
                await stream.close()

    async def _read_partials(self, stream: Stream, hooks: Hooks) -> None:
        wanted_at = time.monotonic()
        while time.monotonic() - wanted_at < LINGER:
            for each in self._partial_router:
                if each.is_abandoned:
                    self._partial_router.detach(each)
            if self._partial_router:
                wanted_at = time.monotonic()
            change = await stream.next_change()
            if change is not None:
                self._dispatch_partial(change, hooks)

    def _dispatch_partial(self, change: Document, hooks: Hooks) -> None:
        document = change.get("fullDocument") or {}
        item = decoder.turn_progress(document, hooks)
        if item and (recipients := self._partial_router.recipients(item)):
            size, at = len(bson.encode(document)), decoder.cluster_time(change)
            notification = Notification(at, decoder.readable_change(item), size)
            for inbox in recipients if notification.change else ():
                self._deliver(inbox, notification)

    async def _follow(self, backend: Backend, stream: Stream, names: Names) -> None:
        """Dispatch the stream's changes until it cannot be resumed."""
        connection = backend.connection
        reopened, measured_at, swept_at = 0, 0.0, 0.0
        while not self._is_over():
            if self._partial_task is not None and self._partial_task.done():
                self._partial_task.result()
            try:
                change = await stream.next_change()
            except errors.HistoryLostError as error:
                # Subscriptions attached from here on wait until the next stream has
                # started; nothing is delivered before.
                self._position = None
                self._resynchronise(self._router, error)
                await asyncio.sleep(PAUSE_AFTER_LOSS)
                return
            self._counters.heard(change)
            self._counters.reconnects += stream.reopened - reopened
            reopened = stream.reopened
            if change is not None:
                item = decoder.interpret(change, names, connection.hooks)
                self._dispatch(item, change)
                if isinstance(item, decoder.Created):
                    backend.sweep.expect(item.document.get("expire_time"))
                elif isinstance(item, decoder.Updated):
                    backend.sweep.expect(item.details.expire_time)
                self._position = decoder.cluster_time(change)
                if self._counters.delivered % _BATCH == 0:
                    # The driver may have thousands buffered. A pause of 0 suffices in a
                    # shared event loop, but keeps the GIL from threads that read.
                    await asyncio.sleep(_REST)
            if time.monotonic() - swept_at > _SWEPT_EVERY:
                swept_at = time.monotonic()
                self._detach_abandoned()
            if time.monotonic() - measured_at > _OPLOG_MEASURED_EVERY:
                measured_at = time.monotonic()
                window = await snapshots.oplog_window_if_known(connection)
                self._counters.oplog_window = window

    def _detach_abandoned(self) -> None:
        """Detach what was closed, or left open in an event loop that is closed."""
        for each in self._router:
            if each.is_abandoned:
                self._router.detach(each)

    def _dispatch(self, item: decoder.ChangeEvent | None, change: Document) -> None:
        """Put what a change event means into the inboxes that it concerns."""
        if item is None:
            return
        if isinstance(item, Dropped):
            text = f"{item.what}: there is nothing left to watch."
            raise errors.HistoryLostError(text)
        at = decoder.cluster_time(change)
        notification = Notification(at, None)
        size = 0
        for inbox, payload in self._router.route(item, decoder.transaction_of(change)):
            if notification.change is not payload:
                size = size or len(bson.encode(change))
                notification = Notification(at, payload, size)
            self._deliver(inbox, notification)

    def _deliver(self, inbox: Inbox, notification: Notification) -> None:
        try:
            has_room = inbox.is_abandoned or inbox.put(notification)
        except RuntimeError:  # its loop is closed
            has_room = True
        if not has_room:
            self._counters.drops += 1
            inbox.clear()
            self._end_inbox(inbox, errors.SlowSubscriberError(None))
        elif inbox.is_abandoned:
            self._router.detach(inbox)

    def _end_inbox(self, inbox: Inbox, error: Exception | None) -> None:
        self._router.detach(inbox)
        inbox.end(error)

    def _resynchronise(
        self, router: Router[Inbox], error: errors.HistoryLostError
    ) -> None:
        """Have session subscriptions read from storage, and end all others."""
        logger.warning("The change feed restarts. %s", error)
        self._counters.resyncs += 1
        for each in router:
            if each.scope.is_session:
                each.clear()
                self._deliver(each, RESYNC)
            else:
                self._end_inbox(each, error)

    def _attach_waiting(self) -> None:
        if self._position is None:
            return  # the stream is not open yet; this is called again when it is
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for inbox, future in waiting:
            if inbox.wants_partials and self._partial_position is None:
                with self._lock:
                    self._waiting.append((inbox, future))  # until that stream is open
                self._start_partials()
            elif future.set_running_or_notify_cancel():
                self._router.attach(inbox)
                position = self._position
                if inbox.wants_partials:
                    self._partial_router.attach(inbox)
                    position = max(position, self._partial_position or position)
                future.set_result(position)

    def _is_over(self) -> bool:
        with self._lock:
            if self._router or self._waiting:
                self._emptied_at = time.monotonic()
            elif time.monotonic() - self._emptied_at > LINGER:
                self.has_ended = True
            elif all(each.is_closed() for each in self._served):
                self.has_ended = True  # no subscriber is left to come back
            return self.has_ended

    def end(self, error: Exception | None) -> None:
        """End all subscriptions."""
        with self._lock:
            self.has_ended = True
            waiting, self._waiting = self._waiting, []
        closed = errors.MongoSessionServiceError("The service was closed meanwhile.")
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(copy.copy(error or closed))
        for each in self._router:
            self._end_inbox(each, error)
        self._counters.is_running = False
