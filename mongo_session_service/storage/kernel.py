"""Storage kernel: the verbs by which all other rooms read and write MongoDB.

Callers specify *what*, as data. The kernel decides *how*: in which client
session, on which shard, past which cancellation, within which time, with which client
library, how often again, and which of this package's errors is raised. No other room
imports PyMongo.

Collections are named by strings, without the service's prefix: ``"sessions"``.
Queries and statements are data; see :mod:`~mongo_session_service.storage.statements`.

**Read** one or several queries, of one point in time, with all that this service has
written before. Each has its own list::

    head = Query("sessions", {"_id": key.id}, fields=("revision",))
    answer = await storage.read(head, Query("events", log, order=1))
    sessions, events = answer
    answer.as_of  # to read more of the same time: read(..., as_of=answer.as_of)
    session = await storage.find_one(head)  # the first document, or None

**Compute** is to read: stages of an aggregation follow a query::

    (counts,) = await storage.read(Query("sessions", wanted, then=({"$group": ...},)))

**Scan** what may be long, in pages by ``_id``. No cursor is open between two of them,
so the caller may be slow. Each page is of one point in time, together with other
queries; all pages are, if ``as_of`` is given::

    async for page in storage.scan(Query("events", log, order=1), beside=[head]):
        page.documents, page.beside, page.as_of

**Commit** statements: one transaction, on a majority when it returns. A statement may
expect how many documents match it; if one does not, nothing of the batch is written,
and it raises :class:`RefusedError`. It returns how many documents each has matched, or
inserted. A single statement is sent by itself, which is faster::

    await storage.commit(
        Update("sessions", {"_id": key.id, "revision": 3}, {"$set": ...}, expected=1),
        Insert("events", [document]),
        Delete("partials", partials_of_session(key), many=True),
    )
    (found,) = await storage.commit(Update("sessions", where, change))
    await storage.commit(*statements, atomic=False)  # not as a transaction

**Run** a transaction only where a read in it decides what it writes. It may be tried
several times, so ``work`` computes everything afresh. ``tx`` has ``find``,
``find_one``, ``find_and_update``, and ``write`` for the same statements::

    async def rename(tx: Transaction) -> Document | None:
        found = await tx.find_one(Query("sessions", where))
        if found is not None:
            await tx.write(Update("sessions", {"_id": key.id}, change))
        return found

    found = await storage.run(rename)

**Find and update** one document, and return it as it is then::

    saved = await storage.find_and_update(Update("checkpoints", where, change))

**Remove** what may be much, in steps, each a transaction that holds only as long as the
*fence* does: a document that has to match in each step, and that nobody but the
remover changes. Whoever comes next finishes what was interrupted; the last step writes
the statements that end the removal. Each step yields how many documents it removed::

    fence = Update("sessions", tombstone_filter, {"$inc": {"steps": 1}})
    end = [Delete("sessions", tombstone_filter)]
    with suppress(RefusedError):  # somebody else has finished it
        async for count in storage.remove("events", all_events(key), fence, end):
            ...

**Copy** documents under other ids, on the server::

    await storage.copy("events", log, {"_id.session_id": "new"}, time_limit=40)

**Hold** the lease in a document (``storage/lease.py``), and **follow** the database's
changes (``storage/stream.py``), through failures, until they can no longer be
followed::

    lease = Lease(storage, "sessions", key.id, "turn.")
    stream = Stream(storage, pipeline, start, slim=..., needs_document=...)
    change = await stream.next_change()  # None if there was none for a second

Foreground calls are impatient: what a server turns away is repeated three times, soon.
Background work passes ``patient=True``: it is repeated for a minute, as scans are,
after any failure that passes, and what it writes must have the same result when it is
written twice.

An attempt to write is finished even if the caller is cancelled; the cancellation is
raised then. A read is given up, and nothing of it is left on the server.

Errors are those of :mod:`mongo_session_service.errors`, and subclasses of these in
:mod:`~mongo_session_service.storage.statements` and
:mod:`~mongo_session_service.storage.server`. Without transactions, and in mongomock,
the statements of a batch are written one after another, and queries are read so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeVar

import pymongo
from bson.timestamp import Timestamp
from pymongo.errors import ExecutionTimeout
from typing_extensions import override

from mongo_session_service.errors import (
    ConfigurationError,
    MongoSessionServiceError,
    StorageUnavailableError,
)
from mongo_session_service.model.records import Document
from mongo_session_service.storage import snapshots
from mongo_session_service.storage.database import ABORT_SECONDS, Database
from mongo_session_service.storage.failures import (
    Effect,
    TimeLimitError,
    reporting_partial_removal,
    translate_error,
)
from mongo_session_service.storage.snapshots import QueryResults
from mongo_session_service.storage.statements import (
    Delete,
    Insert,
    Query,
    RefusedError,
    Statement,
    TooLateError,
    Update,
)
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import (
    ClientSessions,
    Transaction,
    needs_no_transaction,
    run_committed,
    write_apart,
    writing_in_time,
)

Result = TypeVar("Result")

_KEPT_CLIENT_SESSIONS: Final = 6
"""The writer's transactions at one time: ``MAX_BATCHES`` and ``MAX_HELD_BACK``."""

_OPLOG_SECONDS: Final = 2.0


class ScannedPage(NamedTuple):
    """Some of the documents that a query finds, in the order of ``_id``."""

    documents: list[Document]
    beside: tuple[list[Document], ...]
    """What was read with them: one list per query."""
    as_of: Timestamp
    """The point in time of all that."""
    is_last: bool
    """Whether no documents follow these."""


class Storage(Database):
    """The kernel: what one event loop uses of one database."""

    client_sessions: ClientSessions
    """Those in which batches are committed: their ids stand beside leases."""

    @override
    def connect(self, client: Any, host: Self | None = None) -> None:
        super().connect(client, host)
        own = ClientSessions(self, _KEPT_CLIENT_SESSIONS)
        self.client_sessions = host.client_sessions if host else own

    async def close_client(self) -> None:
        """Close the client, and leave nothing of it open on the server."""
        await self.in_use.kill_all(self.client)
        await self.client_sessions.end_all()
        with pymongo.timeout(ABORT_SECONDS):  # the driver would look for a server first
            await self.client.close()

    async def client_session_ids(self) -> list[Document]:
        """Return the ids of the client sessions; none without transactions."""
        return await self.with_client(lambda it: it.client_sessions.ids())

    def late_error(self, text: str) -> StorageUnavailableError:
        """Return the error of what was not done in time, with why, if known."""
        client = None if self.is_mock else self.client
        error = translate_error(TimeLimitError(text), client)
        return StorageUnavailableError(error.message)

    async def read(
        self,
        *queries: Query,
        as_of: Timestamp | None = None,
        not_before: Timestamp | None = None,
        whole: bool = True,
        encoded: bool = False,
        patient: bool = False,
    ) -> QueryResults:
        """Read the documents that match queries: one list per query, of one time.

        That is ``as_of``, which may not be long past. By default it is neither before
        the latest write of this service, nor before ``not_before``. Without ``whole``,
        the last list ends where the first reply does, which holds 16 MB. If
        ``encoded``, the lists hold encoded documents, where there are transactions.
        """
        answering = partial(
            snapshots.answer_queries,
            queries=queries,
            as_of=as_of,
            not_before=not_before,
            whole=whole,
            encoded=encoded,
        )
        return await self.repeat(answering, Effect.HARMLESS, patient=patient)

    async def find_one(self, query: Query) -> Document | None:
        """Read the first document that matches a query; None if there is none."""
        (found,) = await self.read(query.first())
        return found[0] if found else None

    async def scan(
        self,
        query: Query,
        *,
        beside: Sequence[Query] = (),
        as_of: Timestamp | None = None,
        not_before: Timestamp | None = None,
    ) -> AsyncGenerator[ScannedPage]:
        """Read the documents that match a query on ``_id``, in pages; at least one.

        A page has ``limit`` documents of the query, or ``Limits.page_events``, unless
        they do not fit into a reply. It is read at ``as_of``, by default at a current
        time, and not before ``not_before``. With each page, the queries ``beside`` it
        are read as well.
        """
        query = query.with_page_size(self.limits.page_events)
        is_last = False
        while not is_last:
            answer = await self.read(
                *beside,
                query,
                as_of=as_of,
                not_before=not_before,
                whole=False,
                patient=True,
            )
            *others, documents = answer
            if not documents and not answer.is_whole:  # the reply is full of the others
                answer = await self.read(
                    query, as_of=answer.as_of, whole=False, patient=True
                )
                (documents,) = answer
            is_last = answer.is_whole and len(documents) < (query.limit or 0)
            yield ScannedPage(documents, tuple(others), answer.as_of, is_last)
            if documents:
                query = query.after(documents[-1]["_id"])

    async def commit(
        self,
        *statements: Statement,
        time_limit: float | None = None,
        attempts: int | None = None,
        atomic: bool = True,
        shielded: bool = True,
    ) -> list[int]:
        """Write statements; return how many documents each has matched or inserted.

        Several are one transaction, a single one is sent by itself. Unless ``atomic``,
        several are sent without a transaction, in one unordered command per kind, and
        some are written if others are refused; so that a process that is killed leaves
        nothing locked.

        It is given up after ``time_limit`` seconds, by default ``write_timeout``. Of
        write conflicts it meets ``attempts`` at most, and raises ``LockedError`` at the
        last; without that, a statement by itself waits for the lock. In a task that
        nobody cancels a transaction need not be ``shielded`` by a task of its own.
        """
        if not atomic or (attempts is None and needs_no_transaction(statements)):

            def attempt(database: Database) -> Awaitable[list[int]]:
                return uninterrupted(write_apart(database, statements, time_limit))

            return await self.repeat(attempt, Effect.UNKNOWN)
        return await self.run(
            lambda tx: tx.write(*statements),
            time_limit=time_limit,
            attempts=attempts,
            kept=self.client_sessions,
            shielded=shielded,
        )

    async def run(
        self,
        work: Callable[[Transaction], Awaitable[Result]],
        *,
        time_limit: float | None = None,
        attempts: int | None = None,
        patient: bool = False,
        kept: ClientSessions | None = None,
        shielded: bool = True,
    ) -> Result:
        """Run ``work`` as one transaction, on a majority when this returns.

        It may be called again, so it computes everything afresh. The transaction is
        given up after ``time_limit`` seconds, as ``TooLateError``, by default after
        ``write_timeout``. It runs in one of the client sessions that are ``kept``, if
        one is idle. For the rest see :meth:`commit`.
        """
        effect = Effect.RECOGNISED if self.has_transactions else Effect.UNKNOWN

        def attempt(database: Database) -> Awaitable[Result]:
            if not self.has_transactions:
                return uninterrupted(work(Transaction(database, None)))
            running = run_committed(database, work, time_limit, attempts, kept=kept)
            return uninterrupted(running) if shielded else running

        return await self.repeat(attempt, effect, patient=patient)

    async def find_and_update(self, update: Update) -> Document | None:
        """Update one document, and return it as it is then; None if none matches.

        It is patient, and a cancellation does not wait for it: what it writes must have
        the same result when it is written twice.
        """

        async def attempt(database: Database) -> Document | None:
            async with writing_in_time(database) as tx:
                return await tx.find_and_update(update)

        return await self.repeat(attempt, Effect.UNKNOWN, patient=True)

    async def remove(
        self,
        collection: str,
        wanted: Document,
        fence: Update,
        end: Sequence[Statement] = (),
        *,
        time_limit: float | None = None,
    ) -> AsyncGenerator[int]:
        """Remove documents in steps, in the order of ``_id``; yield each one's count.

        In each step the fence has to match, or it raises ``RefusedError``; an empty
        change of it only looks. The last step writes ``end``. A failure leaves a part,
        which it reports as ``UnknownOutcomeError``.
        """
        most = self.limits.removed_events
        query = Query(collection, wanted, order=1, limit=most + 1, fields=("_id",))

        async def remove_step(tx: Transaction) -> tuple[int, bool]:
            if not await tx.matches(fence):
                raise RefusedError
            ids = [each["_id"] for each in await tx.find(query)]
            is_last = len(ids) <= most
            if ids:
                some = wanted
                if not is_last:
                    some = {**wanted, "_id": {"$gte": ids[0], "$lt": ids[-1]}}
                await tx.write(Delete(collection, some, many=True))
            if is_last:
                await tx.write(*end)
            return len(ids[:most]), is_last

        is_last = False
        while not is_last:
            with reporting_partial_removal():
                count, is_last = await self.run(remove_step, time_limit=time_limit)
            yield count

    async def copy(
        self, collection: str, wanted: Document, new: Document, *, time_limit: int
    ) -> None:
        """Copy documents within a collection, with new fields; keep what is there.

        A part may be copied when it fails. The server gives it up after ``time_limit``
        seconds, as ``TooLateError``.
        """
        if self.is_mock:  # which has no $merge
            stages = ({"$set": new},)
            (found,) = await self.read(Query(collection, wanted, then=stages))
            await self.commit(Insert(collection, found))
            return
        name = self.prefix + collection
        literals = {field: {"$literal": value} for field, value in new.items()}
        command = {
            "aggregate": name,
            "pipeline": [
                {"$match": self.routed(wanted)},
                {"$set": literals},
                {"$merge": {"into": name, "whenMatched": "keepExisting"}},
            ],
            "cursor": {},
            "writeConcern": {"w": "majority"},
            "maxTimeMS": 1000 * time_limit,
        }

        async def run(database: Database) -> None:
            try:
                await database.database.command(command)
            except ExecutionTimeout:
                message = f"MongoDB did not copy within {time_limit} seconds."
                raise TooLateError(message) from None

        # What is copied twice is there once.
        await uninterrupted(self.repeat(run, Effect.HARMLESS))

    async def command(
        self,
        command: Document,
        *,
        database: str = "",
        patient: bool = False,
    ) -> Document:
        """Run a command that reads, or may be done twice; return the reply.

        It is for what is no document: indexes, statistics, privileges.
        """

        async def run(it: Database) -> Document:
            target = it.client[database] if database else it.database
            reply: Document = await target.command(command)
            return reply

        return await self.repeat(run, Effect.HARMLESS, patient=patient)

    async def ask_time(self) -> float:
        """Return the server's time, and set the service's clock by it."""
        if not self.is_mock:
            self.clock.set_by(await self.command({"hello": 1}, database="admin"))
        return self.clock.now()

    def check_watchable(self) -> None:
        """Refuse a database whose changes cannot be followed: without transactions."""
        if not self.has_transactions:
            raise ConfigurationError(
                "Changes cannot be watched with transactions=False, nor in mongomock:"
                " an event would arrive without its state. Use a replica set, with"
                " transactions."
            )

    async def latest_time(self, *, patient: bool = False) -> Timestamp:
        """The latest time that the primary knows, which orders all changes.

        A standalone server, or mongomock, has no clock: ``ConfigurationError``.
        """
        reply = await self.command({"ping": 1}, patient=patient)
        time: Timestamp | None = reply.get("operationTime")
        if time is None:
            raise ConfigurationError(
                "A standalone server, or mongomock, keeps no history of changes, so"
                " there are no consumers. Use a replica set."
            )
        return time

    async def oplog_window(self) -> float | None:
        """The seconds of changes that the oplog holds; None if there is no oplog."""
        finding = {
            "find": "oplog.rs",
            "projection": {"ts": 1},
            "sort": {"$natural": 1},
            "limit": 1,
        }
        reply = await self.command(finding, database="local")
        if not (found := reply["cursor"]["firstBatch"]):
            return None
        latest = await self.latest_time()
        return float(latest.time - found[0]["ts"].time)

    async def oplog_window_if_known(self) -> float | None:
        """The same; None too if MongoDB fails, refuses or is slow."""
        with suppress(MongoSessionServiceError, TimeoutError):
            async with asyncio.timeout(_OPLOG_SECONDS):
                return await self.oplog_window()
        return None
