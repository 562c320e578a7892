"""Backend: the storage, appender and writer that one event loop uses of a service.

An async client belongs to the loop it is first used in, and is closed together with
it. But ADK's ``Runner.run()`` starts a new loop in a new thread for every call. So a
service built from a URI has one client in a thread's loop, for all loops that may end
soon, and opens one for each loop that stays.

Each loop holds what was opened in it, and nothing else does: one that is dropped, and
closed by nobody, leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar
from uuid import uuid4

from mongo_session_service.errors import ConfigurationError, MongoSessionServiceError
from mongo_session_service.model.limits import Limits
from mongo_session_service.schema.indexes import EVENT_ONCE
from mongo_session_service.schema.setup import check, set_up
from mongo_session_service.sessions.append import Appender, judge
from mongo_session_service.sessions.batch import commit_batch
from mongo_session_service.sessions.reads import ReadCache, SessionReads
from mongo_session_service.sessions.sweep import Sweep, SweepSchedule
from mongo_session_service.sessions.writer import Writer
from mongo_session_service.storage.clients import (
    ConnectionSettings,
    Driver,
    open_client,
)
from mongo_session_service.storage.database import LatestWrite, ServerClock
from mongo_session_service.storage.failures import FOREIGN_LOOP
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.loop_thread import is_thread_loop, thread_loop
from mongo_session_service.storage.tasks import (
    await_in,
    background,
    cancel_background_tasks,
    join,
    running_loop,
    uninterrupted,
)
from mongo_session_service.telemetry import Living

logger = logging.getLogger(__name__)

_CLIENT_PRICE: Final = 100
"""Calls through the loop thread that take as long, together, as to open a client."""
_KEEPERS: Final = "_mongo_session_service_keepers"
"""The attribute of an event loop that holds what closes its clients when it ends."""

_Part = TypeVar("_Part")
_Arguments = ParamSpec("_Arguments")


class Stage(IntEnum):
    """How far a service has made a database ready, each stage after the other."""

    OPENED = 0
    CHECKED = 1
    """The server can be used, and the data is not of a newer release."""
    SET_UP = 2
    """Missing collections and indexes were created."""


@dataclass(slots=True, weakref_slot=True)
class Backend:
    """Reads, writer and storage of one event loop, and what else there is one of."""

    loop: asyncio.AbstractEventLoop
    storage: Storage
    reads: SessionReads
    writer: Writer
    appender: Appender
    sweep: Sweep
    """Of a guest, that of the loop thread."""
    is_borrowed: bool
    """Whether its client is closed by somebody else."""
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """What closes its parts: the last one first."""
    keeper: AsyncGenerator[None, None] | None = None
    """Closes it when the loop ends; None if there is nothing to close."""
    is_closed: bool = False
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)
    stage: Stage = Stage.OPENED
    calls_as_guest: int = 0
    """How often it was used without a client of its own."""
    attempts: dict[Stage, asyncio.Task[None]] = field(default_factory=dict)
    """What makes the database ready, by the stage that it is to reach."""
    _parts: dict[Any, Any] = field(default_factory=dict)

    def part(
        self,
        kind: Callable[_Arguments, _Part],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Part:
        """The one object of a class in this event loop, made at the first call."""
        if kind not in self._parts:
            self._parts[kind] = kind(*args, **kwargs)
        part: _Part = self._parts[kind]
        return part

    def keep(self) -> None:
        """Have what it has opened closed when its loop ends."""
        if self.keeper is None and not self.is_borrowed:
            self.keeper = keep_until_loop_ends(self.close, self.loop)

    async def close(self) -> None:
        """Close its parts, the last one first, and then its own client."""
        async with self.closing:  # whoever comes late, as a loop ends, waits
            try:
                while self.closers:
                    close = self.closers[-1]
                    await close()
                    self.closers.remove(close)
            finally:
                if self.is_borrowed:
                    await self.storage.client_sessions.end_all()
                elif self.storage.host is None and not self.is_closed:
                    # One that is cut off leaves connections.
                    await uninterrupted(self.storage.close_client())
                    self.is_closed = True


class Backends:
    """The backends of one service: one per event loop, opened by its first call."""

    def __init__(
        self,
        uri: str | None,
        client: Any,
        settings: ConnectionSettings,
        read_cache_bytes: int,
    ) -> None:
        self._uri = uri
        self._client = client
        self._settings = settings
        self._read_cache_bytes = read_cache_bytes
        self._missing: frozenset[str] = frozenset()
        self._init_process_state()

    def _init_process_state(self) -> None:
        """Initialise what a fork shares with nobody: lock, backends, clock, cache."""
        self._stage = Stage.OPENED
        self._build: asyncio.Task[None] | None = None
        self.pid = os.getpid()
        self._lock = threading.RLock()
        self._attribute = f"_mongo_session_service_{uuid4().hex}"
        """That of an event loop which holds its backend."""
        self.opened = Living[Backend]()
        self._loop_of_client: asyncio.AbstractEventLoop | None = None
        """The only event loop of a borrowed client, even when that is closed."""
        if self._uri is not None:
            forgetting = self.pid, self.opened, self._attribute
            closing = weakref.finalize(self, _close_forgotten, *forgetting)
            closing.atexit = False  # their event loops have closed them by then
        self._latest = LatestWrite()
        self.clock = ServerClock()
        self._sweeps = SweepSchedule.of_limits(self._settings.limits)
        self._read_cache = ReadCache(self._read_cache_bytes)

    @property
    def limits(self) -> Limits:
        return self._settings.limits

    def parts(
        self, kind: Callable[..., _Part]
    ) -> dict[asyncio.AbstractEventLoop, _Part]:
        """The objects of a class, by event loop, that its backends have as parts."""
        self._reset_after_fork()
        return {
            each.loop: each._parts[kind]  # noqa: SLF001
            for each in self.opened
            if kind in each._parts  # noqa: SLF001
        }

    def here(self) -> Backend | None:
        """Return what the running event loop has; None before its first call."""
        return getattr(running_loop(), self._attribute, None)

    async def backend(
        self, stage: Stage = Stage.CHECKED, *, stays: bool = False
    ) -> Backend:
        """Return the running loop's backend, once the database is at a stage.

        The first call of a process checks the server and the version of the data. The
        first one that adds sessions or events creates what is missing of collections
        and indexes. A borrowed client that belongs to another loop is refused.

        A loop that ``stays`` has a client of its own. Others are guests of the loop
        thread, until they have made as many calls as take as long as to open one.
        """
        backend = self.here()
        if backend is None or backend.stage < stage or stays or self.pid != os.getpid():
            backend = await self._make_ready(stage, stays=stays)
        return backend

    async def storage(self, *, stays: bool = False) -> Storage:
        return (await self.backend(stays=stays)).storage

    async def _make_ready(self, stage: Stage, *, stays: bool) -> Backend:
        self._reset_after_fork()
        backend = self.here()
        if backend is None:
            stays |= self._uri is None
            backend = self._open_backend(running_loop(), stays=stays)
        elif backend.storage.host is not None:
            backend.calls_as_guest += 1
            if stays or backend.calls_as_guest > _CLIENT_PRICE:
                backend.storage.connect(self._open_client(backend.loop))
                backend.keep()
        if stage > self._stage:
            await join(backend.attempts, stage, partial(self._attempt, backend, stage))
        if self._stage >= Stage.CHECKED:
            backend.sweep.start_timer(backend.storage.client_loop)
            if backend.storage.host is None:
                backend.stage = self._stage
        return backend

    async def _attempt(self, backend: Backend, stage: Stage) -> None:
        """Make the database ready; callers that meet an outage wait for it together."""
        if stage is Stage.SET_UP:
            await self._set_up(backend.storage, builds=False)
        else:
            await check(backend.storage)
            self._stage = max(self._stage, stage)

    def _reset_after_fork(self) -> None:
        if self.pid != os.getpid():  # the parent's sockets, loops and lock
            self._init_process_state()

    async def set_up(self) -> None:
        """Create collections and indexes, and check the server, even if done before."""
        storage = (await self.backend(Stage.OPENED)).storage
        await self._set_up(storage, builds=True)

    async def _set_up(self, storage: Storage, *, builds: bool) -> None:
        self._missing, is_to_be_built = await set_up(storage, builds=builds)
        self._stage = Stage.SET_UP
        for each in self.opened:
            each.storage.has_event_index = EVENT_ONCE.name not in self._missing
        if is_to_be_built:
            home = storage.host or storage
            storage.client_loop.call_soon_threadsafe(self._start_build, home)

    def _start_build(self, storage: Storage) -> None:
        self._build = background(self._build_indexes(storage))

    async def _build_indexes(self, storage: Storage) -> None:
        try:
            await self._set_up(storage, builds=True)
        except MongoSessionServiceError as error:  # nobody awaits this
            logger.warning("Indexes are missing. %s", error)

    def _open_client(self, loop: asyncio.AbstractEventLoop) -> Any:
        if self._uri is not None:
            return open_client(self._uri)
        if Driver.detect(self._client) is not Driver.MOCK:
            if self._loop_of_client not in (None, loop):
                raise ConfigurationError(FOREIGN_LOOP)
            self._loop_of_client = loop
        return self._client

    def _open_backend(self, loop: asyncio.AbstractEventLoop, *, stays: bool) -> Backend:
        with self._lock:
            host: Backend | None = None
            if not stays:
                there = thread_loop()
                host = getattr(there, self._attribute, None)
                host = host or self._open_backend(there, stays=True)
            storage = Storage(
                host.storage.client if host else self._open_client(loop),
                self._settings,
                self._latest,
                self.clock,
                host.storage if host else None,
            )
            storage.has_event_index = EVENT_ONCE.name not in self._missing
            reads = SessionReads(storage, self._read_cache)
            writer = Writer(
                storage, partial(commit_batch, storage), partial(judge, storage)
            )
            entry = Backend(
                loop=loop,
                storage=storage,
                reads=reads,
                writer=writer,
                appender=Appender(storage, reads, writer),
                sweep=host.sweep if host else Sweep(storage, self._sweeps),
                is_borrowed=self._uri is None,
            )
            if host is None:
                entry.closers += [entry.sweep.stop, reads.close]
                entry.keep()
            setattr(loop, self._attribute, entry)
            self.opened.add(entry)
            return entry

    def forget(
        self, app_name: str, user_id: str | None = None, session_id: str | None = None
    ) -> None:
        """Drop what the cache holds of a session, a user or an app."""
        self._read_cache.drop(app_name, user_id, session_id)

    async def close(self) -> None:
        """Close every client this service opened, in whichever loop it runs.

        Appends that are under way are finished before: a transaction that loses its
        client would stay open on the server for a minute.
        """
        self._read_cache.clear()
        with self._lock:
            entries = [*self.opened]
            for each in entries:
                self.opened.discard(each)
                delattr(each.loop, self._attribute)
        # Each is closed, also if this is cancelled, and the host after its guests.
        async with AsyncExitStack() as closing:
            for each in entries:
                # The keeper of a loop that may be ending closes it then; that of one
                # that stays would be left there for ever.
                stays = each.loop is running_loop() or is_thread_loop(each.loop)
                close = partial(_close_backend if stays else _finish_and_close, each)
                closing.push_async_callback(await_in, each.loop, close)


def _close_forgotten(pid: int, entries: Living[Backend], attribute: str) -> None:
    """Close the clients of a service that was garbage-collected, in any thread."""
    if pid != os.getpid():
        return  # its clients stayed in the parent

    for entry in entries:
        if not entry.loop.is_closed():
            entry.loop.call_soon_threadsafe(background, _close_backend(entry))
            delattr(entry.loop, attribute)


async def _close_backend(entry: Backend) -> None:
    try:
        await _finish_and_close(entry)
    finally:
        if entry.keeper is not None:
            await anext(entry.keeper, None)


async def _finish_and_close(entry: Backend) -> None:
    """Finish what is under way, which needs the client; then close all."""
    await entry.writer.finish_writes()
    await entry.close()


def keep_until_loop_ends(
    close: Callable[[], Awaitable[None]], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None, None]:
    """Return a generator that calls ``close`` when it or its loop ends.

    A cancellation waits for it: nobody else would close what is left of a client.
    It has begun, so ``loop.shutdown_asyncgens()`` finishes it, which ``asyncio.run``
    calls when all tasks are done: the one moment a library has for it.
    """

    async def keep() -> AsyncGenerator[None, None]:
        try:
            yield
        except GeneratorExit:  # the loop ends
            await cancel_background_tasks()
            raise
        finally:
            getattr(loop, _KEEPERS).remove(keeper)
            with warnings.catch_warnings():
                # Older PyMongo closes by means of such generators itself.
                message = "asynchronous generator .* was scheduled after"
                warnings.filterwarnings("ignore", message, ResourceWarning)
                await uninterrupted(close())

    keeper = keep()
    # It has to outlive a service that is let go.
    setattr(loop, _KEEPERS, [*getattr(loop, _KEEPERS, ()), keeper])

    def begin() -> None:
        with suppress(StopIteration):  # it has yielded
            anext(keeper).send(None)

    loop.call_soon_threadsafe(begin)  # a background task hides what begins in it
    return keeper
