"""Transactions: run to their end, in bounded time, with nothing left open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from bson.timestamp import Timestamp
from pymongo import (
    DeleteMany,
    DeleteOne,
    InsertOne,
    ReadPreference,
    ReplaceOne,
    UpdateMany,
    UpdateOne,
)
from pymongo.errors import (
    ConfigurationError,
    DuplicateKeyError,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    WriteError,
)
from pymongo.read_concern import ReadConcern

from mongo_session_service import telemetry
from mongo_session_service.model.records import Document
from mongo_session_service.storage.database import (
    ABORT_SECONDS,
    Database,
    kill_client_session,
)
from mongo_session_service.storage.failures import (
    DUPLICATE_KEY,
    TimeLimitError,
    is_turned_away,
    is_write_conflict,
    renew_connections,
    translate_error,
)
from mongo_session_service.storage.snapshots import find_documents
from mongo_session_service.storage.statements import (
    Delete,
    Insert,
    LockedError,
    Query,
    RefusedError,
    Statement,
    TooLateError,
    Update,
)
from mongo_session_service.storage.tasks import uninterrupted

Result = TypeVar("Result")

_UNKNOWN: Final = "UnknownTransactionCommitResult"
_PASSING: Final = "TransientTransactionError"
_LOCAL: Final = ReadConcern("local")
_NO_SUCH_TRANSACTION: Final = 251
_FOUND: Final = ("nInserted", "nMatched", "nUpserted", "nRemoved")


class _WriteConflictError(OperationFailure):
    """A write conflict, and the collection where it was met."""

    def __init__(self, error: OperationFailure, collection: str) -> None:
        super().__init__(str(error), error.code, error.details)
        self.collection = collection


async def run_committed(
    database: Database,
    work: Callable[[Transaction], Awaitable[Result]],
    time_limit: float | None = None,
    attempts: int | None = None,
    *,
    kept: ClientSessions | None = None,
) -> Result:
    """Run ``work`` as one transaction, which the driver tries again and again.

    ``work`` computes everything afresh each time.

    It is given up after ``time_limit`` seconds, by default ``write_timeout``. Of write
    conflicts it meets ``attempts`` at most, and raises ``LockedError`` at the last.
    """
    seconds = database.write_timeout if time_limit is None else max(time_limit, 0.0)
    attempt = _Attempt(database, work, attempts)
    primary = database.known_primary()
    async with (
        kept.borrow() if kept else nullcontext() as lent,
        database.client_session(lent) as session,
    ):
        try:
            try:
                # Two timers per transaction, one to interrupt the work and one its
                # abort. The driver's own timeout costs several timers per command.
                async with (
                    asyncio.timeout(seconds + ABORT_SECONDS),
                    asyncio.timeout(seconds) as timer,
                ):
                    result: Result = await session.with_transaction(
                        attempt,
                        read_concern=_LOCAL,
                        write_concern=database.database.write_concern,
                        read_preference=ReadPreference.PRIMARY,
                    )
            except PyMongoError as error:
                is_late = timer.expired()
                raise await attempt.end(session, error, is_late=is_late) from None
            except TimeoutError:
                if not timer.expired():
                    raise
                text = f"it did not finish a transaction within {seconds:g} seconds"
                late = TimeLimitError(text)
                failure = await attempt.end(session, late, is_late=True)
                if failure is late and time_limit is not None:
                    text = translate_error(late, database.client).message
                    failure = TooLateError(text)
                raise failure from None
        except asyncio.CancelledError:
            await uninterrupted(_start_later_transaction(database, session))
            raise
        database.latest.advance(session.operation_time, primary)
    return result


@asynccontextmanager
async def writing_in_time(
    database: Database, time_limit: float | None = None
) -> AsyncIterator[Transaction]:
    """Write outside of transactions, for so long; by default ``write_timeout``."""
    seconds = database.write_timeout if time_limit is None else max(time_limit, 0.0)
    primary = database.known_primary()
    opening = database.client_session() if database.has_transactions else nullcontext()
    try:
        async with asyncio.timeout(seconds), opening as session:
            yield Transaction(database, session)
            if session is not None:
                database.latest.advance(session.operation_time, primary)
    except TimeoutError:
        raise NetworkTimeout from None


async def _start_later_transaction(database: Database, session: Any) -> None:
    """Have the server refuse a cancelled transaction from now on.

    The driver has aborted it. But the statement whose reply was not awaited may arrive
    only now: a first one would begin the transaction again, and nobody would end it. It
    is refused once its session has had a later transaction.
    """

    async def begin_and_abort(txn: Any) -> None:
        await database.collection("sessions").find_one({}, {"_id": 1}, session=txn)
        await txn.abort_transaction()

    primary = {"read_preference": ReadPreference.PRIMARY}
    with suppress(PyMongoError, TimeoutError):
        async with asyncio.timeout(ABORT_SECONDS):
            await session.with_transaction(begin_and_abort, **primary)


class _Attempt(Generic[Result]):
    """The work of a transaction, which the driver calls for each attempt."""

    def __init__(
        self,
        database: Database,
        work: Callable[[Transaction], Awaitable[Result]],
        most: int | None,
    ) -> None:
        self._database, self._work, self._most = database, work, most
        self._count = 0
        self.is_committing = False
        """Whether the statements are made, so that the driver commits."""

    async def __call__(self, txn: Any) -> Result:
        self.is_committing = False
        self._count += 1
        if self._count > 1:  # it is the driver that tries again
            self._database.in_use.check_open()
            telemetry.count(telemetry.RETRIES, self._database.database.name)
        try:
            result = await self._work(Transaction(self._database, txn))
        except PyMongoError as error:
            if is_write_conflict(error):
                telemetry.count(telemetry.CONFLICTS, self._database.database.name)
                if self._count == self._most:
                    raise LockedError(getattr(error, "collection", "")) from None
            # The driver repeats what has the label, which servers do not always give.
            if await renew_connections(txn.client, error) or is_turned_away(error):
                raise PyMongoError(str(error), [_PASSING]) from None
            raise
        self.is_committing = True
        return result

    async def end(
        self, session: Any, error: PyMongoError, *, is_late: bool
    ) -> Exception:
        """End the transaction, which has failed; return why."""
        is_outdated = await renew_connections(session.client, error)
        if self.is_committing or is_late:
            # The driver does not abort what it tried to commit, and cannot abort what
            # the server is still doing.
            await kill_client_session(session)
        # Raised when the driver retries a commit, whose first request may have arrived.
        is_retry = is_outdated or isinstance(error, ConfigurationError)
        if self.is_committing and (is_retry or isinstance(error, TimeLimitError)):
            return PyMongoError(str(error), [_UNKNOWN])
        return error


def is_repeated(error: BaseException) -> bool:
    """Whether the driver repeats a transaction whose work raises an error."""
    return isinstance(error, PyMongoError) and error.has_error_label(_PASSING)


def is_of_aborted(error: Exception) -> bool:
    """Whether a statement failed since the server had aborted its transaction."""
    return isinstance(error, OperationFailure) and error.code == _NO_SUCH_TRANSACTION


class Transaction:
    """What the work of a transaction reads and writes, in it.

    Where there are no transactions, or for a single statement, it is none: each call
    is done when it returns.
    """

    def __init__(self, database: Database, session: Any) -> None:
        self._database = database
        self.client_session = session
        """PyMongo's client session, for the handlers of consumers; None without."""

    @property
    def time(self) -> Timestamp | None:
        """When it last had an answer, to read as of then beside it; None without."""
        session = self.client_session
        return None if session is None else session.operation_time

    async def find(self, query: Query) -> list[Document]:
        return await find_documents(self._database, query, self.client_session)

    async def find_one(self, query: Query) -> Document | None:
        found = await self.find(query.first())
        return found[0] if found else None

    async def find_and_update(
        self,
        update: Update,
        *,
        fields: tuple[str, ...] = (),
        time_limit: float | None = None,
        before: bool = False,
    ) -> Document | None:
        """Update one document; return it as it is then, or as it was ``before``.

        The server waits for a locked document for ``time_limit`` seconds at most.
        """
        database, options = self._database, dict[str, Any]()
        if time_limit is not None and not database.is_mock:
            options["maxTimeMS"] = round(1000 * time_limit)
        collection = database.with_default_codec(database.collection(update.collection))
        found: Document | None = await collection.find_one_and_update(
            database.routed(update.filter),
            update.change,
            projection=dict.fromkeys(fields, 1) or None,
            upsert=update.upsert,
            return_document=not before,
            session=self.client_session,
            **options,
        )
        return found

    async def matches(self, fence: Update) -> bool:
        """Update a document, or only look at it; True if there is one."""
        if fence.change:
            return bool(await self.write_single(fence))
        query = Query(fence.collection, fence.filter, fields=("_id",))
        return await self.find_one(query) is not None

    async def write(self, *statements: Statement) -> list[int]:
        """Write statements in order; return how many documents each has matched.

        In a transaction, a document that is refused raises ``WriteError``; for its key,
        ``DuplicateKeyError``.
        """
        if self.client_session is None:
            return [await self.write_single(each) for each in statements]
        counts: list[int] = []
        for command, _, expected in commands_of(self._database, statements):
            # The driver's own methods create an object for every document of a batch.
            try:
                reply = await self._database.database.command(
                    command, session=self.client_session
                )
            except OperationFailure as error:
                if not is_write_conflict(error):
                    raise
                collection: str = next(iter(command.values()))
                collection = collection.removeprefix(self._database.prefix)
                raise _WriteConflictError(error, collection) from None
            for refused in reply.get("writeErrors", ()):
                is_key = refused["code"] == DUPLICATE_KEY
                kind = DuplicateKeyError if is_key else WriteError
                raise kind(refused.get("errmsg", ""), refused["code"], refused)
            if expected is None:
                counts.append(reply["n"])
            elif reply["n"] == sum(expected):
                counts += expected
            else:
                raise RefusedError
        return counts

    async def write_single(self, statement: Statement) -> int:
        """Write one statement by the driver's own method, which repeats it once."""
        database, session = self._database, self.client_session
        collection = database.collection(statement.collection)
        if isinstance(statement, Insert):
            for document in statement.documents:
                await collection.insert_one(document, session=session)
            return len(statement.documents)
        where = database.routed(statement.filter)
        count: int
        if isinstance(statement, Delete):
            delete = collection.delete_many if statement.many else collection.delete_one
            count = (await delete(where, session=session)).deleted_count
        else:
            if _is_whole(statement.change):
                update = collection.replace_one
            elif statement.many:
                update = collection.update_many
            else:
                update = collection.update_one
            change, upsert = statement.change, statement.upsert
            done = await update(where, change, upsert=upsert, session=session)
            count = done.matched_count or int(done.upserted_id is not None)
        if statement.expected not in {None, count}:
            raise RefusedError
        return count


def needs_no_transaction(statements: Sequence[Statement]) -> bool:
    """True if statements are one that needs no transaction."""
    if len(statements) != 1:
        return False
    (statement,) = statements
    return not isinstance(statement, Insert) or len(statement.documents) == 1


async def write_apart(
    database: Database, statements: Sequence[Statement], time_limit: float | None
) -> list[int]:
    """Write statements outside of a transaction, in one command per kind, unordered."""
    async with writing_in_time(database, time_limit) as tx:
        if needs_no_transaction(statements):
            return [await tx.write_single(*statements)]
        counts: list[int] = []
        for _, several, expected in commands_of(database, statements):
            if expected is None:
                counts.append(await tx.write_single(*several))
                continue
            writes = [it for each in several for it in _bulk_writes(database, each)]
            collection = database.collection(several[0].collection)
            done = await collection.bulk_write(
                writes, ordered=False, session=tx.client_session
            )
            if sum(done.bulk_api_result[it] for it in _FOUND) != sum(expected):
                raise RefusedError
            counts += expected
        return counts


def _bulk_writes(database: Database, statement: Statement) -> list[Any]:
    if isinstance(statement, Insert):
        return [InsertOne(each) for each in statement.documents]
    where = database.routed(statement.filter)
    if isinstance(statement, Delete):
        return [DeleteMany(where) if statement.many else DeleteOne(where)]
    change = statement.change
    if _is_whole(change):
        return [ReplaceOne(where, change, upsert=statement.upsert)]
    update = UpdateMany if statement.many else UpdateOne
    return [update(where, change, upsert=statement.upsert)]


def _is_whole(change: Document | Sequence[Document]) -> bool:
    """Whether an update's change is a document in place of the one that is stored."""
    return isinstance(change, dict) and not next(iter(change)).startswith("$")


class _Command(NamedTuple):
    """A command that writes statements, alike or one, of one collection."""

    command: dict[str, Any]
    statements: list[Statement]
    counts: list[int] | None
    """How many documents each matches, or it is refused; None for any, of one."""


def commands_of(database: Database, statements: Iterable[Statement]) -> list[_Command]:
    """Join statements that follow each other, and whose counts are known."""
    commands: list[_Command] = []
    before: object = None
    for each in statements:
        count: int | None
        if isinstance(each, Insert):
            verb, items, parts = "insert", "documents", [*each.documents]
            count = len(parts)
        elif isinstance(each, Update):
            verb, items = "update", "updates"
            part: Document = {"q": database.routed(each.filter), "u": each.change}
            if each.upsert:
                part["upsert"] = True
            if each.many:
                part["multi"] = True
            parts, count = [part], 1 if each.upsert else each.expected
        else:
            verb, items, count = "delete", "deletes", each.expected
            where = database.routed(each.filter)
            parts = [{"q": where, "limit": 0 if each.many else 1}]
        kind = (verb, each.collection) if count is not None else None
        if kind is not None and kind == before:
            joined = commands[-1]
            joined.command[items] += parts
            joined.statements.append(each)
            joined.counts.append(count)  # type: ignore[union-attr, arg-type]
        else:
            command = {verb: database.prefix + each.collection, items: parts}
            counts = None if count is None else [count]
            commands.append(_Command(command, [each], counts))
        before = kind
    return commands


class ClientSessions:
    """A few client sessions of one database, kept so that others can end them.

    A process that dies in a transaction leaves its locks for 60 to 90 seconds. The ids
    of its client sessions stand beside the lease that it holds; who takes over that
    ends them.
    """

    def __init__(self, database: Database, most: int) -> None:
        self._database, self._most = database, most
        self._opened: list[Any] = []
        self._idle: list[Any] = []

    async def ids(self) -> list[Document]:
        """Return the ids of all of them; none where there are no transactions."""
        await self._open_all()
        return [each.session_id for each in self._opened]

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Any]:
        """Lend one that nobody else uses meanwhile; None if there is none."""
        if len(self._opened) < self._most:
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
        database = self._database
        while database.has_transactions and len(self._opened) < self._most:
            session = await database.start_session(causal_consistency=False)
            self._opened.append(session)
            self._idle.append(session)
