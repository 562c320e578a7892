"""Session store: reads and writes of sessions, events and scoped state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeGuard

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as platform_time
from google.adk.sessions.base_session_service import GetSessionConfig
from pymongo.errors import NetworkTimeout, OperationFailure, PyMongoError

from mongo_session_service import telemetry
from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.driver.cancellation import background, uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import in_doubt, is_duplicate_key
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import LeaseLostError, quoted
from mongo_session_service.model.metadata import DETAILS, NOT_GIVEN
from mongo_session_service.model.records import (
    Append,
    Document,
    Marker,
    NewSession,
    Planned,
    SessionHead,
    SessionKey,
    StoredSession,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.read_cache import ReadCache
from mongo_session_service.sessions.reading import SessionReader

_WRITE_CONFLICT: Final = 112


def stale(
    session_id: str, expected: Marker | None = None, stored: Marker | None = None
) -> StaleSessionError:
    """The error for an append to a session that has moved on, as far as is known."""
    how = ""
    if expected and stored:
        revisions = f"from revision {expected.revision} to {stored.revision}"
        is_same = expected.create_time == stored.create_time
        how = f", {revisions}" if is_same else ": it was deleted and created again"
    which = f"Session {quoted(session_id)}"
    return StaleSessionError(
        f"{which} was modified in storage after it was loaded{how}."
        " Nothing was stored. Reload it with get_session() and append again; with a"
        " Runner, run the turn again. If requests overlap, let them wait for each other"
        " with turn() or run_turn(); if several writers are usual, build the service"
        " with on_conflict='rebase'."
    )


def lost(session_id: str) -> LeaseLostError:
    """The error to raise for an append within a turn that was taken over."""
    return LeaseLostError(
        f"The turn of session {quoted(session_id)} was taken over, since it was not"
        " renewed in time: its process was paused, or cut off from MongoDB. Nothing was"
        " stored. Take a new turn, and do again what the events up to now do not show."
    )


def not_found(session_id: str) -> SessionNotFoundError:
    """The error to raise for a session that is not stored, or not any more."""
    return SessionNotFoundError(f"Session {quoted(session_id)} not found.")


def already_exists(session_id: str) -> AlreadyExistsError:
    """The error to raise for a session that is to be made and is stored already."""
    return AlreadyExistsError(f"Session {quoted(session_id)} already exists.")


class RefusedError(Exception):
    """Something about a batch of appends is not as expected; nothing was written."""


class LockedError(Exception):
    """Another writer's transaction has locked a document; nothing was written."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        """How many parts the document's id has: 1 of an app's, 2 a user's, else 3."""


class _ConflictError(OperationFailure):
    """A write conflict, and where it was met."""

    def __init__(self, error: OperationFailure, length: int) -> None:
        super().__init__(str(error), error.code, error.details)
        self.length = length


class OtherTtlError(Exception):
    """All but its time to live is as expected of a session; nothing was written."""

    def __init__(self, expected: Marker) -> None:
        super().__init__()
        self.expected = expected


async def explain(
    connection: Connection,
    planned: Planned,
    *,
    limit: float | None = None,
    may_retry: bool = False,
) -> int:
    """The revision at which a refused write was stored before.

    Args:
        connection: Where to read.
        planned: The write.
        limit: Seconds after which the read is given up.
        may_retry: Whether to raise an error if the session is as expected by now.

    Raises:
        OtherTtlError: it was not, and may be tried again, as this says.
        StaleSessionError: it was not; the session has moved on.
        SessionNotFoundError: it was not; the session is not stored.
        AlreadyExistsError: the session to be created, or another event with the id of
            the one to be appended, is stored.
        LeaseLostError: another caller has taken the session's turn since.
    """
    write, expected, now = planned
    if isinstance(write, NewSession):
        raise already_exists(write.key.session_id)

    async def find(txn: Txn) -> tuple[Document, Document | None]:
        session = await find_session(connection, write.key, now, txn)
        event = await find_event(connection, write.key, write.event["id"], txn)
        return session, event

    # A primary may show what it has not replicated, and lose it when it is deposed.
    # What a transaction has read is on a majority once it is committed.
    session, stored = await connection.transaction(find, limit=limit)
    marker = Marker.of(session)
    if stored is None:
        turn = session.get("turn", {})
        if write.hold not in {None, (turn.get("epoch"), marker.create_time)}:
            raise lost(write.key.session_id)
        # It may have changed to what was expected since, so that all looks well.
        if may_retry and expected == marker._replace(ttl=expected.ttl):
            raise OtherTtlError(marker)
        telemetry.count_stale(connection.database.name)
        raise stale(write.key.session_id, expected, marker)
    if not documents.is_same_event(write, stored["event"], connection.hooks):
        which = f"Another event with id {quoted(write.event['id'])}"
        raise AlreadyExistsError(f"{which} already exists.")
    revision: int = stored["_id"]["revision"]
    return revision


async def find_event(
    connection: Connection, key: SessionKey, event_id: str, txn: Txn = None
) -> Document | None:
    """The stored event of a session that has this id."""
    query = queries.event_by_id(key, event_id)
    found: Document | None = await connection.events.find_one(query, session=txn)
    return found


async def find_session(
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
        raise not_found(key.session_id)
    return found


ATTEMPTS: Final = 2
"""How often a batch is tried before a document counts as locked."""


def is_one_document(write: Append | NewSession) -> TypeGuard[NewSession]:
    """Whether a write is atomic by itself, and needs no transaction."""
    if not isinstance(write, NewSession):
        return False
    return not (write.delta.app or write.delta.user or documents.is_apart(write))


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
        stored = await find_session(self._connection, key, platform_time.get_time())
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
            raise not_found(key.session_id)
        (head,) = heads
        last = documents.without_trimmed([it for it in found if it is not head], head)
        events = [documents.decode_event(each, hooks) for each in last]
        return StoredSession(key, Marker.of(head), head["update_time"], {}, events)

    async def commit(
        self, planned: list[Planned], *, limit: float, attempts: int, is_lone: bool
    ) -> None:
        """Store sessions, events and their effect on state, as one transaction.

        Args:
            planned: The writes.
            limit: Seconds after which they are given up.
            attempts: How often to try while another transaction holds a document.
            is_lone: Whether to store a new session without a transaction: it takes one
                round trip, but waits for as long as another transaction holds it.

        Raises:
            RefusedError: a session is not as expected, or something is stored already.
                Nothing was written; of several writes others may succeed alone, of a
                single one :func:`explain` tells more.
            LockedError: another transaction still holds a document.
        """
        left, at = attempts, self._connection

        async def write(txn: Txn) -> None:
            nonlocal left
            left -= 1
            try:
                await self._write(planned, txn)
            except _ConflictError as error:
                if left:
                    raise
                telemetry.count_conflict(self._connection.database.name)
                raise LockedError(error.length) from None

        try:
            if not (at.has_transactions and at.has_event_index):
                await self._refuse_known_events(planned)
            first, *others = (each.write for each in planned)
            alone = (is_lone or not at.has_transactions) and not others
            if alone and is_one_document(first):
                await self._create(first, limit)
            else:
                await at.transaction(write, limit=limit)
        except PyMongoError as error:
            if is_duplicate_key(error):
                raise RefusedError from None
            raise
        telemetry.count_commit(self._connection.database.name, len(planned))

    async def _create(self, new: NewSession, limit: float) -> None:
        """Store a session that sets nothing but its own state."""
        at = self._connection
        document = documents.session_document(new)
        with in_doubt():
            try:
                async with asyncio.timeout(limit):
                    if at.has_transactions:
                        insert = at.sessions.insert_one
                        await at.acknowledged(lambda txn: insert(document, session=txn))
                    else:
                        await at.sessions.insert_one(document)
            except TimeoutError:
                raise NetworkTimeout from None

    async def _write(self, planned: list[Planned], txn: Txn) -> None:
        created = [write for write, *_ in planned if isinstance(write, NewSession)]
        appends = [write for write, *_ in planned if isinstance(write, Append)]
        # Shared state ends as the last append has it, which is what subscribers who
        # see the events receive.
        writes: list[Append | NewSession] = [*created, *appends]
        await self._insert(
            self._connection.sessions, map(documents.session_document, created), txn
        )
        apart = queries.initial_updates(created)
        await self._update(self._connection.events, apart, txn, upsert=True)
        updates = queries.session_updates(planned)
        if await self._update(self._connection.sessions, updates, txn) != len(updates):
            raise RefusedError
        events = (
            documents.event_document(
                write, expected.revision + 1, encoded=txn is not None
            )
            for write, expected, _ in planned
            if isinstance(write, Append)
        )
        await self._insert(self._connection.events, events, txn)
        renamed = {each.key for each in appends if each.title is not NOT_GIVEN}
        for key in renamed if txn else ():
            at, fields = self._connection, dict.fromkeys(DETAILS, 1)
            found = await at.sessions.find_one({"_id": key.id}, fields, session=txn)
            await announce(at, found, txn)
        await self._update(
            self._connection.user_states, queries.user_updates(writes), txn, upsert=True
        )
        # Last, since all users of an app meet here: what is locked late is free soon.
        await self._update(
            self._connection.app_states, queries.app_updates(writes), txn, upsert=True
        )

    async def _insert(
        self, collection: Any, inserted: Iterable[Document], txn: Txn
    ) -> None:
        several = list(inserted)
        if txn is None:
            for document in several:
                await collection.insert_one(document)
        elif several:
            command = {"insert": collection.name, "documents": several}
            await self._run(command, collection, txn)

    async def _run(self, command: Document, collection: Any, txn: Txn) -> int:
        try:
            return await self._connection.write(command, txn)
        except OperationFailure as error:
            if error.code != _WRITE_CONFLICT:
                raise
            at = self._connection
            shared = {at.app_states.name: 1, at.user_states.name: 2}
            raise _ConflictError(error, shared.get(collection.name, 3)) from None

    async def _update(
        self,
        collection: Any,
        updates: list[queries.Update],
        txn: Txn,
        *,
        upsert: bool = False,
    ) -> int:
        """Update documents; how many there were, or were made."""
        if txn is None:
            found = 0
            for update in updates:
                result = await collection.update_one(*update, upsert=upsert)
                found += result.matched_count
            return found
        if not updates:
            return 0
        statements = [
            {"q": wanted, "u": queries.fastest(change), "upsert": upsert}
            for wanted, change in updates
        ]
        command = {"update": collection.name, "updates": statements}
        return await self._run(command, collection, txn)

    async def _refuse_known_events(self, planned: list[Planned]) -> None:
        for write, *_ in planned:
            if isinstance(write, Append) and await find_event(
                self._connection, write.key, write.event["id"]
            ):
                raise RefusedError


async def announce(connection: Connection, session: Document, txn: Txn) -> None:
    """Inform the change feed of a session's details, in the transaction that sets them.

    It looks at no updates of sessions: each append is one.
    """
    id_ = queries.announcement_id(session["_id"], queries.UPDATED)
    details: Document = {name: session[name] for name in DETAILS if name in session}
    await connection.sessions.insert_one(details | {"_id": id_}, session=txn)
    await connection.sessions.delete_one({"_id": id_}, session=txn)


async def amend(
    connection: Connection,
    key: SessionKey,
    fields: Mapping[str, Any],
    now: float,
) -> Document:
    """Set fields of a session, remove those that are None; its document, stateless.

    It is finished even if the caller is cancelled.

    Raises:
        SessionNotFoundError: it is not stored, or has expired.
    """

    async def work(txn: Txn) -> Document | None:
        where = {"_id": key.id, **queries.visible(now)}
        change = queries.fields_update(fields)
        updated = await connection.sessions.update_one(where, change, session=txn)
        if not updated.matched_count:
            return None
        found: Document = await connection.sessions.find_one(
            {"_id": key.id}, {"state": 0}, session=txn
        )
        if txn:
            await announce(connection, found, txn)
        return found

    found = await uninterrupted(connection.transaction(work))
    if found is None:
        raise not_found(key.session_id)
    return found
