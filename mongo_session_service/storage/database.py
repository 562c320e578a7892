"""Database: what one event loop uses of it, through a client, in client sessions.

PyMongo's ``AsyncMongoClient``, Motor and mongomock-motor differ in small ways; the
differences end here.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from datetime import UTC
from functools import partial
from typing import Any, Final, Self, TypeVar

import pymongo
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time
from pymongo import ReadPreference
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service.codec.bson_values import CODEC_OPTIONS
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.model.records import SHARD_KEY, Document
from mongo_session_service.storage import clients
from mongo_session_service.storage.clients import ConnectionSettings, Driver
from mongo_session_service.storage.failures import CLOSED, Effect, repeat
from mongo_session_service.storage.loop_thread import in_loop_thread, thread_loop
from mongo_session_service.storage.tasks import uninterrupted

Result = TypeVar("Result")

_BREAK: Final = 1.5
"""Seconds without an answer after which MongoDB may have been away meanwhile."""


class LatestWrite:
    """The latest write of a service, on the deployment's clock.

    Right after an election a primary may not know yet that the write is committed, and
    would answer as of before it. The primary that has confirmed the write does know.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time = Timestamp(0, 0)
        self._primary: object = None

    def advance(self, time: Timestamp, primary: object) -> None:
        with self._lock:
            if self._time < time:
                self._time, self._primary = time, primary

    def is_included(self, time: Timestamp, primary: object) -> bool:
        """True if a primary's answer as of ``time`` includes the write."""
        with self._lock:
            return time >= self._time or primary == self._primary


def boot_time() -> float:
    """Seconds since the machine was started, or since some other fixed time."""
    if sys.platform == "linux":  # where the usual one stops while the machine sleeps
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


_LATE: Final = 1.0
"""Seconds by which a reply may be late."""


class ServerClock:
    """The time on MongoDB's server; this machine's, until the server has answered.

    Clocks of clients may be wrong, and jump. So what removes a session, refuses to
    write to one or takes over a lease asks the server in the same command, by
    ``$$NOW``. What only reads, and what sets the time at which a session will expire,
    asks this clock.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        """Seconds from boot time to the server's time."""

    def set_by(self, hello: Mapping[str, Any]) -> None:
        """Set the clock by a reply to ``hello`` that came just now."""
        there = hello["localTime"].replace(tzinfo=UTC).timestamp()
        ahead = there - boot_time()
        # A reply that comes late only seems earlier: the time does not go back for it.
        if self._ahead is None or not 0 < self._ahead - ahead < _LATE:
            self._ahead = ahead

    def now(self) -> float:
        """Return the server's time in seconds since 1970, apart from drift."""
        if self._ahead is None:
            return platform_time.get_time()
        return self._ahead + boot_time()


class PrimaryContact:
    """Since when the same primary has replied to an event loop without a gap.

    A long time without a request counts as a gap.
    """

    def __init__(self, known_primary: Callable[[], object]) -> None:
        self._known_primary = known_primary
        self._primary: object = None
        self._answered_at = self._begun_at = -math.inf

    def note_answer(self, asked_at: float) -> object:
        """Note that the primary has answered, asked at a boot time; return it."""
        now, primary = boot_time(), self._known_primary()
        is_break = now - min(asked_at, self._answered_at) > _BREAK
        if is_break or primary != self._primary:
            self._begun_at = now
        self._answered_at, self._primary = now, primary
        return primary

    def has_lasted(self, seconds: float) -> bool:
        """True if there was no break for so long before the last answer."""
        return self._answered_at - self._begun_at >= seconds


_PRIMARY: Final = ReadPreference.PRIMARY
_LOCAL: Final = ReadConcern("local")
ABORT_SECONDS: Final = 2.0
"""Seconds for the server to end what was given up."""


class SessionsInUse:
    """The client sessions in which something of a client is open on the server.

    When a client is closed, these end some minutes later: until then a cursor stays
    open, and a transaction keeps its locks.
    """

    def __init__(self) -> None:
        self._used: list[tuple[Document, Any]] = []
        self._is_closing = False

    @contextmanager
    def using(self, session: Any) -> Iterator[None]:
        """Count a client session among them as long as the context is open."""
        self.check_open()
        entry = session.session_id, session
        self._used.append(entry)
        try:
            yield
        finally:
            self._used.remove(entry)

    def check_open(self) -> None:
        """Refuse to begin anything in a client that is being closed."""
        if self._is_closing:
            raise ConfigurationError(CLOSED)

    async def kill_all(self, client: Any) -> None:
        """Kill all of them, whoever uses them, before the client is closed."""
        self._is_closing = True
        ids, sessions = zip(*self._used, strict=True) if self._used else ((), ())
        for each in sessions:
            if not each.in_transaction:  # or the driver would open its cursor again
                await each.end_session()
        if ids:
            await kill_client_sessions(client, [*ids])


class Database:
    """A database as one event loop uses it."""

    def __init__(
        self,
        client: Any,
        settings: ConnectionSettings,
        latest: LatestWrite,
        clock: ServerClock,
        host: Self | None = None,
    ) -> None:
        self.limits, self.hooks = settings.limits, settings.hooks
        self.prefix = settings.prefix
        self.has_transactions = settings.transactions
        self.latest, self.clock = latest, clock
        self.has_event_index = True
        self._name = settings.database
        self.connect(client, host)

    def connect(self, client: Any, host: Self | None = None) -> None:
        """Use another client from now on; work under way goes on with the one before.

        The client is the ``host``'s, in whose event loop the work is done, or else is
        of the loop that uses this database.
        """
        self.client, self.host = client, host
        self.driver = Driver.detect(client)
        self.contact = PrimaryContact(self.known_primary)
        self.in_use: SessionsInUse = host.in_use if host else SessionsInUse()
        self.database = (
            client.get_database(self._name)
            if self.driver is Driver.MOCK
            else client.get_database(
                self._name,
                codec_options=CODEC_OPTIONS,
                read_preference=_PRIMARY,
                read_concern=_LOCAL,
                write_concern=clients.write_concern(client),
            )
        )
        self._collections: dict[str, Any] = {}

    @property
    def client_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the client is in, in which work outlives a guest."""
        return asyncio.get_running_loop() if self.host is None else thread_loop()

    async def with_client(self, work: Callable[[Self], Awaitable[Result]]) -> Result:
        """Call a function in the client's event loop, with this or the host's database.

        Whatever talks to MongoDB is called so.
        """
        if self.host is None:
            self.in_use.check_open()
            return await work(self)
        return await in_loop_thread(partial(self.host.with_client, work))

    async def repeat(
        self,
        work: Callable[[Self], Awaitable[Result]],
        effect: Effect,
        *,
        patient: bool = False,
    ) -> Result:
        """Do something with the client by the one rule of retries: :func:`repeat`."""
        if self.host is not None:
            again = partial(self.host.repeat, work, effect, patient=patient)
            return await in_loop_thread(again)
        self.in_use.check_open()
        return await repeat(self.client, partial(work, self), effect, patient=patient)

    def collection(self, name: str) -> Any:
        """Return a collection by its name without the prefix."""
        found = self._collections.get(name)
        if found is None:
            found = self._collections[name] = self.database[self.prefix + name]
        return found

    @property
    def is_mock(self) -> bool:
        """True if the server is mongomock: in this process, without a clock."""
        return self.driver is Driver.MOCK

    @property
    def server_time(self) -> Any:
        """The server's time in an expression, in seconds since 1970."""
        if self.is_mock:  # its server is this process
            return self.clock.now()
        return {"$divide": [{"$toLong": "$$NOW"}, 1000]}

    @property
    def servers(self) -> list[str]:
        """The servers that are connected, as ``host:port``."""
        return sorted(f"{host}:{port}" for host, port in self.client.nodes)

    @property
    def is_sharded(self) -> bool:
        return self.driver.is_sharded(self.client)

    def routed(self, filter_: Document) -> Document:
        """Add the shard key to a filter, where a mongos has to find the shard.

        A mongos finds the shard of a user's documents by equality with the fields of
        the shard key, which it does not see in a range of ``_id``. A replica set would
        compare these fields in each document that it reads, for nothing: they are left
        out there.
        """
        if "$or" in filter_ and self.is_sharded:
            filter_ = {**filter_, "$or": [*map(self.routed, filter_["$or"])]}
        ids = filter_.get("_id")
        # One _id holds the fields; to look for a mongos takes longer.
        if not isinstance(ids, dict) or not next(iter(ids), "").startswith("$"):
            return filter_
        if not self.is_sharded:
            return filter_
        return {**filter_, **_common_fields(ids)}

    @property
    def write_timeout(self) -> float:
        """Seconds until a write is given up: ``timeoutMS``, or a minute."""
        longest = self.limits.write_seconds
        return min(self.client.options.timeout or longest, longest)

    def with_default_codec(self, collection: Any) -> Any:
        """Return a collection that is read without this package's decoders.

        With them the driver does not raise for a ``writeConcernError`` in the reply of
        a ``findAndModify``, which occurs when a primary steps down.
        """
        if self.is_mock:
            return collection
        return collection.with_options(codec_options=CodecOptions())

    async def start_session(self, **options: Any) -> Any:
        """Return a new client session, which is to be ended."""
        starting = self.client.start_session(**options)
        return await starting if self.driver is Driver.MOTOR else starting

    @asynccontextmanager
    async def client_session(self, lent: Any = None) -> AsyncIterator[Any]:
        """Use a new client session, or one that is ``lent``, which stays."""
        using = nullcontext(lent) if lent else await self.start_session()
        async with using as session:
            with self.in_use.using(session):
                yield session

    def known_primary(self) -> object:
        """Return the primary and its term, as far as the client knows them."""
        return self.driver.known_primary(self.client)

    @asynccontextmanager
    async def read_session(self) -> AsyncIterator[Any]:
        """Open a client session; if the caller is cancelled, end its cursors."""
        async with self.client_session() as session:
            try:
                yield session
            except asyncio.CancelledError:
                # The server would keep the rest of a long reply for half an hour. The
                # ids of some cursors are unknown: their replies were not awaited.
                await uninterrupted(kill_client_session(session))
                raise


async def kill_client_session(session: Any) -> None:
    """Kill a client session: the primary ends all that runs in it."""
    await kill_client_sessions(session.client, [session.session_id])


async def kill_client_sessions(client: Any, ids: list[Document]) -> None:
    """Kill client sessions of this or another process: all that runs in them ends.

    Their owner needs no privilege for this; the reply to another user is the same, and
    nothing ends. It is given up soon.
    """
    # RuntimeError: Python opens no connection any more as the process ends.
    with suppress(PyMongoError, TimeoutError, RuntimeError), pymongo.timeout(None):
        async with asyncio.timeout(ABORT_SECONDS):
            admin = client["admin"]
            await admin.command("killSessions", ids, read_preference=_PRIMARY)


def _common_fields(ids: Document) -> Document:
    """Return the shard key's fields in which all matching ``_id``s are equal."""
    bounds: list[Any] = []
    for operator, operand in ids.items():
        if not operator.startswith("$"):
            return {}  # one _id, in which a mongos sees them
        bounds += operand if operator == "$in" else [operand]
    common: Document = {}
    for name in SHARD_KEY:
        values = [it[name] for it in bounds if isinstance(it, dict) and name in it]
        if not values or values != values[:1] * len(bounds):
            break
        common[f"_id.{name}"] = values[0]
    return common
