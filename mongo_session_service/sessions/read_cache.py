"""Read cache: the events of sessions that were read before, within a limit of bytes.

They are kept as blocks: fields of some events as bytes. What is built of a block is new
each time, so what a caller does to it reaches nobody.
"""

from __future__ import annotations

import asyncio
import marshal
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Any, Final

from google.adk.events.event import Event

from mongo_session_service.codec import documents, events
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.model.records import Document, SessionKey

IDLE: Final = 300.0
"""Seconds after which a log that nobody has read is dropped."""

LIFETIME: Final = 300.0
"""Seconds after which a log is read from the database again, all of it: its events may
have been edited there."""

_BESIDE: Final = 1000
"""Bytes that a log takes beside its blocks and its last event."""


@dataclass(frozen=True, slots=True)
class CachedLog:
    """A session's events, from the first that is stored, as far as they were read."""

    create_time: float
    """The session's: another of the same id has other events."""
    first: int
    """The revision of the first event."""
    last: bytes
    """The last event as it is stored."""
    revision: int
    """The revision of the last event."""
    blocks: tuple[bytes, ...]
    """The events, as :func:`decode_blocks` makes them."""
    redactions: int
    """How often the session's events had been redacted."""
    read_at: float
    """When the first of them was read, by ``monotonic()``."""

    @property
    def size(self) -> int:
        return sum(map(len, self.blocks)) + len(self.last) + _BESIDE


class ReadCache:
    """The logs that a service has read last, shared by its threads and event loops."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._logs: OrderedDict[SessionKey, tuple[CachedLog, float]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.size = 0
        """The bytes that they take."""
        self.drops = 0
        """How often something was dropped because it is gone."""

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

    def put(self, key: SessionKey, log: CachedLog, drops: int) -> None:
        """Keep a log, unless a log was dropped since ``drops`` was read.

        It may have been of this session, and dropped while its log was being read.
        """
        with self._lock:
            if drops != self.drops or log.size > self._limit:
                return
            self._remove_log(key)
            self._logs[key] = log, monotonic()
            self.size += log.size
            while self.size > self._limit:
                self._remove_log(next(iter(self._logs)))
        self._wake()

    def drop(
        self, app_name: str, user_id: str | None = None, session_id: str | None = None
    ) -> None:
        """Forget a session, or all of a user or an app."""
        wanted = (app_name, user_id, session_id)
        with self._lock:
            self.drops += 1
            for key in [*self._logs]:
                pairs = zip(key, wanted, strict=True)
                if all(wish is None or part == wish for part, wish in pairs):
                    self._remove_log(key)

    def clear(self) -> None:
        with self._lock:
            self.drops += 1
            self._logs.clear()
            self.size = 0

    def drop_idle(self) -> None:
        """Forget what nobody has read for :data:`IDLE` seconds; look again later."""
        with self._lock:
            self._timer = None
            while self._logs:
                key, (_, used) = next(iter(self._logs.items()))
                if used > monotonic() - IDLE:
                    break
                self._remove_log(key)
        self._wake()

    def _remove_log(self, key: SessionKey) -> None:
        log, _ = self._logs.pop(key, (None, 0.0))
        if log is not None:
            self.size -= log.size

    def _wake(self) -> None:
        """Drop what is idle, in an event loop that still runs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            is_awake = self._timer is not None and not (
                self._loop is None or self._loop.is_closed()
            )
            if self._logs and not is_awake:
                cache = weakref.ref(self)
                self._loop = loop
                self._timer = loop.call_later(IDLE, _drop_idle, cache)


def _drop_idle(cache: weakref.ref[ReadCache]) -> None:
    found = cache()
    if found is not None:
        found.drop_idle()


def decode_blocks(
    log: Iterator[Document], hooks: Hooks, size: int
) -> Iterator[tuple[list[Event], bytes | None]]:
    """Decode a log, ``size`` events at a time, each time with their block.

    There is no block of values that are not JSON, which another tool has stored.
    """
    while stored := [*islice(log, size)]:
        fields = [documents.event_fields(each, hooks) for each in stored]
        # Before they are built, for a caller may change what an event is built of.
        block = _dump_block(fields)
        ids = (each["_id"] for each in stored)
        yield [*map(documents.built_event, fields, ids)], block


def _dump_block(fields: list[dict[str, Any]]) -> bytes | None:
    try:
        return marshal.dumps(fields)
    except ValueError:
        return None


def build_events(blocks: Iterable[bytes]) -> Iterator[Event]:
    for block in blocks:
        # Twice as fast as the BSON that it was, and past the application's hook.
        yield from map(events.build_event, marshal.loads(block))  # noqa: S302
