"""Session reads: a session and its events, as of one time, in one round trip.

A service remembers the events that it has built. A later read brings the last of these
again, and with it only what follows: the log is never changed, only continued. That the
last event is the same, and that the log begins where it did, shows that it is this log
and not another one, of a session that was deleted and imported again, or restored. An
edit between the two is seen when the log is read anew, which it is every few minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from time import monotonic
from typing import Any, Final, NamedTuple

from bson.raw_bson import RawBSONDocument
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.codec import (
    bson_values,
    documents,
    event_blocks,
    replies,
)
from mongo_session_service.codec.replies import Encoded, Found
from mongo_session_service.driver import collector, snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.model.records import Document, SessionKey, StoredSession
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
