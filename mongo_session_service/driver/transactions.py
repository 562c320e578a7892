"""Transactions brought to an end: in bounded time, and with nothing left open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import pymongo
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import ConfigurationError, NetworkTimeout, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from mongo_session_service.driver.compat import is_starting, renew_connections
from mongo_session_service.driver.retry import PATIENCE

Result = TypeVar("Result")
Txn: TypeAlias = Any
"""The driver's session inside a transaction; None where there are no transactions."""

_UNKNOWN: Final = "UnknownTransactionCommitResult"
_PASSING: Final = "TransientTransactionError"
_FAREWELL: Final = 2.0  # seconds to have the server drop what was given up


Clock: TypeAlias = Mapping[str, Any]
"""What a deployment's clock shows, as signed by a server."""


class Latest:
    """The latest write a service has made, on the deployment's clock.

    Right after an election a primary may not know yet that it is committed, and would
    answer as of before. The one that has confirmed it does know.

    Servers tell each other the time now and then, and clients carry it from one to the
    next. But each event loop has a client of its own, and a server refuses to wait for
    a time that it takes for the future.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time = Timestamp(0, 0)
        self._primary: object = None
        self._clock: Clock | None = None

    def advance(self, time: Timestamp, primary: object, clock: Clock | None) -> None:
        """Take notice of a write, and of the primary it was sent to; in any thread.

        The clock is as it was seen then, or later.
        """
        with self._lock:
            if self._time < time:
                self._time, self._primary, self._clock = time, primary, clock

    def bring_to(self, session: Any) -> None:
        """Have whoever is asked next in a session of the driver's wait for it."""
        with self._lock:
            time, clock = self._time, self._clock
        if clock is not None:
            session.advance_cluster_time(clock)
        if time.time > 0:
            session.advance_operation_time(time)

    def missing_at(self, time: Timestamp, primary: object) -> Timestamp | None:
        """What to wait for, if a primary that answers as of a time may lack it."""
        with self._lock:
            is_there = time >= self._time or primary == self._primary
            return None if is_there else self._time


async def run(
    txn: Txn, work: Callable[[Txn], Awaitable[Result]], concern: WriteConcern
) -> Result:
    """Run ``work`` as one transaction, majority-committed when this returns.

    Args:
        txn: The driver's session.
        work: What to do, from the start each time that the driver tries it again.
        concern: What to write with.
    """
    is_committing = False

    async def tracked(txn: Txn) -> Result:
        nonlocal is_committing
        is_committing = False
        try:
            result = await work(txn)
        except ConfigurationError as error:
            if not is_starting(error):
                raise
            await renew_connections(txn.client)
            raise PyMongoError(str(error), [_PASSING]) from None
        is_committing = True
        return result

    limit = patience(txn.client)
    try:
        # Two timers a transaction, one to interrupt the work and one its abortion,
        # where the driver's own timeout costs several for each command.
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
        if is_committing or timer.expired():
            # The driver will not abort what it tried to commit, and cannot abort what
            # the server is still at.
            await end(txn)
        if isinstance(error, TimeoutError) and timer.expired():
            raise _given_up(limit, is_committing=is_committing) from None
        if is_committing and isinstance(error, ConfigurationError):
            # Met where the driver commits again, whose first request may have come.
            await renew_connections(txn.client)
            raise PyMongoError(str(error), [_UNKNOWN]) from None
        raise
    return result


def patience(client: Any) -> float:
    """Seconds after which a write is given up: the URI's ``timeoutMS``, or a minute."""
    return min(client.options.timeout or PATIENCE, PATIENCE)


def _given_up(limit: float, *, is_committing: bool) -> PyMongoError:
    message = f"it did not finish a transaction within {limit:g} seconds"
    if is_committing:
        return PyMongoError(message, [_UNKNOWN])
    return NetworkTimeout(message)


async def end(session: Any, preference: Any = ReadPreference.PRIMARY) -> None:
    """Have a server end what it does and keeps in a session of the driver's.

    Whose session it is may do this without a privilege. It is given up soon.

    Args:
        session: The session.
        preference: Which server to ask, as a read preference.
    """
    with suppress(PyMongoError, TimeoutError), pymongo.timeout(None):
        async with asyncio.timeout(_FAREWELL):
            admin = session.client["admin"]
            ids = [session.session_id]
            await admin.command("killSessions", ids, read_preference=preference)
