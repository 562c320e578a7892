"""Session store: reads of sessions, each with its events and state as of one time.

A service remembers the events that it has built. A later read brings the newest of
these again, and with it only what follows. That this event is the same, and that the
log begins where it did, shows that it is this log and not another one, of a session
that was deleted and imported again, or restored. Redactions are counted in the session.
An edit by another tool is seen when the log is read anew, which it is every few
minutes.

They are kept within a limit of bytes, as blocks: fields of some events as bytes. What
is built of a block is new each time, so what a caller does to it reaches nobody.
"""

from __future__ import annotations

import asyncio
import marshal
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from threading import Lock
from time import monotonic
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.codec import documents, events
from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.record import (
    FAMILY,
    LISTED,
    STATES,
    SessionRecord,
    state_fields,
)
from mongo_session_service.errors import SchemaVersionError, session_not_found_error
from mongo_session_service.model.records import (
    Birth,
    Document,
    SessionKey,
)
from mongo_session_service.sessions import families, queries
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.snapshots import Encoded, decode_together
from mongo_session_service.storage.statements import Query, Update
from mongo_session_service.storage.tasks import background, in_slices
from mongo_session_service.storage.transactions import Transaction

_KEYS_AT_ONCE: Final = 100
"""Sessions whose shared state is read, and held, at once."""

Loop = asyncio.AbstractEventLoop

IDLE: Final = 300.0
"""Seconds after its latest read at which a log is dropped."""

LIFETIME: Final = 300.0
"""Seconds after which a log is read from the database again, all of it: its events may
have been edited there."""

_BESIDE: Final = 1000
"""Bytes that a log takes beside its blocks and its newest event."""

_DROP_COUNTS: Final = 1024
"""Numbers that count what is dropped, each for the sessions of some hashes."""


async def find_event(
    storage: Storage | Transaction, key: SessionKey, event_id: str
) -> EventRecord | None:
    query = Query("events", queries.event_by_id(key, event_id))
    found = await storage.find_one(query)
    return EventRecord(found) if found else None


def head_query(key: SessionKey) -> Query:
    """The query for a session, without its state."""
    return Query("sessions", {"_id": key.id}, without=STATES)


def found_record(
    storage: Storage, key: SessionKey, found: list[Document]
) -> SessionRecord:
    """Return the session that was found, or raise ``SessionNotFoundError``."""
    if record := SessionRecord.find(found, storage.clock.now()):
        return record
    raise session_not_found_error(key.session_id)


async def find_head(storage: Storage, key: SessionKey) -> SessionRecord | None:
    """Read a session without its state; None if it is not stored."""
    (found,) = await storage.read(head_query(key))
    return SessionRecord.find(found, storage.clock.now())


async def read_head(storage: Storage, key: SessionKey) -> SessionRecord:
    """Read a session without its state, or raise ``SessionNotFoundError``."""
    if head := await find_head(storage, key):
        return head
    raise session_not_found_error(key.session_id)


async def read_writable(
    storage: Storage, key: SessionKey, tx: Transaction | None = None
) -> SessionRecord:
    """Read a session that may be written, without its state.

    One that this release must not touch is refused.
    """
    alive = queries.alive_filter(storage)
    where = {"_id": key.id, "revision": {"$gte": 0}, **alive}
    found = await (tx or storage).find_one(Query("sessions", where, without=STATES))
    if found is None:
        raise session_not_found_error(key.session_id)
    return SessionRecord.read(found)


async def lock_session(
    storage: Storage, read: SessionRecord, tx: Transaction
) -> SessionRecord:
    """Read a session again, with its state, once a transaction has written it.

    Nobody else changes it until the transaction has ended: its log, which others may
    have continued since it was read, ends at ``tx.time`` where the session has it.
    """
    where = {**queries.writable_filter(storage), **read.expected()}
    (count,) = await tx.write(Update("sessions", where, {"$inc": {"steps": 1}}))
    found = await tx.find_one(Query("sessions", {"_id": read.key.id}))
    if not (count and found):
        raise await missing_session_error(storage, read.key)
    return await families.join_one(SessionRecord.read(found), tx)


async def missing_session_error(storage: Storage, key: SessionKey) -> Exception:
    """Return the error that tells why a session could not be written."""
    try:
        await read_writable(storage, key)
    except (SchemaVersionError, SessionNotFoundError) as error:
        return error
    return session_not_found_error(key.session_id)  # it was not there a moment ago


class SessionReads:
    def __init__(self, storage: Storage, cache: ReadCache | None = None) -> None:
        self._storage = storage
        self._cache = cache if storage.has_transactions else None
        self._next_keys: set[SessionKey] = set()
        self._next_read: asyncio.Task[list[Document]] | None = None

    async def close(self) -> None:
        """Drop what a timer of this event loop would have dropped."""
        if self._cache is not None:
            self._cache.clear()

    async def read_session(
        self,
        key: SessionKey,
        config: GetSessionConfig | None = None,
        after_revision: int = 0,
        unborn: Birth | None = None,
    ) -> StoredSession | None:
        """Read a session with the events asked for; None if it is not stored.

        Or a branch that is not stored yet.
        """
        is_whole = not after_revision and config in (None, GetSessionConfig())
        if self._cache is not None and is_whole and unborn is None:
            return await self._read_cached(key, self._cache)
        answer = await self._storage.read(
            *queries.session_queries(key),
            *queries.event_queries(key, config, after_revision),
        )
        sessions, apps, users, *logs = answer
        if unborn is not None:
            sessions = [unborn.document]
        session = await self._show(sessions, [*apps, *users], answer.as_of)
        if session is None:
            return None
        log = session.record.trimmed([it for log in logs for it in reversed(log)])
        # An event of a large reply may be large itself, and is built in its own slice.
        size = 1 if len(answer.encoded) > 1 else self._storage.limits.block_events
        together = [log[begin : begin + size] for begin in range(0, len(log), size)]
        decode = partial(documents.decode_events, hooks=self._storage.hooks)
        parts = await in_slices(map(decode, together))
        return session._replace(events=[*chain.from_iterable(parts)])

    async def _read_cached(
        self, key: SessionKey, cache: ReadCache
    ) -> StoredSession | None:
        """Read a session with all its events; only those not in the cache are built."""
        began = monotonic()
        drops, known = cache.drops(key), cache.get(key)
        if known is not None:
            session, begin, log = await self._read_log(key, known)
            if session is not None and not _is_continued(session, begin, log, known):
                cache.drop(*key)
                drops, known = cache.drops(key), None
            log = log[:-1]  # the newest known event is read again
        if known is None:
            session, _, log = await self._read_log(key, None)
        if session is None:
            cache.drop(*key)
            return None
        first = known.first if known else _revision(log[-1]) if log else 0
        size = self._storage.limits.block_events
        in_blocks = len(log) // size * size
        newest = bytes(log[-in_blocks]) if in_blocks else b""
        fits = sum(map(len, log)) <= cache.limit
        decoding = decode_blocks(log, self._storage.hooks, size, with_blocks=fits)
        parts = await in_slices(decoding)
        events: list[Event] = []
        if known is not None:
            again = await in_slices(map(build_block, known.blocks))
            events.extend(chain.from_iterable(again))
        for built, _ in parts:
            events.extend(built)
        blocks = [block for _, block in parts[: in_blocks // size]]
        if blocks and all(blocks):
            log_read = CachedLog(
                create_time=session.record.created,
                first=first,
                newest=newest,
                revision=_revision(newest),
                blocks=(*(known.blocks if known else ()), *filter(None, blocks)),
                redactions=session.record.redactions,
                read_at=known.read_at if known else began,
            )
            cache.put(key, log_read, drops, self._storage.client_loop)
        return session._replace(events=events)

    async def _read_log(
        self, key: SessionKey, known: CachedLog | None
    ) -> tuple[StoredSession | None, list[Encoded], list[Encoded]]:
        """Read a session, and the encoded documents of its log, the newest first.

        They end with the newest one that is known. Of those before, the oldest is read.
        """
        every = queries.events_after(key, 0)
        log = Query("events", every, order=-1)
        first = Query("events", every, order=1, limit=1, fields=("_id",))
        if known is not None:
            log = Query("events", queries.events_after(key, known.revision - 1), -1)
        heads = queries.session_queries(key)
        log_queries = [first, log] if known else [log]
        answer = await self._storage.read(*heads, *log_queries, encoded=True)
        sessions, apps, users, *begins, events = answer
        decoded, count = decode_together([*sessions, *apps, *users]), len(sessions)
        session = await self._show(decoded[:count], decoded[count:], answer.as_of)
        log_begins = session.record.begins if session else 0
        while log_begins and events and _revision(events[-1]) <= log_begins:
            events.pop()  # a trim is about to remove it
        return session, [*chain(*begins)], events

    async def _show(
        self, sessions: list[Document], shared: list[Document], as_of: Timestamp
    ) -> StoredSession | None:
        record = SessionRecord.find(sessions, self._storage.clock.now())
        if record is None:
            return None
        (record,) = await families.join(self._storage, [record], as_of)
        return documents.show_session(record, shared, self._storage.hooks)

    async def read_event(self, key: SessionKey, event_id: str) -> Event | None:
        """Read the event of a stored session that has this id."""
        heads, log = await self._storage.read(
            head_query(key), Query("events", queries.event_by_id(key, event_id))
        )
        head = SessionRecord.find(heads, self._storage.clock.now())
        found = head.trimmed(log) if head else []
        events = documents.decode_events(found[:1], self._storage.hooks)
        return events[0] if events else None

    async def list_sessions(
        self, app_name: str, user_id: str | None
    ) -> Iterator[StoredSession]:
        """Read all sessions of an app or user, without events, from one point in time.

        They are decoded as they are asked for. One that cannot be read is left out. The
        longest untouched comes first, ties by user and then session id.
        """
        now = self._storage.clock.now()
        wanted = {
            **queries.all_sessions(app_name, user_id),
            **queries.visible_filter(now),
        }
        answer = await self._storage.read(
            *queries.shared_state_queries(app_name, user_id),
            Query("sessions", wanted, fields=LISTED),
        )
        apps, users, sessions = answer
        records = [*SessionRecord.read_all(sessions)]
        if any(FAMILY in each for each in sessions):
            records = await families.join(self._storage, records, answer.as_of)
        shared = chain(apps, users)
        return documents.show_sessions(records, shared, self._storage.hooks)

    def read_shared_state(self, key: SessionKey) -> asyncio.Task[list[Document]]:
        """Start to read the state that a session shares with others.

        All who ask in the same iteration of the event loop share the read, of one point
        in time, so none of them may cancel it.
        """
        if self._next_read is None or len(self._next_keys) >= _KEYS_AT_ONCE:
            self._next_keys = set()
            self._next_read = background(self._read_shared_states(self._next_keys))
        self._next_keys.add(key)
        return self._next_read

    async def _read_shared_states(self, keys: set[SessionKey]) -> list[Document]:
        if keys is self._next_keys:
            self._next_read = None  # who asks from now on comes too late
        shared = queries.shared_state_queries_by_key(keys)
        apps, users = await self._storage.read(*shared)
        return [*apps, *users]

    async def read_user_state(self, app_name: str, user_id: str) -> dict[str, Any]:
        """Read a user's state; empty if none was ever stored."""
        query = Query("user_states", {"_id": queries.user_state_id(app_name, user_id)})
        stored = await self._storage.find_one(query)
        owner = Owner.of_shared(app_name, user_id)
        return documents.decode_state(state_fields(stored), owner, self._storage.hooks)

    async def read_end(
        self, key: SessionKey, unborn: Birth | None = None
    ) -> StoredSession:
        """Read a session with its last event alone, and without state.

        Or a branch that is not stored yet.
        """
        heads, log = await self._storage.read(
            head_query(key),
            Query("events", queries.events_after(key, 0), order=-1, limit=1),
        )
        heads = [unborn.document] if unborn else heads
        head = found_record(self._storage, key, heads)
        events = documents.decode_events(head.trimmed(log), self._storage.hooks)
        return StoredSession(head, {}, events)


def _is_continued(
    session: StoredSession, begin: list[Encoded], log: list[Encoded], known: CachedLog
) -> bool:
    """True if a log that was read after a known one continues it."""
    return (
        bool(begin and log)
        and _revision(begin[0]) == known.first
        and log[-1] == known.newest
        and session.record.begins < known.first
        and session.record.created == known.create_time
        and session.record.redactions == known.redactions
    )


def _revision(event: Encoded) -> int:
    raw: Any = RawBSONDocument(event)
    return EventRecord(raw).revision


# --- Read cache ---


@dataclass(frozen=True, slots=True)
class CachedLog:
    """A session's events, from the first that is stored, as far as they were read."""

    create_time: float
    """The session's: another of the same id has other events."""
    first: int
    """The revision of the first event."""
    newest: bytes
    """The newest event as it is stored."""
    revision: int
    """The revision of the newest event."""
    blocks: tuple[bytes, ...]
    """The events, as :func:`decode_blocks` makes them."""
    redactions: int
    """How often the session's events had been redacted."""
    read_at: float
    """When the first of them was read, by ``monotonic()``."""

    @property
    def size(self) -> int:
        return sum(map(len, self.blocks)) + len(self.newest) + _BESIDE


class ReadCache:
    """The logs that a service has read last, shared by its threads and event loops."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = Lock()
        self._logs: OrderedDict[SessionKey, tuple[CachedLog, float]] = OrderedDict()
        self._is_waiting = False
        """Whether a timer will drop what is idle."""
        self.size = 0
        """The bytes that they take."""
        self._drops = [0] * _DROP_COUNTS

    def drops(self, key: SessionKey) -> int:
        """How often a log that may be the session's was dropped because it is gone.

        It counts a few other sessions as well, since nothing is kept of those that are
        gone.
        """
        return self._drops[hash(key) % _DROP_COUNTS]

    def get(self, key: SessionKey) -> CachedLog | None:
        """Return the log of a session, and keep it longest from now on."""
        with self._lock:
            log, _ = self._logs.get(key, (None, 0.0))
            if log is None or log.read_at < monotonic() - LIFETIME:
                self._remove_log(key)
                return None
            self._logs[key] = log, monotonic()
            self._logs.move_to_end(key)
            return log

    def put(self, key: SessionKey, log: CachedLog, drops: int, loop: Loop) -> None:
        """Keep a log, unless it may have been dropped since ``drops`` was read.

        It is dropped by a timer of an event loop that stays.
        """
        with self._lock:
            if drops != self.drops(key) or log.size > self.limit:
                return
            self._remove_log(key)
            self._logs[key] = log, monotonic()
            self.size += log.size
            while self.size > self.limit:
                self._remove_log(next(iter(self._logs)))
            if self._logs and not self._is_waiting:
                self._is_waiting = True
                me = weakref.ref(self)
                loop.call_soon_threadsafe(loop.call_later, IDLE, _drop_idle, me, loop)

    def drop(
        self, app_name: str, user_id: str | None = None, session_id: str | None = None
    ) -> None:
        """Forget a session, or all of a user or an app."""
        owner = (app_name,) if user_id is None else (app_name, user_id)
        with self._lock:
            if user_id is not None and session_id is not None:
                key = SessionKey(app_name, user_id, session_id)
                self._drops[hash(key) % _DROP_COUNTS] += 1
                self._remove_log(key)
                return
            self._drops = [count + 1 for count in self._drops]
            for key in [*self._logs]:
                if key[: len(owner)] == owner:
                    self._remove_log(key)

    def clear(self) -> None:
        with self._lock:
            self._drops = [count + 1 for count in self._drops]
            self._logs.clear()
            self.size, self._is_waiting = 0, False

    def drop_idle(self) -> bool:
        """Drop logs that were not read for :data:`IDLE` seconds; True if some are."""
        with self._lock:
            while self._logs:
                key, (_, used) = next(iter(self._logs.items()))
                if used > monotonic() - IDLE:
                    break
                self._remove_log(key)
            self._is_waiting = bool(self._logs)
            return self._is_waiting

    def _remove_log(self, key: SessionKey) -> None:
        log, _ = self._logs.pop(key, (None, 0.0))
        if log is not None:
            self.size -= log.size


def _drop_idle(cache: weakref.ref[ReadCache], loop: Loop) -> None:
    found = cache()
    if found is not None and found.drop_idle():
        loop.call_later(IDLE, _drop_idle, cache, loop)


def decode_blocks(
    log: list[Encoded], hooks: Hooks, size: int, *, with_blocks: bool = True
) -> Iterator[tuple[list[Event], bytes | None]]:
    """Decode a log, the latest first, ``size`` events at a time, with their block.

    There is no block of fewer, nor of values that are not JSON, which another tool has
    stored. The log is emptied, so that its memory is freed meanwhile.
    """
    while log:
        stored = decode_together(log[: -size - 1 : -1])
        del log[-size:]  # to release the memory of thousands at once takes long
        fields, block = documents.event_fields(stored, hooks), None
        if with_blocks and len(stored) == size:
            # Before they are built, for a caller may change what an event is built of.
            with suppress(ValueError):
                block = marshal.dumps(fields)
        yield documents.build_events(fields, stored), block


def build_block(block: bytes) -> list[Event]:
    # Twice as fast as the BSON that it was, and past the application's hook.
    return [*map(events.build_event, marshal.loads(block))]  # noqa: S302
