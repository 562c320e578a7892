"""Handler: the function that a consumer calls, alone or in a transaction."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import Any, Final, TypeVar

from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_callable
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.tasks import cancellations, wait_for_end
from mongo_session_service.storage.transactions import (
    ClientSessions,
    Transaction,
    is_of_aborted,
    is_repeated,
)

Handler = Callable[..., Awaitable[object] | object]
"""Receives a change, and in a transaction the driver's session for its writes."""

Result = TypeVar("Result")

_MOST_ABORTED_TRANSACTIONS: Final = 3
"""Aborted transactions after which the handler counts as the cause."""


def check_handler(handler: object, *, transactional: bool) -> None:
    """Require a function that takes a change, and in a transaction its session."""
    check_callable("handler", handler)
    arguments = (None, None) if transactional else (None,)
    try:
        inspect.signature(handler).bind(*arguments)  # type: ignore[arg-type]
    except ValueError:  # it has no signature, as some functions written in C
        return
    except TypeError:
        takes = "handler(change, txn)" if transactional else "handler(change)"
        raise InvalidInputError(
            f"With transactional={transactional} the handler is called as {takes}, but"
            " this one takes other arguments."
        ) from None


class HandlerFailedError(Exception):
    """The handler raised ``error``; nothing was committed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


async def call_handler(
    handler: Handler, record: ChangeRecord, tx: Transaction | None = None
) -> None:
    """Call a handler with a change, and in a transaction with its client session.

    It raises ``HandlerFailedError`` if the handler raises, or the change cannot be
    read. After an error for which the driver repeats the transaction, that is raised.
    A cancellation counts as a failure unless the current task is cancelled meanwhile.
    """
    before = cancellations()
    try:
        given = () if tx is None else (tx.client_session,)
        # In a task of its own: what it leaves cancelled is not the consumer.
        await asyncio.create_task(_run(handler, record.change(), *given))
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        if cancellations() > before:
            raise asyncio.CancelledError from error
        if isinstance(error, HandlerFailedError) or (tx and is_repeated(error)):
            raise
        raise HandlerFailedError(error) from error


async def _run(handler: Handler, *given: Any) -> None:
    try:
        result = handler(*given)
        if inspect.isawaitable(result):
            await result
    except SystemExit as error:  # which would end the event loop
        raise HandlerFailedError(error) from error


async def run_interruptibly(
    storage: Storage,
    work: Callable[[Transaction], Coroutine[Any, Any, Result]],
    finish: Callable[[Transaction, Result], Awaitable[None]],
    kept: ClientSessions | None = None,
) -> Result:
    """Run work, then finish with its result, in one transaction; return the result.

    A cancellation interrupts the work but not the commit, whose outcome would otherwise
    be unknown. A handler has failed, too, if it ignores that the server has aborted the
    transaction, time and again.
    """
    context = copy_context()
    working: asyncio.Task[Result] | None = None
    is_cancelled = False
    aborted = 0

    def interrupt() -> None:
        nonlocal is_cancelled
        is_cancelled = True
        if working is not None:
            working.cancel()

    async def work_and_finish(tx: Transaction) -> Result:
        nonlocal working, aborted
        if is_cancelled:
            raise asyncio.CancelledError
        working = asyncio.Task(work(tx), context=context)
        try:
            result = await working
        finally:
            working = None
        try:
            await finish(tx, result)
        except Exception as error:
            aborted += is_of_aborted(error)
            if aborted < _MOST_ABORTED_TRANSACTIONS:
                raise
            raise HandlerFailedError(error) from error
        return result

    running = asyncio.ensure_future(
        storage.run(work_and_finish, kept=kept, patient=True)
    )
    cancelled = await wait_for_end(running, interrupt)
    if cancelled is None:
        return running.result()
    if not running.cancelled():
        running.exception()  # retrieved, since the caller was cancelled
    raise cancelled


class KeyedTaskPool:
    """Runs tasks, a few at once; those of a session one after the other.

    One of what sessions share comes after all before it, and before all that follow.
    """

    def __init__(self, width: int) -> None:
        self._room = asyncio.Semaphore(width)
        self._last: dict[tuple[str, ...], asyncio.Task[bool]] = {}
        self._shared: asyncio.Task[bool] | None = None

    def submit(
        self, owner: tuple[str, ...], work: Callable[[], Coroutine[None, None, bool]]
    ) -> asyncio.Task[bool]:
        """Start a task that returns whether it was done; False if one before was not.

        It begins as soon as there is room, and those before it have ended.
        """
        is_shared = len(owner) < len(SessionKey._fields)
        ones = self._last.values() if is_shared else [self._last.get(owner)]
        before = [each for each in (*ones, self._shared) if each]
        task = asyncio.create_task(self._run_after(before, work))
        if is_shared:
            self._last, self._shared = {}, task
        else:
            self._last[owner] = task
        return task

    async def _run_after(
        self,
        before: list[asyncio.Task[bool]],
        work: Callable[[], Coroutine[None, None, bool]],
    ) -> bool:
        if before:
            await asyncio.wait(before)
        if not all(_has_succeeded(each) for each in before):
            return False
        async with self._room:
            return await work()


def _has_succeeded(task: asyncio.Task[bool]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result()


async def end_tasks(tasks: Sequence[asyncio.Task[bool]]) -> None:
    """Cancel what has not ended, and wait until it has; the first error was raised."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
