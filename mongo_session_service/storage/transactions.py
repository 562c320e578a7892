"""Transactions: run to their end, in bounded time, with nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pymongo import ReadPreference
from pymongo.errors import (
    ConfigurationError,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    WriteError,
)
from pymongo.read_concern import ReadConcern

from mongo_session_service import telemetry
from mongo_session_service.model.records import Document
from mongo_session_service.storage.compat import renew_connections
from mongo_session_service.storage.connection import (
    ABORT_SECONDS,
    Connection,
    kill_client_session,
)
from mongo_session_service.storage.retries import retry_soon
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.translation import (
    DUPLICATE_KEY,
    WRITE_CONFLICT,
    TimeLimitError,
    is_turned_away,
)

Result = TypeVar("Result")
Txn: TypeAlias = Any
"""A client session inside a transaction; None where there are no transactions."""

_UNKNOWN: Final = "UnknownTransactionCommitResult"
_PASSING: Final = "TransientTransactionError"
_LOCAL: Final = ReadConcern("local")


class LockedError(Exception):
    """Another transaction holds a document; nothing was written."""

    def __init__(self, collection: str) -> None:
        super().__init__()
        self.collection = collection
        """The name of the document's collection, if it is known."""


class _WriteConflictError(OperationFailure):
    """A write conflict, and the collection where it was met."""

    def __init__(self, error: OperationFailure, collection: str) -> None:
        super().__init__(str(error), error.code, error.details)
        self.collection = collection


async def run_transaction(
    connection: Connection,
    work: Callable[[Txn], Awaitable[Result]],
    *,
    limit: float | None = None,
    attempts: int | None = None,
    session: Any = None,
) -> Result:
    """Run ``work`` as one transaction, majority-committed when this returns.

    The driver retries it on transient errors, so ``work`` must compute everything
    afresh. It is given up after ``limit`` seconds, by default the connection's
    write timeout. Of write conflicts it meets ``attempts`` at most, and raises
    ``LockedError`` at the last; by default the driver retries until the time is over.
    It uses the given client session, or one of its own. Without transactions it runs
    once, statement by statement.
    """
    if not connection.has_transactions:
        return await work(None)
    # What it raises was a commit's, if it was turned away: nothing is done.
    limit = connection.write_timeout if limit is None else max(limit, 0.0)
    return await retry_soon(_run_committed, connection, work, limit, attempts, session)


async def _run_committed(
    connection: Connection,
    work: Callable[[Txn], Awaitable[Result]],
    limit: float,
    attempts: int | None,
    kept: Any,
) -> Result:
    async with (
        connection.writing(kept) as session,
        _fence_cancelled_transaction(connection, session),
    ):
        attempt = _Attempt(work, connection.database.name, attempts)
        try:
            # Two timers per transaction, one to interrupt the work and one its abort.
            # The driver's own timeout costs several timers per command.
            async with (
                asyncio.timeout(limit + ABORT_SECONDS),
                asyncio.timeout(limit) as timer,
            ):
                result: Result = await session.with_transaction(
                    attempt,
                    read_concern=_LOCAL,
                    write_concern=connection.database.write_concern,
                    read_preference=ReadPreference.PRIMARY,
                )
        except Exception as error:
            if session.operation_time:
                # The next read has to include what the transaction failed for.
                connection.note_read(session.operation_time, session)
            if not isinstance(error, PyMongoError | TimeoutError):
                raise
            is_late, is_committing = timer.expired(), attempt.is_done
            is_outdated = isinstance(error, PyMongoError) and await renew_connections(
                session.client, error
            )
            if is_committing or is_late:
                # The driver does not abort what it tried to commit, and cannot abort
                # what the server is still doing.
                await kill_client_session(session)
            if isinstance(error, TimeoutError):
                if not is_late:
                    raise
                message = f"it did not finish a transaction within {limit:g} seconds"
                if is_committing:
                    raise PyMongoError(message, [_UNKNOWN]) from None
                raise TimeLimitError(message) from None
            if is_committing and (is_outdated or isinstance(error, ConfigurationError)):
                # Raised when the driver retries a commit, whose first request may have
                # arrived.
                raise PyMongoError(str(error), [_UNKNOWN]) from None
            raise
    return result


@asynccontextmanager
async def _fence_cancelled_transaction(
    connection: Connection, session: Any
) -> AsyncIterator[None]:
    """If the block is cancelled, have the server refuse its transaction from now on.

    The driver has aborted it. But the statement whose reply was not awaited may arrive
    only now: a first one would begin the transaction again, and nobody would end it. It
    is refused once its session has had a later transaction.
    """

    async def begin_and_abort(txn: Txn) -> None:
        await connection.sessions.find_one({}, {"_id": 1}, session=txn)
        await txn.abort_transaction()

    async def start_later_transaction() -> None:
        primary = {"read_preference": ReadPreference.PRIMARY}
        with suppress(PyMongoError, TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await session.with_transaction(begin_and_abort, **primary)

    try:
        yield
    except asyncio.CancelledError:
        await uninterrupted(start_later_transaction())
        raise


class _Attempt(Generic[Result]):
    """The work of a transaction, which the driver calls for each attempt."""

    def __init__(
        self,
        work: Callable[[Txn], Awaitable[Result]],
        database: str,
        most: int | None,
    ) -> None:
        self._work, self._database, self._most = work, database, most
        self._count = 0
        self.is_done = False
        """Whether the statements are made, so that the driver commits."""

    async def __call__(self, txn: Txn) -> Result:
        self.is_done = False
        self._count += 1
        if self._count > 1:
            telemetry.count(telemetry.RETRIES, self._database)
        try:
            result = await self._work(txn)
        except PyMongoError as error:
            if isinstance(error, OperationFailure) and error.code == WRITE_CONFLICT:
                telemetry.count(telemetry.CONFLICTS, self._database)
                if self._count == self._most:
                    raise LockedError(getattr(error, "collection", "")) from None
            # The driver repeats what has the label, which servers do not always give.
            if await renew_connections(txn.client, error) or is_turned_away(error):
                raise PyMongoError(str(error), [_PASSING]) from None
            raise
        self.is_done = True
        return result


async def run_write(connection: Connection, command: dict[str, Any], txn: Txn) -> int:
    """Run an ``insert`` or ``update`` in a transaction; return the ``n`` of its reply.

    A document that is refused raises ``WriteError``; for its key,
    ``DuplicateKeyError``.
    """
    # The driver's own methods create an object for every document of a batch.
    try:
        reply = await connection.database.command(command, session=txn)
    except OperationFailure as error:
        if error.code != WRITE_CONFLICT:
            raise
        raise _WriteConflictError(error, next(iter(command.values()))) from None
    for refused in reply.get("writeErrors", ()):
        kind = DuplicateKeyError if refused["code"] == DUPLICATE_KEY else WriteError
        raise kind(refused.get("errmsg", ""), refused["code"], refused)
    count: int = reply["n"]
    return count


class ClientSessions:
    """A few client sessions of one connection, kept so that others can end them.

    A process that dies in a transaction leaves its locks for 60 to 90 seconds. The ids
    of its client sessions stand beside the lease that it holds; who takes over that
    ends them.
    """

    def __init__(self, connection: Connection, most: int) -> None:
        self._connection, self._most = connection, most
        self._opened: list[Any] = []
        self._idle: list[Any] = []

    async def ids(self) -> list[Document]:
        """Return the ids of all of them; none where there are no transactions."""
        await self._open_all()
        return [each.session_id for each in self._opened]

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Any]:
        """Lend one that nobody else uses meanwhile; None if there is none."""
        await self._open_all()
        session = self._idle.pop() if self._idle else None
        try:
            yield session
        finally:
            if session is not None:
                self._idle.append(session)

    async def end_all(self) -> None:
        """End them; the next use opens new ones."""
        ended, self._opened, self._idle = self._opened, [], []
        for each in ended:
            await each.end_session()

    async def _open_all(self) -> None:
        connection = self._connection
        while connection.has_transactions and len(self._opened) < self._most:
            session = await connection.start_session(causal_consistency=False)
            self._opened.append(session)
            self._idle.append(session)
