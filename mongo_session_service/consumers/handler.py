"""Calling a handler, alone or in a transaction together with what follows."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

from pymongo.errors import OperationFailure, PyMongoError

from mongo_session_service.changes.decoder import Happening, Unkept
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.driver.transactions import Txn

Handler = Callable[..., Awaitable[object] | object]
"""Gets a change, and in a transaction the driver's session to pass on to its writes."""

Work = Callable[[Txn], Awaitable[None]]
"""Something that is done in a transaction; None is for without one."""


_NO_SUCH_TRANSACTION: Final = 251
_MOST_ABORTED: Final = 3
"""How often a transaction may be gone after its work, before that is to blame."""


class HandlerFailedError(Exception):
    """The handler raised ``error``; nothing that was to follow has happened."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def handling(handler: Handler, item: Happening | Unkept) -> Work:
    """Calling a handler with a change.

    The work raises:
        HandlerFailedError: the handler did, or the change cannot be read.
    """

    async def work(txn: Txn) -> None:
        try:
            change = item.change()
            result = handler(change) if txn is None else handler(change, txn)
            if inspect.isawaitable(result):
                await result
        except PyMongoError as error:
            if txn is not None and error.has_error_label("TransientTransactionError"):
                raise  # the driver does the whole transaction again
            raise HandlerFailedError(error) from error
        except Exception as error:
            raise HandlerFailedError(error) from error

    return work


async def in_transaction(connection: Connection, work: Work, finish: Work) -> None:
    """Do work, and then finish, as one transaction.

    Cancelled, it interrupts the work but not the commit, whose outcome would else be
    unknown.

    Raises:
        HandlerFailedError: the work did, or has gone on after an error of the server,
            which had then aborted the transaction.
    """
    is_working = False
    aborted = 0

    async def both(txn: Txn) -> None:
        nonlocal is_working, aborted
        is_working = True
        try:
            await work(txn)
        finally:
            is_working = False
        try:
            await finish(txn)
        except OperationFailure as error:
            aborted += error.code == _NO_SUCH_TRANSACTION
            if aborted < _MOST_ABORTED:
                raise
            raise HandlerFailedError(error) from error

    task = asyncio.ensure_future(persistently(lambda: connection.transaction(both)))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if is_working:
                task.cancel()
    if cancelled is None:
        task.result()
        return
    if not task.cancelled():
        task.exception()  # of no interest to who was cancelled
    raise cancelled
