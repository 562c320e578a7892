"""Session store: reads of sessions, events and scoped state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from google.adk.platform import time as platform_time
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.driver.cancellation import background
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.records import (
    Document,
    Marker,
    SessionHead,
    SessionKey,
    StoredSession,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.read_cache import ReadCache
from mongo_session_service.sessions.reading import SessionReader


async def find_event_document(
    connection: Connection, key: SessionKey, event_id: str, txn: Txn = None
) -> Document | None:
    """The stored event of a session that has this id."""
    query = queries.event_by_id(key, event_id)
    found: Document | None = await connection.events.find_one(query, session=txn)
    return found


async def find_session_document(
    connection: Connection, key: SessionKey, now: float, txn: Txn = None
) -> Document:
    """A session's document, without its state.

    Raises:
        SessionNotFoundError: there is none.
    """
    found: Document | None = await connection.sessions.find_one(
        {"_id": key.id, **queries.visible(now)}, {"state": 0}, session=txn
    )
    if found is None:
        raise session_not_found_error(key.session_id)
    return found


class SessionStore:
    """Sessions as a connection's database keeps them."""

    def __init__(self, connection: Connection, cache: ReadCache | None = None) -> None:
        self._connection = connection
        self._reader = SessionReader(connection, cache)
        self._next_keys: set[SessionKey] = set()
        self._next_read: asyncio.Task[list[Document]] | None = None

    async def load_session(
        self,
        key: SessionKey,
        config: GetSessionConfig | None = None,
        after_revision: int = 0,
    ) -> StoredSession | None:
        """A session with the events asked for, all from one point in time."""
        return await self._reader.load(key, config, after_revision)

    async def list_sessions(
        self, app_name: str, user_id: str | None
    ) -> Iterator[StoredSession]:
        """All sessions of an app or user, without events, from one point in time.

        They are decoded as they are asked for. One that cannot be read is left out.

        The longest untouched comes first, ties by user and then session id.
        """
        now = platform_time.get_time()
        wanted = {**queries.all_sessions(app_name, user_id), **queries.visible(now)}
        found = await self._reader.read(
            queries.Wanted("sessions", wanted, fields=documents.LISTED),
            *queries.shared_state(app_name, user_id),
            anywhere=True,
        )
        plain = await in_slices(map(bson_values.is_plain, found.encoded))
        return documents.decode_sessions(
            await in_slices(found.documents()),
            now,
            self._connection.hooks,
            if_unreadable=documents.leave_out,
            is_plain=bool(plain) and all(plain),
        )

    def reading_shared_state(self, key: SessionKey) -> asyncio.Task[list[Document]]:
        """A read of what sessions share, this one among them, from one point in time.

        All who ask in the same turn of the event loop share it, so none may cancel it.
        """
        if self._next_read is None:
            self._next_read = background(self._read_shared())
        self._next_keys.add(key)
        return self._next_read

    async def _read_shared(self) -> list[Document]:
        keys, self._next_keys, self._next_read = self._next_keys, set(), None
        return await self.read(*queries.shared_states(keys))

    async def read(
        self, *wanted: queries.Wanted, anywhere: bool = False
    ) -> list[Document]:
        """Documents of several collections, in one round trip and from one snapshot."""
        found = await self._reader.read(*wanted, anywhere=anywhere)
        return await in_slices(found.documents())

    async def load_user_state(self, app_name: str, user_id: str) -> dict[str, Any]:
        """A user's state; empty if none was ever stored."""
        id_ = queries.user_state_id(app_name, user_id)
        wanted = queries.Wanted("user_states", {"_id": id_})
        stored = await self.read(wanted, anywhere=True)
        owner = Owner.of_shared(app_name, user_id)
        fields = stored[0]["state"] if stored else {}
        return documents.decode_state(fields, owner, self._connection.hooks)

    async def load_head(self, key: SessionKey) -> SessionHead:
        """Where a session stands.

        Raises:
            SessionNotFoundError: it is not stored.
        """
        stored = await find_session_document(
            self._connection, key, platform_time.get_time()
        )
        log = queries.routed(self._connection, queries.events_after(key, 0))
        latest = self._connection.events.find(log, {"event.id": 1}).sort("_id", -1)
        events = await latest.limit(2).to_list(None)
        return SessionHead(
            marker=Marker.of(stored),
            update_time=stored["update_time"],
            latest_ids=[each["event"]["id"] for each in events],
        )

    async def load_end(self, key: SessionKey) -> StoredSession:
        """A session with its last event alone, and without state.

        Raises:
            SessionNotFoundError: it is not stored.
        """
        now, hooks = platform_time.get_time(), self._connection.hooks
        fields = (*documents.LISTED[1:], documents.LOG_BEGINS)
        found = await self.read(
            queries.Wanted("sessions", {"_id": key.id}, fields=fields),
            queries.Wanted("events", queries.events_after(key, 0), order=-1, limit=1),
        )
        heads = [each for each in found if each["_id"] == key.id]
        if not (heads and documents.is_visible(heads[0], now)):
            raise session_not_found_error(key.session_id)
        (head,) = heads
        last = documents.without_trimmed([it for it in found if it is not head], head)
        events = [documents.decode_event(each, hooks) for each in last]
        return StoredSession(key, Marker.of(head), head["update_time"], {}, events)
