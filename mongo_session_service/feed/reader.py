"""The feed's one reader: takes changes off the stream and hands them out.

It lives in one event loop. Whoever comes from another thread leaves itself in
``enter()``, and is let in between two changes.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from bson.timestamp import Timestamp

from mongo_session_service.backend import Opener
from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import Dropped, Names
from mongo_session_service.changes.routing import Router
from mongo_session_service.changes.stream import Stream
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import PAUSE_AFTER_LOSS, persistently
from mongo_session_service.errors import (
    HistoryLostError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageError,
)
from mongo_session_service.feed.expiry import Endings
from mongo_session_service.feed.inbox import CAPACITY, MISSED, Notice
from mongo_session_service.feed.stats import Counters
from mongo_session_service.feed.subscription import Subscription
from mongo_session_service.model.records import Document

logger = logging.getLogger(__name__)

LINGER: Final = 10.0
"""Seconds the stream is kept open after the last subscription has gone."""

_OPLOG_MEASURED_EVERY: Final = 60.0  # seconds
_SWEPT_EVERY: Final = 1.0  # seconds
_TURN: Final = CAPACITY // 4
"""Changes in a row, after which their readers have a turn."""
_REST: Final = 0.001  # seconds


class Reader:
    """One run of the feed, from its first subscriber to its last, or to its failure."""

    def __init__(self, opener: Opener, counters: Counters) -> None:
        self._opener = opener
        self._counters = counters
        self._router: Router[Subscription] = Router()
        self._endings = Endings()
        self._lock = threading.Lock()
        self._arrivals: list[tuple[Subscription, Future[Timestamp]]] = []
        self._has_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._position: Timestamp | None = None
        self._emptied_at = time.monotonic()

    @property
    def has_ended(self) -> bool:
        """Whether nobody is let in any more."""
        return self._has_ended

    def enter(self, subscription: Subscription) -> Future[Timestamp] | None:
        """Be let in, from any thread; None if this run is over.

        From the time on the deployment's clock that comes of it, the subscription is
        told everything.
        """
        future: Future[Timestamp] = Future()
        with self._lock:
            if self._has_ended:
                return None
            self._arrivals.append((subscription, future))
            if self._loop is not None:
                try:
                    self._loop.call_soon_threadsafe(self._admit)
                except RuntimeError:  # the loop was closed under it
                    self._has_ended = True
                    return None
        return future

    def leave(self, subscription: Subscription) -> None:
        """Be told nothing more, from any thread."""
        self._post(self._router.detach, subscription)

    def stop(self) -> None:
        """End soon, from any thread."""
        with self._lock:
            self._has_ended = True
            if self._task is not None:
                self._post(self._task.cancel)

    def give_up(self) -> None:
        """Tell who waits, if it could not even begin; in any thread."""
        if not self._has_ended:
            self._end(None)

    def _post(self, callback: Callable[..., object], *arguments: Any) -> bool:
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # its loop is closed
            return False
        return True

    def subscriptions(self) -> list[Subscription]:
        """Who is being told."""
        return list(self._router)

    async def run(self) -> None:
        """Read until nobody listens any more, or until it cannot go on."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task()
        error: Exception | None = None
        try:
            with suppress(asyncio.CancelledError):
                await self._run()
        except MongoSessionServiceError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001  told to whom it concerns
            where = traceback.extract_tb(failure.__traceback__)[-1]
            # Without its text, which may quote what is stored.
            logger.error("The change feed failed at %s.", where)  # noqa: TRY400
            kind = type(failure).__name__
            error = MongoSessionServiceError(f"The change feed failed with {kind}.")
        finally:
            self._end(error)

    async def _run(self) -> None:
        if self.has_ended:
            return
        async with self._opener() as opened:
            connection = opened.connection
            snapshots.check(connection)
            names = Names.of(connection)
            while not self._is_over():
                start = await persistently(lambda: snapshots.now(connection))
                stream = Stream(connection, names, decoder.pipeline(names), start)
                self._position = start
                self._counters.opened()
                self._admit()
                try:
                    await self._follow(connection, stream, names)
                finally:
                    await stream.close()

    async def _follow(
        self, connection: Connection, stream: Stream, names: Names
    ) -> None:
        """Hand out what the stream says, until it cannot say what comes next."""
        reopened, measured_at, swept_at = 0, 0.0, 0.0
        while not self._is_over():
            is_wanted = self._router.has_any_of_many
            await self._endings.look(connection, is_wanted=is_wanted)
            try:
                change = await stream.next()
            except HistoryLostError as error:
                self._resynchronise(error)
                await asyncio.sleep(PAUSE_AFTER_LOSS)
                return
            self._counters.heard(change)
            self._counters.reconnects += stream.reopened - reopened
            reopened = stream.reopened
            before = None if change is None else decoder.cluster_time(change)
            await self._tell_endings(before)
            if change is not None:
                self._hand_out(change, names, connection.hooks)
                self._position = decoder.cluster_time(change)
                if self._counters.delivered % _TURN == 0:
                    # The driver may have thousands at hand. A pause of 0 would do in a
                    # shared loop, but starve readers in other threads of the GIL.
                    await asyncio.sleep(_REST)
            if time.monotonic() - swept_at > _SWEPT_EVERY:
                swept_at = time.monotonic()
                self._sweep()
            if time.monotonic() - measured_at > _OPLOG_MEASURED_EVERY:
                measured_at = time.monotonic()
                self._counters.oplog_window = await snapshots.oplog_window(connection)

    def _hand_out(self, change: Document, names: Names, hooks: Hooks) -> None:
        item = decoder.interpret(change, names, hooks)
        if item is None:
            return
        if isinstance(item, Dropped):
            raise HistoryLostError(f"{item.what}: there is nothing left to watch.")
        at = decoder.cluster_time(change)
        self._router.note(item, decoder.transaction_of(change))
        if self._router.is_silent(item):
            return
        has_ended = self._endings.note(item)
        notice = None
        try:
            for each, told in self._router.deliveries(item):
                if has_ended and not each.scope.is_session:
                    continue
                if notice is None or notice.change is not told:
                    notice = Notice(at, told)
                self._leave_with(each, notice)
        except StorageError as error:
            for each in self._router.recipients(item):
                self._dismiss(each, error)

    async def _tell_endings(self, before: Timestamp | None) -> None:
        """Tell what has expired to all but those who watch the session alone."""
        for told, (at, ending) in enumerate(self._endings.told_before(before), 1):
            notice = Notice(at, ending.change())
            for each in self._router.recipients(ending):
                if not each.scope.is_session:
                    self._leave_with(each, notice)
            if told % _TURN == 0:
                await asyncio.sleep(_REST)

    def _leave_with(self, subscription: Subscription, notice: Notice) -> None:
        inbox = subscription.inbox
        try:
            has_room = inbox.put(notice)
        except RuntimeError:  # its loop is closed
            self._router.detach(subscription)
            return
        if not has_room:
            self._counters.drops += 1
            self._router.detach(subscription)
            inbox.clear()
            inbox.end(SlowSubscriberError(None))

    def _sweep(self) -> None:
        """Let go of whoever was left open in an event loop that is gone."""
        for each in self._router:
            if each.inbox.is_abandoned:
                self._router.detach(each)

    def _dismiss(self, subscription: Subscription, error: Exception | None) -> None:
        self._router.detach(subscription)
        subscription.inbox.end(error)

    def _resynchronise(self, error: HistoryLostError) -> None:
        """Have sessions read from the events collection; tell all others."""
        logger.warning("The change feed starts anew. %s", error)
        self._counters.resyncs += 1
        # Whoever comes now, the following sessions first, waits for the next stream:
        # before it starts, nothing is told.
        self._position = None
        self._endings = Endings()
        for each in self._router:
            if each.scope.is_session:
                each.inbox.clear()
                self._leave_with(each, MISSED)
            else:
                self._dismiss(each, error)

    def _admit(self) -> None:
        if self._position is None:
            return  # the stream is not open yet; this is called again when it is
        with self._lock:
            arrivals, self._arrivals = self._arrivals, []
        for subscription, future in arrivals:
            if future.set_running_or_notify_cancel():
                self._router.attach(subscription)
                if self._router.has_any_of_many:
                    self._endings.begin()
                future.set_result(self._position)

    def _is_over(self) -> bool:
        with self._lock:
            if self._router or self._arrivals:
                self._emptied_at = time.monotonic()
            elif time.monotonic() - self._emptied_at > LINGER:
                self._has_ended = True
            return self._has_ended

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            self._has_ended = True
            arrivals, self._arrivals = self._arrivals, []
        closed = MongoSessionServiceError("The service was closed meanwhile.")
        for _, future in arrivals:
            if future.set_running_or_notify_cancel():
                future.set_exception(copy.copy(error or closed))
        for each in self._router:
            self._dismiss(each, error)
        self._counters.is_running = False
