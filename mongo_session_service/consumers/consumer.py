"""Durable consumers: every change at least once per name, across crashes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from typing import Self

from mongo_session_service._public import public
from mongo_session_service.backend import Backends
from mongo_session_service.changes.change import Change
from mongo_session_service.consumers import dead_letters
from mongo_session_service.consumers.dead_letters import DeadLetter
from mongo_session_service.consumers.handler import Handler, check_handler
from mongo_session_service.consumers.leased_reader import (
    ConsumerSettings,
    LeasedReader,
    start_at_present,
)
from mongo_session_service.consumers.processor import Processor
from mongo_session_service.errors import (
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    quoted,
)
from mongo_session_service.model.validation import check_count, check_flag
from mongo_session_service.storage.lease import LeaseRenewer
from mongo_session_service.storage.tasks import (
    SharedTask,
    running_loop,
    uninterrupted,
)

_calling: ContextVar[Consumer | None] = ContextVar("_calling", default=None)
"""The consumer whose handler is running, for whatever that calls."""


@public
class Consumer:
    """A named reader of all changes, of an app or of the database, that is durable.

    ::

        async with service.consumer("billing", app_name="my_app") as consumer:
            async for change in consumer:
                await bill(change)
                await consumer.commit()

    It resumes after the last change committed under its name, in any process. What was
    committed is not delivered again, everything else at least once; ``session_key`` and
    ``revision`` identify an ``appended`` change. One reader holds the name at a time:
    others wait, and one takes over within seconds when it is closed or its process
    dies.

    Reading and committing raise:

    - ``LeaseLostError``: another reader has taken over; nothing was committed.
    - ``HistoryLostError``: the change stream cannot be resumed, or the database or the
      checkpoint was dropped, and ``on_history_lost`` is ``raise``.
    - ``ConfigurationError``: the name belongs to another app's changes, or the server
      has no change streams.
    - ``StorageUnavailableError``: MongoDB has been unreachable for a minute.
    - ``StorageError``: MongoDB refused, or the change cannot be decoded; the next read
      continues after it, and ``run()`` keeps it as a dead letter.
    """

    def __init__(
        self, backends: Backends, settings: ConsumerSettings, renewer: LeaseRenewer
    ) -> None:
        self.name = settings.name
        self._backends = backends
        self._settings = settings
        self._renewer = renewer
        self._reader: LeasedReader | None = None
        self._is_idle = asyncio.Event()
        """Set unless run() is handling a change."""
        self._is_idle.set()
        self._starting = SharedTask[LeasedReader]()
        self._is_running = False
        self._is_concurrent = False
        """Whether run() handles several changes at once."""
        self._is_ending = False
        self._has_uncommitted = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        if self._settings.start == "now":
            async with self._backends.in_call() as opened:
                await start_at_present(opened.connection, self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the name at once; reading again acquires it again.

        ``run()`` ends, and releases it, once the current change is handled and it has
        committed, or its handler has failed once more.
        """
        if self._reader is not None:
            self._reader.stop_delivering()
        if self._is_idle.is_set():
            await self._close_reader()

    async def end(self) -> None:
        """Close, and wait until the current change is handled.

        It does not wait if its own handler calls this, nor for a handler that itself
        waits for consumers to end.
        """
        caller = _calling.get()
        if caller is not None:
            caller._is_ending = True  # noqa: SLF001
        await self.close()
        if caller is not self and not self._is_ending:
            await self._is_idle.wait()

    async def _close_reader(self) -> None:
        started = await self._starting.cancel_task()
        ending, self._reader = self._reader or started, None
        if ending is not None:
            self._has_uncommitted = ending.delivered is not None
            await uninterrupted(ending.release_name())

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since its checkpoint was saved here; None if it is not reading."""
        reader = self._reader
        return None if reader is None else time.monotonic() - reader.saved_at

    @property
    def is_here(self) -> bool:
        """Tell whether it reads in the running event loop."""
        return self._loop is running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        self._check_not_running()
        reader = await self._open_reader()
        if reader is None:
            raise StopAsyncIteration
        async with reader.connection.translating_errors():
            delivery = await reader.next_delivery()
        return delivery.record.change()

    def _check_not_running(self) -> None:
        """Refuse a second reader: its commits would include what run() has not done."""
        if self._is_running:
            message = f"run() of consumer {quoted(self.name)} is already running."
            raise MongoSessionServiceError(message)

    async def commit(self) -> None:
        """Save, with a majority, that everything delivered so far is handled.

        While ``run(concurrency=...)`` handles several changes at once: everything that
        is handled, up to the first that is not.

        Raises:
            LeaseLostError: another reader has taken over; nothing was committed.
            StorageUnavailableError: it may or may not have been committed; try again.
        """
        if (reader := self._reader) is not None:
            async with reader.connection.translating_errors():
                if self._is_concurrent:
                    await reader.save_handled()
                else:
                    await reader.save(reader.delivered)
        elif self._has_uncommitted:
            who = f"Consumer {quoted(self.name)}"
            raise LeaseLostError(f"{who} was closed; this was not committed.")

    async def run(
        self,
        handler: Handler,
        *,
        max_attempts: int = 5,
        transactional: bool = False,
        concurrency: int = 1,
        until_caught_up: bool = False,
    ) -> None:
        """Handle and commit every change, until it is cancelled or closed.

        Changes that were read together are committed together: after a tenth of a
        second of handling, before it waits for more, and when it is cancelled or
        closed. A crash repeats what was handled since; the order stays the same.

        Args:
            handler: Called with each change, and awaited if it is a coroutine function.
                If it raises, it is called again after growing pauses of 0.1 to 30
                seconds; after the last attempt the change becomes a dead letter.
            max_attempts: How often it is called at most; once more in a transaction of
                several changes.
            transactional: Call ``handler(change, txn)``, where ``txn`` is the
                driver's session. What is written with ``session=txn``, through
                ``txn.client``, is committed together with the checkpoint: exactly
                once. It is called again if the transaction has to be retried. Changes
                that were read together share a transaction, for a second at most; if
                any of them fails, each is handled in its own.

            concurrency: For how many changes of different sessions it is called at
                once. Those of one session come in order, as do ``state`` changes and
                those of the sessions they concern.
            until_caught_up: End when everything is handled that was committed before
                it had the name: for cron jobs and tests. It waits for the name first.

        Raises:
            InvalidInputError: ``handler`` is not a function of these arguments,
                ``max_attempts`` or ``concurrency`` no number from 1 on, or
                ``transactional`` or ``until_caught_up`` neither True nor False; or
                ``transactional`` is True, and ``concurrency`` above 1.
            MongoSessionServiceError: it is running already.
        """
        check_flag("transactional", transactional)
        check_flag("until_caught_up", until_caught_up)
        check_handler(handler, transactional=transactional)
        check_count("max_attempts", max_attempts)
        check_count("concurrency", concurrency)
        if transactional and concurrency > 1:
            message = (
                "concurrency must be 1 with transactional=True: handlers share a"
                " transaction, which does one thing at a time."
            )
            raise InvalidInputError(message)
        self._check_not_running()
        self._is_running, self._is_concurrent = True, concurrency > 1
        token = _calling.set(self)
        try:
            processor = Processor(
                self.name, handler, max_attempts, transactional, concurrency
            )
            while (reader := await self._open_reader()) is not None:
                async with reader.connection.translating_errors():
                    if until_caught_up and reader.until is None:
                        await reader.end_at_present()
                    try:
                        first = await reader.next_delivery()
                    except StopAsyncIteration:
                        return
                    self._is_idle.clear()
                    await processor.handle_batch(reader, first)
                if not reader.is_over:
                    self._is_idle.set()
        finally:
            _calling.reset(token)
            try:
                await self._close_reader()
            finally:
                self._is_running = self._is_ending = self._is_concurrent = False
                self._is_idle.set()

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """The changes whose every attempt failed, the oldest failure first."""
        async with self._backends.in_call() as opened:
            found = dead_letters.load_dead_letters(opened.connection, self.name)
            async for letter in found:
                yield letter

    async def replay_dead_letters(
        self, handler: Handler, *, transactional: bool = False
    ) -> int:
        """Calls the handler once on each dead letter; returns how many it handled.

        These are removed, and those whose change is gone, with a warning; the others
        stay, with their new error. It needs no lease, and can be called while the
        consumer runs elsewhere.

        Args:
            handler: As for :meth:`run`.
            transactional: As for :meth:`run`, together with the letter's removal.

        Raises:
            InvalidInputError: ``handler`` is not a function of these arguments, or
                ``transactional`` is neither True nor False.
        """
        check_flag("transactional", transactional)
        check_handler(handler, transactional=transactional)
        async with self._backends.in_call() as opened:
            return await dead_letters.replay_dead_letters(
                opened.connection, self.name, handler, transactional=transactional
            )

    async def _open_reader(self) -> LeasedReader | None:
        """Return the reader, opened if there is none; None if it was closed meanwhile.

        If this is cancelled, the next call continues the opening.
        """
        if self._reader is None:
            self._loop = running_loop()
            self._has_uncommitted = False
            # It holds no reference to the consumer, which may be collected meanwhile.
            begin = partial(
                _begin_reading, self._backends, self._settings, self._renewer
            )
            self._reader = await self._starting.await_result(begin) or self._reader
        return self._reader


async def _begin_reading(
    backends: Backends, settings: ConsumerSettings, renewer: LeaseRenewer
) -> LeasedReader:
    async with backends.in_call() as opened:
        return await LeasedReader.acquire_name(opened.connection, settings, renewer)
