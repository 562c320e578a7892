"""Feed: the one change stream that serves all subscriptions of a service.

A service built from a URI works in any event loop, and loops come and go. Its feed
therefore runs in its own thread, for as long as there are subscriptions. A borrowed
client belongs to one event loop, and its feed runs there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from contextvars import Context
from typing import Any, Final
from weakref import WeakSet

from bson.timestamp import Timestamp

from mongo_session_service.backend import (
    Backends,
    forget_closed_loops,
    keep_until_loop_ends,
)
from mongo_session_service.changes.routing import Scope
from mongo_session_service.feed.inbox import Inbox, Waker
from mongo_session_service.feed.reader import Reader
from mongo_session_service.feed.stats import Counters, FeedStats
from mongo_session_service.storage.tasks import running_loop

THREAD_NAME: Final = "mongo-session-service-feed"

_LOOP_END_SECONDS: Final = 3.0
"""Seconds that an event loop's end waits for a feed to end with it."""

_Runner = threading.Thread | asyncio.Task[None]


class Feed:
    """Serves subscriptions from one change stream; starts with the first of them."""

    def __init__(self, backends: Backends) -> None:
        self.backends = backends
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._runners: list[_Runner] = []  # of this reader, and of former ones
        self._wakers: dict[asyncio.AbstractEventLoop, Waker] = {}
        self.counters = Counters()

    def __getstate__(self) -> dict[str, Any]:
        return {"backends": self.backends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.backends = state["backends"]
        self._reset()

    async def open_inbox(
        self, scope: Scope, max_bytes: int, *, wants_partials: bool
    ) -> tuple[Inbox, Timestamp]:
        """Open an inbox for every change of a scope after the returned time."""
        self._reset_after_fork()
        loop = running_loop()
        with self._lock:
            forget_closed_loops(self._wakers)
            waker = self._wakers.setdefault(loop, Waker(loop))
        inbox = Inbox(
            scope,
            waker,
            self.backends.limits.inbox_changes,
            max_bytes,
            wants_partials=wants_partials,
        )
        try:
            entered = None
            while entered is None:
                reader = self._current_reader()
                entered = reader.admit_inbox(inbox)
            if self.backends.owns_clients:
                await _end_reader_with_loops(reader)
            return inbox, await asyncio.wrap_future(entered)
        except BaseException:
            inbox.abandon()
            raise

    async def close(self) -> None:
        """End every subscription, and close the stream."""
        self._reset_after_fork()
        with self._lock:
            reader, self._reader = self._reader, None
            runners = self._runners
        if reader is not None:
            reader.stop_soon()
        # They run in other threads, or in event loops that may be closing.
        while any(map(_is_running, runners)):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def stats(self) -> FeedStats:
        """Its current figures."""
        self._reset_after_fork()
        reader, counters = self._reader, self.counters
        inboxes = reader.inboxes() if reader else []
        return FeedStats(
            is_running=reader is not None and not reader.has_ended,
            subscriptions=len(inboxes),
            queue_depth=max(map(len, inboxes), default=0),
            lag_seconds=counters.lag_now,
            oplog_window_seconds=counters.oplog_window,
            delivered=counters.delivered,
            reconnects=counters.reconnects,
            resyncs=counters.resyncs,
            drops=counters.drops,
        )

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            # After a fork the parent's thread is gone, and its lock may be held.
            self._reset()

    def _current_reader(self) -> Reader:
        with self._lock:
            if self._reader is None or self._reader.has_ended:
                reader = Reader(self.backends, self.counters)
                runner = _start_runner(reader, self.backends)
                self._runners = [*filter(_is_running, self._runners), runner]
                self._reader = reader
            return self._reader


def _start_runner(reader: Reader, backends: Backends) -> _Runner:
    if not backends.owns_clients:  # a borrowed one stays in its event loop
        return asyncio.create_task(reader.run_feed(), context=Context())
    thread = threading.Thread(
        target=_run_thread, args=[reader, backends], name=THREAD_NAME
    )
    thread.daemon = True
    reader.thread = thread
    thread.start()
    return thread


_served: dict[asyncio.AbstractEventLoop, WeakSet[Reader]] = {}
"""The readers to be told when an event loop ends."""


async def _end_reader_with_loops(reader: Reader) -> None:
    """Have a reader end with the last of the event loops that it serves."""
    loop = asyncio.get_running_loop()

    async def leave_readers() -> None:
        readers = list(_served.pop(loop))
        for each in readers:
            each.leave(loop)
        ending = [each.thread for each in readers if each.thread and each.has_ended]
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOP_END_SECONDS):
                while any(map(_is_running, ending)):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)

    if loop not in _served:
        forget_closed_loops(_served)
        _served[loop] = WeakSet()
        await anext(keep_until_loop_ends(leave_readers, loop))
    _served[loop].add(reader)


def _is_running(runner: _Runner) -> bool:
    if isinstance(runner, threading.Thread):
        return runner.is_alive()
    # In an event loop that has stopped, a task never finishes.
    return not runner.done() and runner.get_loop().is_running()


def _run_thread(reader: Reader, backends: Backends) -> None:
    async def run_and_close() -> None:
        try:
            # Its own task, since a late cancellation must not interrupt the closing.
            await asyncio.create_task(reader.run_feed())
        finally:
            await backends.close_here()

    try:
        asyncio.run(run_and_close())
    finally:
        if not reader.has_ended:  # it could not start
            reader.end_run(None)
