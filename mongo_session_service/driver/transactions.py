"""Transactions: run to their end, in bounded time, with nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import pymongo
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError, NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from mongo_session_service.driver.compat import renewed
from mongo_session_service.driver.retry import RETRY_LIMIT

Result = TypeVar("Result")
Txn: TypeAlias = Any
"""The driver's session inside a transaction; None where there are no transactions."""

_UNKNOWN: Final = "UnknownTransactionCommitResult"
_PASSING: Final = "TransientTransactionError"
_FAREWELL: Final = 2.0  # seconds for the server to end what was given up


async def run(
    txn: Txn,
    work: Callable[[Txn], Awaitable[Result]],
    concern: WriteConcern,
    limit: float | None = None,
) -> Result:
    """Run ``work``, again whenever the driver retries it, as one transaction.

    It is given up after ``limit`` seconds; after :func:`patience` by default.
    """
    is_committing = False

    async def tracked(txn: Txn) -> Result:
        nonlocal is_committing
        is_committing = False
        try:
            result = await work(txn)
        except PyMongoError as error:
            if not await renewed(txn.client, error):
                raise
            raise PyMongoError(str(error), [_PASSING]) from None
        is_committing = True
        return result

    limit = patience(txn.client) if limit is None else max(limit, 0.0)
    try:
        # Two timers per transaction, one to interrupt the work and one its abort. The
        # driver's own timeout costs several timers per command.
        async with (
            asyncio.timeout(limit + _FAREWELL),
            asyncio.timeout(limit) as timer,
        ):
            result: Result = await txn.with_transaction(
                tracked,
                read_concern=ReadConcern("local"),
                write_concern=concern,
                read_preference=ReadPreference.PRIMARY,
            )
    except (PyMongoError, TimeoutError) as error:
        is_outdated = isinstance(error, PyMongoError) and await renewed(
            txn.client, error
        )
        if is_committing or timer.expired():
            # The driver does not abort what it tried to commit, and cannot abort what
            # the server is still doing.
            await end(txn)
        if isinstance(error, TimeoutError) and timer.expired():
            message = f"it did not finish a transaction within {limit:g} seconds"
            if is_committing:
                raise PyMongoError(message, [_UNKNOWN]) from None
            raise NetworkTimeout(message) from None
        if is_committing and (is_outdated or isinstance(error, ConfigurationError)):
            # Raised when the driver retries a commit, whose first request may have
            # arrived.
            raise PyMongoError(str(error), [_UNKNOWN]) from None
        raise
    return result


def patience(client: Any) -> float:
    """Seconds after which a write is given up: the URI's ``timeoutMS``, or a minute."""
    return min(client.options.timeout or RETRY_LIMIT, RETRY_LIMIT)


async def end(session: Any, preference: Any = ReadPreference.PRIMARY) -> None:
    """Make a server, by preference, end all that runs in a driver's session.

    The session's owner needs no privilege for this. It is given up soon.
    """
    with suppress(PyMongoError, TimeoutError), pymongo.timeout(None):
        async with asyncio.timeout(_FAREWELL):
            admin = session.client["admin"]
            ids = [session.session_id]
            await admin.command("killSessions", ids, read_preference=preference)
