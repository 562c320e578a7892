"""Every read and write of sessions, events and scoped state, in records only."""

from __future__ import annotations

from typing import Any, Final

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import GetSessionConfig
from pymongo import UpdateOne

from . import queries
from .codec import decode_sessions, decode_state, is_same_event
from .database import DUPLICATE_KEY, BulkWriteError, Connection, DuplicateKeyError, Txn
from .records import (
    Append,
    Marker,
    NewSession,
    PlannedAppend,
    SessionHead,
    SessionKey,
    StoredSession,
)
from .scopes import ScopedState

_STALE: Final = (
    "The session was modified in storage after it was loaded: reload it with"
    " get_session() and append again. Nothing was stored."
)


_MAX_ATTEMPTS_TOGETHER: Final = 4
"""How often several appends are tried as one before each has to fend for itself."""


class RefusedError(Exception):
    """Something about a batch of appends is not as expected; nothing was written."""


class SessionStore:
    """Sessions as a connection's database keeps them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def insert_session(self, session: NewSession) -> None:
        """Store a session together with the app and user state it brings.

        Raises:
            AlreadyExistsError: the session exists; nothing was written.
        """

        async def insert(txn: Txn) -> None:
            document = queries.session_document(session)
            await self._connection.sessions.insert_one(document, session=txn)
            await self._update_scopes([(session.key, session.state)], txn)

        try:
            if session.state.app or session.state.user:
                await self._connection.transaction(insert)
            else:
                await insert(None)
        except DuplicateKeyError:
            message = f"Session {session.key.session_id!r} already exists."
            raise AlreadyExistsError(message) from None

    async def load_session(
        self, key: SessionKey, config: GetSessionConfig | None
    ) -> StoredSession | None:
        """A session with the events asked for, all from one point in time."""
        sessions = await self._read(
            {"_id": key.id},
            queries.all_user_states(key.app_name, key.user_id),
            key.app_name,
            queries.events_wanted(key, config or GetSessionConfig()),
        )
        return sessions[0] if sessions else None

    async def list_sessions(
        self, app_name: str, user_id: str | None
    ) -> list[StoredSession]:
        """All sessions of an app or user, without events, from one point in time."""
        return await self._read(
            queries.all_sessions(app_name, user_id),
            queries.all_user_states(app_name, user_id),
            app_name,
            None,
        )

    async def _read(
        self,
        sessions: queries.Document,
        user_states: queries.Document,
        app_name: str,
        events: queries.EventsWanted | None,
    ) -> list[StoredSession]:
        at = self._connection
        if at.has_transactions:
            stages = [
                {"$match": sessions},
                queries.union(at.app_states, [{"$match": {"_id": app_name}}]),
                queries.union(at.user_states, [{"$match": user_states}]),
            ]
            if events is not None:
                stages.append(queries.union(at.events, events.stages()))
            return decode_sessions(await at.snapshot(at.sessions, stages))
        documents = [
            *await at.sessions.find(sessions).to_list(None),
            *await at.app_states.find({"_id": app_name}).to_list(None),
            *await at.user_states.find(user_states).to_list(None),
        ]
        if events is not None:
            cursor = at.events.find(events.filter).sort("_id", -1)
            documents += events.kept(
                await cursor.limit(events.limit or 0).to_list(None)
            )
        return decode_sessions(documents)

    async def load_user_state(self, app_name: str, user_id: str) -> dict[str, Any]:
        """A user's state; empty if none was ever stored."""
        stored = await self._connection.user_states.find_one(
            {"_id": queries.user_state_id(app_name, user_id)}
        )
        return decode_state(stored["state"]) if stored else {}

    async def load_shared_state(self, key: SessionKey) -> ScopedState:
        """What a session sees of its app and user."""
        app = await self._connection.app_states.find_one({"_id": key.app_name})
        return ScopedState(
            app=decode_state(app["state"]) if app else {},
            user=await self.load_user_state(key.app_name, key.user_id),
        )

    async def load_head(self, key: SessionKey) -> SessionHead:
        """Where a session stands.

        Raises:
            SessionNotFoundError: it is not stored.
        """
        stored = await self._find_session(key)
        latest = self._connection.events.find(queries.all_events(key), {"event.id": 1})
        events = await latest.sort("_id", -1).limit(1).to_list(None)
        return SessionHead(
            marker=Marker(stored["revision"], stored["create_time"]),
            update_time=stored["update_time"],
            last_event_id=events[0]["event"]["id"] if events else None,
        )

    async def commit(self, planned: list[PlannedAppend]) -> None:
        """Store events and their effect on state, as one transaction.

        Raises:
            RefusedError: a session is not as expected, an event is stored already, or
                other writers keep conflicting. Nothing was written; of several appends
                others may succeed alone, of a single one :meth:`explain` tells more.
        """
        attempts = 0

        async def write(txn: Txn) -> None:
            nonlocal attempts
            attempts += 1
            if attempts > _MAX_ATTEMPTS_TOGETHER and len(planned) > 1:
                raise RefusedError
            await self._write(planned, txn)

        try:
            if not self._connection.has_transactions:
                await self._refuse_known_events(planned)
            await self._connection.transaction(write)
        except DuplicateKeyError:
            raise RefusedError from None
        except BulkWriteError as error:
            if any(
                each["code"] == DUPLICATE_KEY for each in error.details["writeErrors"]
            ):
                raise RefusedError from None
            raise

    async def _write(self, planned: list[PlannedAppend], txn: Txn) -> None:
        sessions = queries.session_updates(planned)
        matched = await self._update(self._connection.sessions, sessions, txn)
        if matched != len(sessions):
            raise RefusedError
        events = [
            queries.event_document(append, expected.revision + 1)
            for append, expected in planned
        ]
        if len(events) == 1:
            await self._connection.events.insert_one(events[0], session=txn)
        else:
            await self._connection.events.insert_many(events, session=txn)
        changes = [(append.key, append.delta) for append, _ in planned]
        await self._update_scopes(changes, txn)

    async def _update_scopes(
        self, changes: list[tuple[SessionKey, ScopedState]], txn: Txn
    ) -> None:
        users, apps = queries.user_updates(changes), queries.app_updates(changes)
        await self._update(self._connection.user_states, users, txn, upsert=True)
        # Last, since all users of an app meet here: what is locked late is free soon.
        await self._update(self._connection.app_states, apps, txn, upsert=True)

    async def _update(
        self,
        collection: Any,
        updates: list[queries.Update],
        txn: Txn,
        *,
        upsert: bool = False,
    ) -> int:
        if not updates:
            return 0
        if len(updates) == 1:
            result = await collection.update_one(
                *updates[0], upsert=upsert, session=txn
            )
        else:
            requests = [UpdateOne(*update, upsert=upsert) for update in updates]
            result = await collection.bulk_write(requests, session=txn)
        matched: int = result.matched_count
        return matched

    async def explain(self, append: Append) -> int:
        """The revision at which a refused append's event was stored before.

        Raises:
            StaleSessionError: it was not; the session has moved on.
            SessionNotFoundError: it was not; the session is not stored.
            AlreadyExistsError: another event of the session has the same id.
        """
        await self._find_session(append.key)
        stored = await self._find_event(append)
        if stored is None:
            raise StaleSessionError(_STALE)
        if not is_same_event(append, stored["event"]):
            message = f"Another event with id {append.event['id']!r} already exists."
            raise AlreadyExistsError(message)
        revision: int = stored["_id"]["revision"]
        return revision

    async def delete_session(self, key: SessionKey) -> None:
        """Remove a session and its events; nothing happens if it is not stored."""

        async def delete(txn: Txn) -> None:
            await self._connection.sessions.delete_one({"_id": key.id}, session=txn)
            events = queries.all_events(key)
            await self._connection.events.delete_many(events, session=txn)

        await self._connection.transaction(delete)

    async def _refuse_known_events(self, planned: list[PlannedAppend]) -> None:
        for append, _ in planned:
            if await self._find_event(append) is not None:
                raise RefusedError

    async def _find_event(self, append: Append) -> queries.Document | None:
        query = queries.event_by_id(append.key, append.event["id"])
        stored: queries.Document | None = await self._connection.events.find_one(query)
        return stored

    async def _find_session(self, key: SessionKey) -> queries.Document:
        stored: queries.Document | None = await self._connection.sessions.find_one(
            {"_id": key.id}, {"state": 0}
        )
        if stored is None:
            raise SessionNotFoundError(f"Session {key.session_id!r} not found.")
        return stored
