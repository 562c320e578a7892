"""Handler: what a consumer calls, alone or in one transaction with the checkpoint."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, TypeVar

from pymongo.errors import OperationFailure, PyMongoError

from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.errors import InvalidInputError, MongoSessionServiceError
from mongo_session_service.model.validation import check_callable
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.transactions import Txn, run_transaction

Handler = Callable[..., Awaitable[object] | object]
"""Receives a change, and in a transaction the driver's session for its writes."""

Work = Callable[[Txn], Awaitable[None]]
"""Work in a transaction, or without one if it receives None."""

Result = TypeVar("Result")

_NO_SUCH_TRANSACTION: Final = 251
_MOST_ABORTED_TRANSACTIONS: Final = 3
"""Aborted transactions after which the handler counts as the cause."""


def check_handler(handler: object, *, transactional: bool) -> None:
    """Require a function that takes a change, and in a transaction its session."""
    check_callable("handler", handler)
    arguments = (None, None) if transactional else (None,)
    try:
        inspect.signature(handler).bind(*arguments)  # type: ignore[arg-type]
    except ValueError:  # it does not tell what it takes
        return
    except TypeError:
        takes = "handler(change, txn)" if transactional else "handler(change)"
        raise InvalidInputError(
            f"With transactional={transactional} the handler is called as {takes}, but"
            " this one takes other arguments. A handler whose writes are not MongoDB's"
            " to commit, such as that of remember(), cannot be transactional."
        ) from None


class HandlerFailedError(Exception):
    """The handler raised ``error``; nothing was committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


_connection: ContextVar[Connection | None] = ContextVar("_connection", default=None)


def handler_connection() -> Connection:
    """Return the connection of the consumer whose handler is running."""
    found = _connection.get()
    if found is None:
        raise MongoSessionServiceError(
            "This handler works in a consumer only: give it to run() or"
            " replay_dead_letters()."
        )
    return found


def handler_call(
    handler: Handler, record: ChangeRecord, connection: Connection
) -> Work:
    """Wrap a handler's call for a transaction; its errors become HandlerFailedError.

    The work raises:
        HandlerFailedError: the handler raised, or the change cannot be read.
    """

    async def call_handler(txn: Txn) -> None:
        token = _connection.set(connection)
        try:
            change = record.change()
            result = handler(change) if txn is None else handler(change, txn)
            if inspect.isawaitable(result):
                await result
        except PyMongoError as error:
            if txn is not None and error.has_error_label("TransientTransactionError"):
                raise  # the driver retries the whole transaction
            raise HandlerFailedError(error) from error
        except Exception as error:
            raise HandlerFailedError(error) from error
        finally:
            _connection.reset(token)

    return call_handler


async def run_interruptible_transaction(
    connection: Connection,
    work: Callable[[Txn], Awaitable[Result]],
    finish: Callable[[Txn, Result], Awaitable[None]],
    session: Txn = None,
) -> Result:
    """Run work, then finish with its result, in one transaction; return the result.

    A cancellation interrupts the work but not the commit, whose outcome would otherwise
    be unknown. A handler has failed, too, if it ignores that the server has aborted the
    transaction, time and again.
    """
    is_working = False
    aborted = 0

    async def handle_then_save(txn: Txn) -> Result:
        nonlocal is_working, aborted
        is_working = True
        try:
            result = await work(txn)
        finally:
            is_working = False
        try:
            await finish(txn, result)
        except OperationFailure as error:
            aborted += error.code == _NO_SUCH_TRANSACTION
            if aborted < _MOST_ABORTED_TRANSACTIONS:
                raise
            raise HandlerFailedError(error) from error
        return result

    running = connection.retry(
        run_transaction, connection, handle_then_save, session=session
    )
    task = asyncio.ensure_future(running)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if is_working:
                task.cancel()
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # retrieved, since the caller was cancelled
    raise cancelled
