"""The changes a consumer is due, in order: the log replayed if asked, then the stream.

A delivery knows the position after itself. Nothing here is saved: whoever has handled a
delivery saves that position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import (
    Appended,
    Dropped,
    Expires,
    Happening,
    Names,
    Removed,
    StateSet,
)
from mongo_session_service.changes.routing import Router, Scope
from mongo_session_service.changes.stream import Stream
from mongo_session_service.consumers.checkpoint import Position
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.errors import HistoryLostError
from mongo_session_service.model.records import Document
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import read_page

_FRESH: Final = 60
"""Seconds a replay reads the log as it was at one time; MongoDB remembers for 300."""

_NOT_READABLE: Final = {239, 246}  # SnapshotTooOld, SnapshotUnavailable


class Delivery(NamedTuple):
    """A change that is due."""

    item: Happening
    position: Position
    """To be saved once it is handled."""


@dataclass(frozen=True, slots=True)
class _Recipient:
    """The consumer, as the router knows subscribers."""

    scope: Scope


class Deliveries:
    """What is due from a position on."""

    def __init__(
        self, connection: Connection, names: Names, app_name: str | None, at: Position
    ) -> None:
        self._connection = connection
        self._names = names
        self._app_name = app_name
        self.position = at
        """After all that was delivered, and what was passed over since."""
        self._page: deque[Document] = deque()
        self._stream: Stream | None = None
        self._passed = at.passed
        """What is still to be read again, up to the change of this mark."""
        self._heard: Document | None = None
        """The token of the latest change, which is not one of a silence."""
        self._router: Router[_Recipient] = Router()
        self._router.attach(_Recipient(Scope(app_name)))

    async def next(self) -> Delivery | None:
        """The next that is due, or None if there was none for about a second.

        If it is cancelled, the next call goes on where it was.

        Raises:
            HistoryLostError: what comes next cannot be told any more.
            StorageUnavailableError: MongoDB has been away for a minute.
        """
        if self.position.is_replaying:
            return await self._replayed()
        if self._stream is None:
            pipeline = decoder.pipeline(self._names, self._app_name)
            self._stream = Stream(
                self._connection, self._names, pipeline, self.position.start
            )
        change = await self._stream.next()
        if change is not None:
            return self._changed(change)
        token = self._stream.token
        if token and token != self._heard and self._passed is None:
            self.position = self.position.after_silence(token)
        return None

    def _changed(self, change: Document) -> Delivery | None:
        """What a change of the stream means to this consumer, if anything."""
        at, mark = decoder.cluster_time(change), decoder.mark_of(change)
        self._heard = change["_id"]
        item = decoder.interpret(change, self._names, self._connection.hooks)
        if self._is_passed(mark, at):
            if item is not None:
                self._router.note(item, decoder.transaction_of(change))
            return None
        before = self.position
        self.position = before.after_change(mark, at)
        if item is None:
            return None
        if isinstance(item, Dropped):
            raise HistoryLostError(f"{item.what}: there is nothing left to consume.")
        if isinstance(item, Appended) and before.has_replayed(item.document["_id"], at):
            return None
        self._router.note(item, decoder.transaction_of(change))
        if isinstance(item, Removed | Expires) or self._router.is_silent(item):
            return None
        if isinstance(item, StateSet):
            told = next(self._router.parts(item), None)
            if told is None:
                return None
            _, item = told
        return Delivery(item, self.position)

    def _is_passed(self, mark: str, at: Timestamp) -> bool:
        """Whether a change comes before the position, which is in its very time."""
        if self._passed is None or at != self.position.start:
            self._passed = None
            return False
        if mark == self._passed:
            self._passed = None
        return True

    async def _replayed(self) -> Delivery | None:
        """The next event of the log; None at its end, where the stream goes on."""
        if not self._page and not await self._load_page():
            self.position = self.position.after_replay()
            return None
        document = self._page.popleft()
        id_ = document["_id"]
        self.position = self.position.after_replayed(id_)
        # None of what others wrote.
        item = decoder.appended(id_, document, self._connection.hooks)
        return Delivery(item, self.position) if item else None

    async def _load_page(self) -> bool:
        """Read more of the log, as it was when this part of the replay began."""
        now = await persistently(lambda: snapshots.now(self._connection))
        if now.time - self.position.reading_at.time > _FRESH:
            # By then the rest of a session may be that of another of the same id.
            if await self._read_on(self._rest_of_session):
                return True
            self.position = self.position.after_session().reading_later(now)
        return await self._read_on(self._rest_of_log)

    async def _read_on(self, wanted: Callable[[], Document]) -> bool:
        page = await persistently(lambda: self._read_page(wanted()))
        self._page.extend(page)
        return bool(page)

    def _rest_of_log(self) -> Document:
        return queries.events_of(self._app_name, self.position.replayed)

    def _rest_of_session(self) -> Document:
        return queries.events_beside(self.position.replayed)

    async def _read_page(self, wanted: Document) -> list[Document]:
        at, position = self._connection, self.position
        try:
            return (await read_page(at, wanted, at=position.reading_at)).events
        except OperationFailure as error:
            if error.code in _NOT_READABLE:
                # Long past, or before the collection was made anew: a later time is.
                self.position = position.reading_later(await snapshots.now(at))
            raise

    async def close(self) -> None:
        """End the server's cursor."""
        if self._stream is not None:
            await self._stream.close()
