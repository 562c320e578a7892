"""Lease: an exclusive right with a rising epoch, held for as long as it is renewed.

Two documents hold one: that of a session, in its field ``turn``, for who works on the
session, and one of ``leases`` for who reads under the name of a consumer. Both have
these fields:

- ``epoch``: how often the lease was acquired. It never falls, so what its holder writes
  is fenced by expecting it: whoever was overtaken writes nothing.
- ``holder``, ``since``, ``renewed_at``: who holds it, from when on, and when it was
  renewed last. It is free without a holder, or ``Limits.lease_seconds`` after that.
  With the holder are the ids of the client sessions in which it runs transactions.

All times are the server's. Clocks of clients decide nothing. A renewal that lies ahead
by as much was made by an earlier primary, whose clock was fast; a holder that is alive
has renewed it since.

While MongoDB is away, nobody can renew a lease, and all of them expire. So whoever
finds one expired watches it until MongoDB has answered for half of ``lease_seconds``
without a break: a holder that is alive has renewed it by then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import pymongo
from pymongo import WriteConcern
from pymongo.errors import ExecutionTimeout, PyMongoError

from mongo_session_service.codec.document_size import cut_by_id_size
from mongo_session_service.errors import MongoSessionServiceError
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import Document
from mongo_session_service.storage.database import (
    Database,
    boot_time,
    kill_client_sessions,
)
from mongo_session_service.storage.failures import Effect, TimeLimitError
from mongo_session_service.storage.snapshots import find_documents
from mongo_session_service.storage.statements import Query, Update
from mongo_session_service.storage.tasks import (
    ReraisedCancellation,
    background,
    log_death,
    running_loop,
    uninterrupted,
)
from mongo_session_service.storage.transactions import writing_in_time

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

THREAD_NAME: Final = "mongo-session-service-leases"

_LOCK_WAIT_SECONDS: Final = 1.0
"""Seconds that the server may at least wait for a document that is locked."""
_NEVER: Final = datetime(1970, 1, 1)  # noqa: DTZ001  as the driver decodes times
_IDLE_SECONDS: Final = 10.0
"""Seconds that the thread stays after the last lease."""
_THREAD_END_SECONDS: Final = 5.0
"""Seconds that closing a service waits for the thread."""
_LOCKED_AFTER: Final = 0.25
"""Seconds after which a document counts as locked, perhaps by a dead holder."""
_RENEWAL_SECONDS: Final = 1.5
"""Seconds to renew all leases: another transaction may have locked one of them."""
_SINGLE_RENEWAL_SECONDS: Final = 0.2
"""Seconds to renew one of them then."""


class Lease:
    """The lease in one document, as one claimant acquires, holds and releases it."""

    def __init__(
        self, storage: Database, collection: str, id_: object, path: str = ""
    ) -> None:
        """Acquire nothing yet; ``path``, as in ``turn.``, precedes its fields."""
        self.storage = storage
        self.collection = collection
        self.id = id_
        self.path = path
        self.token = uuid.uuid4().hex
        """Distinguishes this claimant from all others."""
        self.epoch = 0
        """How often it was acquired by now; 0 before this claimant has it."""
        self.found: Document = {}
        """The lease as it was when it was acquired."""
        self.renewed_at = 0.0
        """When it was renewed last, on this machine's monotonic clock."""
        self.renewed_with: Sequence[Document] = ()
        """The stages by which each renewal updates the rest of the document."""
        self.is_lost = False
        """Whether another claimant is known to hold it."""
        self.replaces_dead = False
        """Whether the holder before has not released it."""
        self.client_sessions: list[Document] = []
        """Their ids."""
        self.loop = running_loop()
        """The claimant's event loop: it is abandoned if that is closed."""

    async def acquire(
        self,
        where: Document | None = None,
        time_limit: float = math.inf,
        *,
        forget: Iterable[str] = (),
        patient: bool = False,
    ) -> Document | None:
        """Acquire the lease if it is free, and its document matches ``where``.

        Returns the lease as it is then. One that has expired may be watched first. The
        server waits for a locked document for ``time_limit`` seconds. The fields
        ``forget``, about its previous holder, are removed. A cancellation waits for the
        outcome, which ``epoch`` shows. Without an answer before the lease could have
        expired, it raises ``StorageUnavailableError``.
        """
        seconds, path = self.storage.limits.lease_seconds, self.path
        is_free = [
            {f"{path}holder": None},
            # The answer to an earlier attempt was lost.
            {f"{path}holder.token": self.token},
        ]
        holder: Document = {"host": socket.gethostname(), "pid": os.getpid()}
        if self.client_sessions:
            holder["client_sessions"] = self.client_sessions
        change = {
            "$inc": {f"{path}epoch": 1},
            "$set": {f"{path}holder": {**holder, "token": self.token}},
            "$currentDate": {f"{path}since": True, f"{path}renewed_at": True},
        }
        if names := {f"{path}{name}": "" for name in forget}:
            change["$unset"] = names
        time_limit = max(min(time_limit, seconds), _LOCK_WAIT_SECONDS)

        async def take_free(database: Database, free: Document) -> Document | None:
            self.renewed_at = time.monotonic()
            free = {"_id": self.id, **(where or {}), **free}
            asked_at = boot_time()
            updating = self._update_lease(database, free, change, time_limit)
            found = await asyncio.wait_for(
                self.write_past_dead_holder(updating), seconds + 1
            )
            database.contact.note_answer(asked_at)
            self.epoch, self.found = (found["epoch"], found) if found else (0, {})
            return found

        async def acquire(database: Database) -> Document | None:
            try:
                found = await take_free(database, {"$or": is_free})
                self.replaces_dead = found is None
                if found is None:
                    watching = self._watch_expired(database)
                    if dead := await asyncio.wait_for(watching, seconds + 1):
                        found = await take_free(database, _as_seen(dead, path))
            except ExecutionTimeout:  # another writer's transaction holds the document
                return None
            return found

        # A cancellation need not wait for more attempts.
        return await self._repeat(
            lambda it: uninterrupted(acquire(it)), patient=patient
        )

    async def release(
        self, left: Document | None = None, *, forget: Iterable[str] = ()
    ) -> None:
        """Release the lease, if it is held; set the fields ``left``, remove ``forget``.

        If it takes so long that the lease has expired by itself, it raises
        ``StorageUnavailableError``.
        """
        await self._give_up(("holder", "since", "renewed_at", *forget), left or {})

    async def expire(self, *, forget: Iterable[str] = ()) -> None:
        """Let the lease expire now, as if its holder, who stays named, had died."""
        await self._give_up(("renewed_at", "holder.client_sessions", *forget), {})

    async def _give_up(self, gone: Iterable[str], left: Document) -> None:
        path = self.path
        mine = {"_id": self.id, f"{path}holder.token": self.token}
        change: Document = {"$unset": {f"{path}{name}": "" for name in gone}}
        if left:
            change["$set"] = {f"{path}{name}": it for name, it in left.items()}

        async def give_up(database: Database) -> None:
            async with asyncio.timeout(self.storage.limits.lease_seconds):
                await self._update_lease(database, mine, change)

        await self._repeat(give_up)

    async def _repeat(
        self, work: Callable[[Database], Awaitable[Result]], *, patient: bool = False
    ) -> Result:
        async def attempt(database: Database) -> Result:
            try:
                return await work(database)
            except TimeoutError:
                seconds = self.storage.limits.lease_seconds
                message = f"no answer within {seconds:g} seconds"
                raise TimeLimitError(message) from None

        # A lease that was taken or released by a lost request is recognised.
        return await self.storage.repeat(attempt, Effect.RECOGNISED, patient=patient)

    async def write_past_dead_holder(self, write: Awaitable[Result]) -> Result:
        """Await a write to its document, which a dead holder may have locked."""
        ending = background(self._keep_ending_dead_holder())
        try:
            return await write
        finally:
            ending.cancel()
            await asyncio.wait([ending])

    async def _keep_ending_dead_holder(self) -> None:
        while True:
            await asyncio.sleep(_LOCKED_AFTER)
            # Else the write would wait for ever for the end of this loop.
            with ReraisedCancellation(), suppress(MongoSessionServiceError):
                await self.end_dead_holder()

    async def end_dead_holder(self) -> None:
        """Kill the client sessions of a holder that no longer renews."""

        async def end(database: Database) -> None:
            if (dead := await self._watch_expired(database)) is None:
                return
            left = [
                each
                for each in dead["holder"].get("client_sessions", ())
                if each not in self.client_sessions
            ]
            if left:
                await kill_client_sessions(database.client, left)

        if self.storage.has_transactions:
            await self.storage.repeat(end, Effect.HARMLESS, patient=True)

    async def _watch_expired(self, database: Database) -> Document | None:
        """The lease if another's has expired, and would be renewed by now."""
        enough = self.storage.limits.lease_seconds / 2
        while expired := await self._load_expired(database):
            if database.contact.has_lasted(enough):
                break
            await asyncio.sleep(enough / 10)
        return expired

    async def _load_expired(self, database: Database) -> Document | None:
        """The lease if another's has expired."""
        path = self.path
        expired = {
            "_id": self.id,
            f"{path}holder.token": {"$nin": [None, self.token]},
            "$expr": renewed_at_condition(database, "$gt", path),
        }
        fields = (f"{path}holder", f"{path}renewed_at")
        query = Query(self.collection, expired, limit=1, fields=fields)
        asked_at = boot_time()
        found = await find_documents(database, query)
        database.contact.note_answer(asked_at)
        return self._lease_in(found[0]) if found else None

    async def _update_lease(
        self,
        database: Database,
        where: Document,
        change: Document,
        time_limit: float | None = None,
    ) -> Document | None:
        """Update the lease and return it; None if its document does not match."""
        update = Update(self.collection, where, change)
        fields = tuple(filter(None, [self.path.rstrip(".")]))
        async with writing_in_time(database) as tx:
            found = await tx.find_and_update(
                update, fields=fields, time_limit=time_limit
            )
        return self._lease_in(found) if found else None

    def _lease_in(self, document: Document) -> Document:
        lease: Document = document[self.path.rstrip(".")] if self.path else document
        return lease


def _as_seen(lease: Document, path: str) -> Document:
    """The filter of a lease that was not renewed since it was read."""
    # A mock keeps microseconds, and does not return them.
    later = lease.get("renewed_at", _NEVER) + timedelta(milliseconds=1)
    return {
        f"{path}holder.token": lease["holder"]["token"],
        f"{path}renewed_at": {"$not": {"$gte": later}},
    }


def lease_is_free(storage: Database, path: str = "") -> Document:
    """Return the expression that is true if a document's lease is free."""
    holder = {"$ifNull": [f"${path}holder", None]}
    # An append may renew what was released meanwhile.
    return {
        "$or": [{"$eq": [holder, None]}, renewed_at_condition(storage, "$gt", path)]
    }


def lease_has_expired(storage: Database, lease: Document, now: float) -> bool:
    """Whether a lease that was read just now is not renewed any more."""
    renewed: datetime = lease.get("renewed_at", _NEVER).replace(tzinfo=UTC)
    return abs(now - renewed.timestamp()) > storage.limits.lease_seconds


def renewed_at_condition(database: Database, operator: str, path: str = "") -> Document:
    """Return the expression that compares how long ago a renewal was with the limit.

    One that is as far ahead is by the clock of a server that is primary no more.
    """
    now: Any = "$$NOW"
    if database.is_mock:  # which knows no $$NOW
        now = datetime.now(UTC).replace(tzinfo=None)
    age = {"$subtract": [now, {"$ifNull": [f"${path}renewed_at", _NEVER]}]}
    return {operator: [{"$abs": age}, round(database.limits.lease_seconds * 1000)]}


class LeaseRenewer:
    """The thread that renews the leases that one service holds in this process.

    Whoever holds a lease may block their event loop for as long as they like: a
    synchronous tool does, and ADK's ``Runner.run()``. So a thread renews, through a
    client that belongs to no event loop, and is opened for the first lease that nothing
    else has renewed for long. A lease that nobody refers to any more expires.
    """

    def __init__(self) -> None:
        self._forget_leases()

    def _forget_leases(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._used_at = 0.0
        self._stopping: threading.Event | None = None
        """Ends the thread that runs; None if none does."""
        self._thread: threading.Thread | None = None
        """The thread that was started last."""

    def keep_renewing(self, lease: Lease) -> None:
        """Renew a lease from now on, in the thread, which the first one starts."""
        if self._pid != os.getpid():  # the thread stayed in the parent
            self._forget_leases()
        limits = lease.storage.limits
        with self._lock:
            self._held[lease.token] = lease
            if self._stopping is None:
                stopping = self._stopping = threading.Event()
                self._thread = threading.Thread(
                    target=self._renew_until_idle,
                    args=[stopping, limits],
                    name=THREAD_NAME,
                    daemon=True,
                )
                self._thread.start()

    def stop_renewing(self, lease: Lease) -> None:
        """Stop renewing a lease; idempotent."""
        with self._lock:
            self._held.pop(lease.token, None)

    async def end_thread(self) -> None:
        """End the thread, unless leases are held, and wait until it has ended.

        A server that does not answer keeps it for a few seconds at most.
        """
        with self._lock:
            is_needed = any(not each.loop.is_closed() for each in self._held.values())
            if is_needed or self._stopping is None:
                return
            self._stopping.set()
            self._stopping, thread = None, self._thread
        with suppress(TimeoutError):
            async with asyncio.timeout(_THREAD_END_SECONDS):
                while thread is not None and thread.is_alive():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    def _renew_until_idle(self, stopping: threading.Event, limits: Limits) -> None:
        tick = limits.lease_renewal_seconds / 3
        with ExitStack() as closing:
            database, is_reported = None, False
            while not stopping.wait(tick):
                due: list[Lease] = []
                try:
                    if self._is_idle():
                        return
                    if due := self._due_leases():
                        if database is None:
                            database = _open_database(due[0].storage, closing)
                        _renew_due(database, due)
                except PyMongoError:
                    pass  # what is lost is noticed by its next write
                except Exception as error:  # noqa: BLE001  or nobody would renew
                    log_death("The renewal of leases", error)
                now = time.monotonic()
                seconds = now - min((each.renewed_at for each in due), default=now)
                if seconds < limits.lease_seconds:
                    is_reported = False
                elif not is_reported:
                    is_reported = True
                    logger.warning(
                        "A turn or a consumer's name could not be renewed for %.0f"
                        " seconds. If MongoDB answers others, they may take it over.",
                        seconds,
                    )
                del due  # or it would keep them alive

    def _is_idle(self) -> bool:
        """True if the thread may end: there was no lease for long."""
        with self._lock:
            now = time.monotonic()
            if self._held:
                self._used_at = now
            elif now - self._used_at > _IDLE_SECONDS:
                self._stopping = None
                return True
            return False

    def _due_leases(self) -> list[Lease]:
        with self._lock:
            held = list(self._held.values())
        for each in held:
            if each.loop.is_closed():
                self.stop_renewing(each)
        now = time.monotonic()
        return [
            each
            for each in held
            if now - each.renewed_at >= each.storage.limits.lease_renewal_seconds
        ]


def _open_database(storage: Database, closing: ExitStack) -> Any:
    database, close = storage.driver.blocking_database(storage.database)
    closing.callback(close)
    return database


def _renew_due(database: Any, due: list[Lease]) -> None:
    by_collection: dict[str, list[Lease]] = defaultdict(list)
    for each in due:
        by_collection[each.collection].append(each)
    cut = ((name, cut_by_id_size(each)) for name, each in by_collection.items())
    for name, leases in ((name, leases) for name, parts in cut for leases in parts):
        storage = leases[0].storage
        collection = storage.with_default_codec(database[storage.prefix + name])
        # The next renewal comes soon enough, if a failover loses one.
        collection = collection.with_options(write_concern=WriteConcern(1))
        try:
            _renew_together(collection, leases, _RENEWAL_SECONDS)
        except PyMongoError as error:
            if not error.timeout or len(leases) == 1:
                raise
            for each in leases:
                with suppress(PyMongoError):
                    _renew_together(collection, [each], _SINGLE_RENEWAL_SECONDS)


def _renew_together(collection: Any, leases: list[Lease], time_limit: float) -> None:
    """Renew leases of one collection, and note which of them were taken over."""
    started = time.monotonic()
    path, ids = leases[0].path, [each.id for each in leases]
    # By equality, a mongos knows the shard.
    where = {"_id": ids[0] if len(ids) == 1 else {"$in": ids}}
    mine = {f"{path}holder.token": {"$in": [each.token for each in leases]}}
    change: Any = {"$currentDate": {f"{path}renewed_at": True}}
    if leases[0].renewed_with:
        change = [{"$set": {f"{path}renewed_at": "$$NOW"}}, *leases[0].renewed_with]
    with pymongo.timeout(time_limit):
        renewed = collection.update_many({**where, **mine}, change)
        if renewed.matched_count < len(leases):
            holder = {"$project": {"token": f"${path}holder.token"}}
            # A lease whose document is gone was not taken over.
            for found in collection.aggregate([{"$match": where}, holder]):
                for each in leases:
                    if each.id == found["_id"] and each.token != found.get("token"):
                        each.is_lost = True
    for each in leases:
        each.renewed_at = started
