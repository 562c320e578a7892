"""Durable consumers: every change at least once per name, across crashes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Self

from mongo_session_service._public import public
from mongo_session_service.backend import Opener
from mongo_session_service.changes.change import Change
from mongo_session_service.consumers.coordinator import (
    OnHistoryLost,
    Start,
    Tenure,
    begin_now,
)
from mongo_session_service.consumers.dead_letters import (
    DeadLetter,
    all_dead_letters,
    replay,
)
from mongo_session_service.consumers.handler import Handler
from mongo_session_service.consumers.processor import Attempts
from mongo_session_service.driver.cancellation import Step, uninterrupted
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.server import naming_privileges
from mongo_session_service.errors import (
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    quoted,
)
from mongo_session_service.model.validation import check_callable, check_flag

_handling: ContextVar[Consumer | None] = ContextVar("_handling", default=None)
"""The consumer whose handler is running, for whatever that calls."""


@public
class Consumer:
    """A named reader of all changes, of an app or of the database, that is durable.

    ::

        async with service.consumer("billing", app_name="my_app") as consumer:
            async for change in consumer:
                await bill(change)
                await consumer.commit()

    It goes on after the change that was committed last under its name, in whatever
    process. What was committed is not delivered again, all else at least once; an
    ``appended`` change is told from others by its ``session_key`` and ``revision``.
    One reader has the name at a time: others wait, and one takes over within seconds
    when it is closed or its process dies.

    Reading and committing raise:

    - ``LeaseLostError``: another reader has taken over; nothing was committed.
    - ``HistoryLostError``: MongoDB cannot tell what comes next, and ``on_history_lost``
      is ``raise``.
    - ``ConfigurationError``: the name belongs to another app's changes, or the server
      has no change streams.
    - ``StorageUnavailableError``: MongoDB has been away for a minute.
    - ``StorageError``: MongoDB refused, or holds an event this ADK cannot read.
    """

    def __init__(
        self,
        opener: Opener,
        name: str,
        app_name: str | None,
        *,
        start: Start,
        on_history_lost: OnHistoryLost,
    ) -> None:
        self.name = name
        self._opener = opener
        self._app_name = app_name
        self._start = start
        self._on_history_lost = on_history_lost
        self._tenure: Tenure | None = None
        self._is_free = asyncio.Event()
        """Set unless run() is at a change."""
        self._is_free.set()
        self._beginning = Step[Tenure]()
        self._is_running = False
        self._is_ending = False
        self._has_uncommitted = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        if self._start == "now":
            async with self._opener() as opened:
                await begin_now(opened.connection, self.name, self._app_name)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let another reader take over at once; reading on takes up the name again.

        ``run()`` ends, and lets go, once the change at hand is handled and committed,
        or its handler has failed once more.
        """
        if self._tenure is not None:
            self._tenure.stop()
        if self._is_free.is_set():
            await self._let_go()

    async def end(self) -> None:
        """Close, and wait until the change at hand is handled; not from its handler.

        Nor for a handler that waits itself for others to end, this one maybe.
        """
        caller = _handling.get()
        if caller is not None:
            caller._is_ending = True  # noqa: SLF001
        await self.close()
        if caller is not self and not self._is_ending:
            await self._is_free.wait()

    async def _let_go(self) -> None:
        begun = await self._beginning.end()
        tenure, self._tenure = self._tenure or begun, None
        if tenure is not None:
            self._has_uncommitted = tenure.has_uncommitted
            await uninterrupted(tenure.close())

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since its checkpoint was saved here; None if it is not reading."""
        tenure = self._tenure
        return None if tenure is None else time.monotonic() - tenure.saved_at

    @property
    def is_here(self) -> bool:
        """Whether it reads in the running event loop."""
        return self._loop is asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        self._check_free()
        with translated():
            tenure = await self._begun()
            if tenure is None:
                raise StopAsyncIteration
            async with naming_privileges(tenure.connection):
                delivery = await tenure.next()
            return delivery.item.change()

    def _check_free(self) -> None:
        """Refuse a second reader: what one commits, the other may not have handled."""
        if self._is_running:
            message = f"run() of consumer {quoted(self.name)} is under way already."
            raise MongoSessionServiceError(message)

    async def commit(self) -> None:
        """Save, with a majority, that all that was delivered so far is done.

        Raises:
            LeaseLostError: another reader has taken over; nothing was committed.
            StorageUnavailableError: it may have been committed or not; try again.
        """
        if self._tenure is not None:
            async with naming_privileges(self._tenure.connection):
                await self._tenure.commit()
        elif self._has_uncommitted:
            who = f"Consumer {quoted(self.name)}"
            raise LeaseLostError(f"{who} was closed; this was not committed.")

    async def run(
        self, handler: Handler, *, max_attempts: int = 5, transactional: bool = False
    ) -> None:
        """Have every change handled and committed, until it is cancelled or closed.

        Args:
            handler: Called with each change, awaited if it is a coroutine function. If
                it raises it is called again, after growing pauses of 0.1 to 30
                seconds, and at last the change is kept among the dead letters.
            max_attempts: How often it is called at most.
            transactional: Call ``handler(change, txn)``, where ``txn`` is the
                driver's session. What is written with ``session=txn``, by way of
                ``txn.client``, is committed together with the checkpoint: exactly
                once. It may be called again when the transaction has to be repeated.

        Raises:
            InvalidInputError: ``handler`` is no function, ``max_attempts`` no number
                from 1 on, or ``transactional`` neither True nor False.
            MongoSessionServiceError: it is running already.
        """
        check_callable("handler", handler)
        check_flag("transactional", transactional)
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise InvalidInputError("max_attempts must be a number, 1 or more.")
        self._check_free()
        self._is_running = True
        token = _handling.set(self)
        try:
            with translated():
                while (tenure := await self._begun()) is not None:
                    async with naming_privileges(tenure.connection):
                        try:
                            delivery = await tenure.next()
                        except StopAsyncIteration:
                            return
                        self._is_free.clear()
                        attempts = Attempts(handler, max_attempts, transactional)
                        await attempts.at(tenure, self.name, delivery)
                    if not tenure.is_over:
                        self._is_free.set()
        finally:
            _handling.reset(token)
            try:
                await self._let_go()
            finally:
                self._is_running = self._is_ending = False
                self._is_free.set()

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """The changes its handler has failed on for good, the oldest failure first."""
        async with self._opener() as opened:
            async for letter in all_dead_letters(opened.connection, self.name):
                yield letter

    async def replay_dead_letters(
        self, handler: Handler, *, transactional: bool = False
    ) -> int:
        """Calls the handler once on each dead letter; returns how many it handled.

        These are no dead letters any more; the others stay, with their new error. It
        needs no lease, and can be called while the consumer runs elsewhere.

        Args:
            handler: As for :meth:`run`.
            transactional: As for :meth:`run`, together with the letter's removal.

        Raises:
            InvalidInputError: ``handler`` is no function, or ``transactional`` neither
                True nor False.
        """
        check_callable("handler", handler)
        check_flag("transactional", transactional)
        async with self._opener() as opened:
            return await replay(
                opened.connection, self.name, handler, transactional=transactional
            )

    async def _begun(self) -> Tenure | None:
        """The tenure under way, or a new one; None if it is closed before it has it.

        Who is cancelled leaves the rest of a beginning to the next call.
        """
        if self._tenure is None:
            self._loop = asyncio.get_running_loop()
            self._has_uncommitted = False
            # It does not know the consumer, who may be let go meanwhile.
            begin = partial(
                _begin,
                self._opener,
                self.name,
                self._app_name,
                self._start,
                self._on_history_lost,
            )
            self._tenure = await self._beginning.result(begin) or self._tenure
        return self._tenure


async def _begin(
    opener: Opener,
    name: str,
    app_name: str | None,
    start: Start,
    on_history_lost: OnHistoryLost,
) -> Tenure:
    async with opener() as opened:
        return await Tenure.begin(
            opened.connection, name, app_name, start, on_history_lost
        )
