"""Every read and write of sessions, events and scoped state, in records only."""

from __future__ import annotations

from typing import Any, Final

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import GetSessionConfig

from . import queries
from .codec import decode_sessions, decode_state, is_same_event
from .database import Connection, DuplicateKeyError, Txn
from .records import Append, Marker, NewSession, SessionHead, SessionKey, StoredSession
from .scopes import ScopedState

_STALE: Final = (
    "The session was modified in storage after it was loaded: reload it with"
    " get_session() and append again. Nothing was stored."
)


class _NotAsExpectedError(Exception):
    """The stored session is not at the revision an append expects."""


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
            await self._update_scopes(session.key, session.state, txn)

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

    async def append(self, append: Append, expected: Marker) -> int:
        """Store an event and its effect on state as one transaction.

        Returns the revision the event has: one more than expected, or an earlier one
        if this very event was stored before, in which case nothing changes.

        Raises:
            StaleSessionError: the session has moved on from what was expected.
            SessionNotFoundError: the session is not stored.
            AlreadyExistsError: another event of the session has the same id.
        """

        async def write(txn: Txn) -> None:
            await self._update_session(append, expected, txn)
            document = queries.event_document(append, expected.revision + 1)
            await self._connection.events.insert_one(document, session=txn)
            await self._update_scopes(append.key, append.delta, txn)

        try:
            if not self._connection.has_transactions:
                await self._refuse_known_event(append)
            await self._connection.transaction(write)
        except (_NotAsExpectedError, DuplicateKeyError):
            return await self._explain(append)
        return expected.revision + 1

    async def delete_session(self, key: SessionKey) -> None:
        """Remove a session and its events; nothing happens if it is not stored."""

        async def delete(txn: Txn) -> None:
            await self._connection.sessions.delete_one({"_id": key.id}, session=txn)
            events = queries.all_events(key)
            await self._connection.events.delete_many(events, session=txn)

        await self._connection.transaction(delete)

    async def _update_session(self, append: Append, expected: Marker, txn: Txn) -> None:
        updated = await self._connection.sessions.update_one(
            {"_id": append.key.id, **expected._asdict()},
            queries.session_update(append, expected.revision + 1),
            session=txn,
        )
        if not updated.matched_count:
            raise _NotAsExpectedError

    async def _update_scopes(
        self, key: SessionKey, delta: ScopedState, txn: Txn
    ) -> None:
        if delta.user:
            await self._connection.user_states.update_one(
                {"_id": queries.user_state_id(key.app_name, key.user_id)},
                queries.scope_update(delta.user),
                upsert=True,
                session=txn,
            )
        if delta.app:
            await self._connection.app_states.update_one(
                {"_id": key.app_name},
                queries.scope_update(delta.app),
                upsert=True,
                session=txn,
            )

    async def _explain(self, append: Append) -> int:
        """Tell why an append was refused, or where its event was stored before."""
        await self._find_session(append.key)
        stored = await self._find_event(append)
        if stored is None:
            raise StaleSessionError(_STALE)
        if not is_same_event(append, stored["event"]):
            message = f"Another event with id {append.event['id']!r} already exists."
            raise AlreadyExistsError(message)
        revision: int = stored["_id"]["revision"]
        return revision

    async def _refuse_known_event(self, append: Append) -> None:
        if await self._find_event(append) is not None:
            raise _NotAsExpectedError

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
