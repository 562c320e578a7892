"""Session reads: a session and its events, as of one time, in one round trip.

A service remembers the events that it has built. A later read brings the last of these
again, and with it only what follows: the log is never changed, only continued. That the
last event is the same, and that the log begins where it did, shows that it is this log
and not another one, of a session that was deleted and imported again, or restored. An
edit between the two is seen when the log is read anew, which it is every few minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from operator import attrgetter, itemgetter
from time import monotonic
from typing import Any, Final, NamedTuple

from bson.raw_bson import RawBSONDocument
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.codec import (
    bson_values,
    compaction,
    documents,
    event_blocks,
    replies,
)
from mongo_session_service.codec.compaction import Log, Trace
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.codec.replies import Encoded, Found
from mongo_session_service.driver import collector, snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.model.records import Document, SessionKey, StoredSession
from mongo_session_service.model.since_compaction import SinceCompaction
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.queries import Wanted
from mongo_session_service.sessions.read_cache import CachedLog, ReadCache

_BEFORE: Final = 4
"""Documents before the events: a session, what it shares with others, a beginning."""


class _Found(NamedTuple):
    """What was read of a session and its log."""

    heads: list[Document]
    """The session, and the state that it shares."""
    first: Document | None
    """The first document of the log that was read."""
    log: list[Encoded]
    """The events that were read, the latest first."""
    is_plain: bool
    """Whether it is certain that all state is stored as it is shown."""


class SessionReader:
    """Reads sessions through a connection."""

    def __init__(self, connection: Connection, cache: ReadCache | None) -> None:
        self._at = connection
        self._cache = cache if connection.has_transactions else None

    async def read(self, *wanted: Wanted, anywhere: bool = False) -> Found:
        """Documents of several collections, in one round trip and from one snapshot."""
        if not self._at.has_transactions:
            return Found([], await queries.read_each(self._at, *wanted))
        return await self._read(*wanted, anywhere=anywhere)

    async def _read(
        self, *wanted: Wanted, anywhere: bool, encoded: bool = False
    ) -> Found:
        collection = getattr(self._at, wanted[0].collection)
        stages = queries.union(self._at, *wanted)
        return await snapshots.read(
            self._at, collection, stages, anywhere=anywhere, encoded=encoded
        )

    async def load(
        self,
        key: SessionKey,
        config: GetSessionConfig | None = None,
        after_revision: int = 0,
    ) -> StoredSession | None:
        """A session with the events asked for; None if it is not stored."""
        if isinstance(config, SinceCompaction):
            return await self._load_since(key, config.overlap_size)
        is_whole = not after_revision and config in (None, GetSessionConfig())
        if self._cache is not None and is_whole:
            return await self._load_whole(key, self._cache)
        events = queries.events(key, config, after_revision)
        found = await self.read(*_head(key), *events, anywhere=True)
        heads: list[Document] = []
        log = documents.decode_log(found.documents(), self._at.hooks, heads)
        newest_first = await in_slices(log)
        # To look at what is encoded pays if it is large.
        first = () if found.few else found.encoded[:_BEFORE]
        is_plain = bool(first) and all(map(bson_values.is_plain, first))
        session = self._session(heads, is_plain=is_plain)
        return session and session._replace(events=newest_first[::-1])

    async def _load_whole(
        self, key: SessionKey, cache: ReadCache
    ) -> StoredSession | None:
        """A session with all its events; those that are not known yet are built."""
        began = monotonic()
        drops, known = cache.drops, cache.get(key)
        found = await self._find(key, known)
        session = self._session(found.heads, is_plain=found.is_plain)
        if known and session and not _continues(found, session, known):
            cache.drop(*key)
            drops, known = cache.drops, None
            found = await self._find(key, known)
            session = self._session(found.heads, is_plain=found.is_plain)
        if session is None:
            cache.drop(*key)
            return None
        fresh = found.log[:-1] if known else found.log
        first = known.first if known else min(map(_revision, fresh[-1:]), default=0)
        lasts: list[Encoded] = []
        blocks, built = await self._build(_taken(fresh, lasts))
        events = await in_slices(event_blocks.load(known.blocks if known else ()))
        if blocks:
            last = bytes(lasts[len(blocks) - 1])
            log = CachedLog(
                create_time=session.marker.create_time,
                first=first,
                last=last,
                revision=_revision(last),
                blocks=(*(known.blocks if known else ()), *blocks),
                read_at=known.read_at if known else began,
            )
            cache.put(key, log, drops)
        # To copy a list of thousands takes milliseconds.
        return session._replace(events=[*events, *built] if events else built)

    async def _build(self, log: Iterable[Encoded]) -> tuple[list[bytes], list[Event]]:
        """The events of a log, and the blocks of the first ones of them."""
        made: list[bytes | None] = []
        events = await in_slices(self._built(replies.decoded(log), made))
        return [block for block in takewhile(bool, made) if block], events

    def _built(
        self, log: Iterator[Document], made: list[bytes | None]
    ) -> Iterator[Event]:
        """The events of a log; the blocks of them are ``made`` on the way."""
        while page := [*islice(log, event_blocks.SIZE)]:
            built = documents.decode_block(page, self._at.hooks)
            made.append(built.block if len(page) == event_blocks.SIZE else None)
            yield from built.events

    async def _load_since(self, key: SessionKey, overlap: int) -> StoredSession | None:
        """A session with the events that are needed since its last compaction."""
        if self._at.has_transactions and self._at.hooks.after_load is None:
            return await persistently(lambda: self._load_needed(key, overlap))
        # The server cannot see what is needed, or may show another log the next time.
        log = Wanted("events", queries.events_after(key, 0), order=1)
        read = await self.read(*_head(key), log, anywhere=True)
        found = _Parts(read.documents())
        stored = await in_slices(found.events(self._at.hooks))
        traces = (Trace.of(id_["revision"], fields) for fields, id_ in stored)
        wanted = await _needed(Log.of(await in_slices(traces)), overlap)
        events = await in_slices(
            documents.built_event(fields, id_)
            for fields, id_ in stored
            if id_["revision"] in wanted
        )
        session = self._session(found.heads)
        return session and session._replace(events=events)

    async def _load_needed(self, key: SessionKey, overlap: int) -> StoredSession | None:
        """The same by two reads of one time: what decides, and what is needed."""
        stages = queries.union(self._at, *_head(key), *queries.deciding(key))
        first = await snapshots.snapshot(self._at, self._at.sessions, stages)
        found = _Parts(first.documents)
        special = await in_slices(
            Trace.of(id_["revision"], fields)
            for fields, id_ in found.events(self._at.hooks)
        )
        called = await in_slices(found.called())
        traces = {each.revision: each for each in (*called, *special)}
        ordered = sorted(traces.values(), key=attrgetter("revision"))
        log = Log(await in_slices(found.rows()), ordered)
        wanted, session = await _needed(log, overlap), self._session(found.heads)
        if session is None or not wanted:
            return session
        events = Wanted("events", queries.events_at(key, wanted), order=1)
        stages = queries.union(self._at, events)
        second = await snapshots.snapshot_at(
            self._at, self._at.events, stages, at=first.at
        )
        built = (
            documents.decode_event(each, self._at.hooks) for each in second.documents
        )
        return session._replace(events=await in_slices(built))

    async def _find(self, key: SessionKey, known: CachedLog | None) -> _Found:
        """A session and its log, from the last event on that is known."""
        if known is None:
            log = [Wanted("events", queries.events_after(key, 0), order=-1)]
        else:
            every, since = (
                queries.events_after(key, after) for after in (0, known.revision - 1)
            )
            beginning = Wanted("events", every, order=1, limit=1, fields=("_id",))
            log = [beginning, Wanted("events", since, order=-1)]
        read = await self._read(*_head(key), *log, anywhere=True, encoded=True)
        found = read.encoded
        heads: list[Document] = []
        for each in await in_slices(replies.decoded(found[:_BEFORE])):
            if _is_event(each):
                events = found[len(heads) + (known is not None) :]
                begins = max(map(documents.log_begins, heads), default=0)
                while begins and events and _revision(events[-1]) <= begins:
                    events.pop()  # a trim is about to remove it
                is_plain = all(map(bson_values.is_plain, found[: len(heads)]))
                return _Found(heads, each, events, is_plain)
            heads.append(each)
        return _Found(heads, None, [], all(map(bson_values.is_plain, found)))

    def _session(
        self, heads: list[Document], *, is_plain: bool = False
    ) -> StoredSession | None:
        now, hooks = platform_time.get_time(), self._at.hooks
        decoded = documents.decode_sessions(heads, now, hooks, is_plain=is_plain)
        return collector.paused(lambda: next(decoded, None))


def _head(key: SessionKey) -> list[Wanted]:
    # By its _id alone, which the server needs no plan for: a tenth faster.
    session = Wanted("sessions", {"_id": key.id})
    return [session, *queries.shared_state(key.app_name, key.user_id)]


class _Parts:
    """Documents of a session and its log, told apart as they are asked for."""

    def __init__(self, found: Iterable[Document]) -> None:
        self.heads: list[Document] = []
        self._found = found
        self._columns: list[Document] = []
        self._begins = 0

    def events(self, hooks: Hooks) -> Iterator[tuple[Document, Document]]:
        """The fields and the ``_id`` of each event of the log."""
        for each in self._found:
            if "called" in each:
                self._columns.append(each)
            elif not _is_event(each):
                self.heads.append(each)
                self._begins = max(self._begins, documents.log_begins(each))
            elif each["_id"]["revision"] > self._begins:
                yield documents.event_fields(each, hooks), each["_id"]

    def called(self) -> Iterator[Trace]:
        """The traces of events with calls, were they ordinary; after its events."""
        for column in self._columns:
            for each in column["called"]:
                calls, answers = (
                    frozenset(filter(None, bson_values.decode_value(ids)))
                    for ids in (each.get("calls") or [], each.get("answers") or [])
                )
                if each["revision"] > self._begins:
                    name = bson_values.decode_value(each["invocation_id"])
                    yield Trace(each["revision"], each["time"], name, calls, answers)

    def rows(self) -> Iterator[tuple[int, float, str]]:
        """The revision, the time and the invocation of each, after its events."""
        for each in sorted(self._columns, key=itemgetter("_id")):
            names = bson_values.decode_value(each["invocation_id"])
            rows = zip(each["revision"], each["time"], names, strict=True)
            yield from (row for row in rows if row[0] > self._begins)


async def _needed(log: Log, overlap: int) -> set[int]:
    found = await in_slices(compaction.needed(log, overlap))
    return {*chain.from_iterable(found)}


def _is_event(document: Document) -> bool:
    return isinstance(document["_id"], dict) and "revision" in document["_id"]


def _continues(found: _Found, session: StoredSession, known: CachedLog) -> bool:
    """Whether what was found follows a known log."""
    return (
        found.first is not None
        and found.first["_id"]["revision"] == known.first
        and session.log_begins < known.first
        and session.marker.create_time == known.create_time
        and found.log[-1:] == [known.last]
    )


def _taken(log: list[Encoded], lasts: list[Encoded]) -> Iterator[Encoded]:
    """The events of a log, the oldest first, taken out of it one by one.

    To release the memory of thousands at once takes long. The last of each block is
    kept in ``lasts``.
    """
    count = 0
    while log:
        each = log.pop()
        count += 1
        if count % event_blocks.SIZE == 0:
            lasts.append(each)
        yield each


def _revision(event: Encoded) -> int:
    id_: Any = RawBSONDocument(event)["_id"]
    revision: int = id_["revision"]
    return revision
