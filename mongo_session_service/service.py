"""ADK's session service, each method a short story told to the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from typing_extensions import override

from mongo_session_service.branching import Branching, rewinding
from mongo_session_service.catalogue import Catalogue
from mongo_session_service.codec.adk_session import mark, marker_of, to_session
from mongo_session_service.codec.documents import (
    decode_new_session,
    encode_append,
    encode_new_session,
)
from mongo_session_service.codec.hooks import Hook, Hooks
from mongo_session_service.driver.errors import once_written
from mongo_session_service.driver.uri import Target
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.histories import Histories
from mongo_session_service.model.metadata import new_details
from mongo_session_service.model.records import Marker, session_key
from mongo_session_service.model.validation import (
    check_config,
    check_event,
    check_id,
    check_session,
)
from mongo_session_service.sessions.deletion import remove_session
from mongo_session_service.sessions.group_commit import Caller
from mongo_session_service.telemetry import traced
from mongo_session_service.upkeep import Upkeep

logger = logging.getLogger(__name__)


class MongoSessionService(Upkeep, Catalogue, Histories, Branching, BaseSessionService):
    """Keeps ADK sessions in MongoDB.

    ::

        service = MongoSessionService("mongodb://localhost/my_db?replicaSet=rs0")
        runner = Runner(agent=agent, app_name="my_app", session_service=service)

    Every call may raise ``InvalidInputError`` for arguments that make no sense, ids
    that are no non-empty strings of 4,096 bytes at most for example,
    ``ConfigurationError``, ``SchemaVersionError``, ``StorageError`` and its
    ``StorageUnavailableError``. A write that raises was not done, unless that is
    ``UnknownOutcomeError``. The README has a table of them.
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        client: Any = None,
        database: str | None = None,
        collection_prefix: str = "",
        transactions: bool = True,
        on_conflict: Literal["raise", "rebase"] = "raise",
        before_store: Hook | None = None,
        after_load: Hook | None = None,
        **adk_kwargs: Any,
    ) -> None:
        """Connects to nothing yet.

        Args:
            uri: Where MongoDB is. The service then owns its clients, and works from any
                event loop, thread and process.
            client: A PyMongo ``AsyncMongoClient``, Motor ``AsyncIOMotorClient`` or
                mongomock-motor ``AsyncMongoMockClient`` of the caller's instead of a
                URI. It is never closed here, and only used in one event loop.
            database: The database's name; by default the URI's, or else ``adk``.
            collection_prefix: Put before the name of every collection.
            transactions: False is the only way to run on a server without them; an
                append is then several writes that a crash can tear apart.
            on_conflict: What an append does when storage has moved on: ``raise`` ADK's
                ``StaleSessionError``, or ``rebase``: bring what others have appended
                into the session, and append on top of it.
            before_store: Called as ``before_store(value, subject)`` with each event and
                each value of state that is to be stored; what it returns is stored
                instead. See :class:`Subject` and the README.
            after_load: Its inverse, called with what was stored.
            **adk_kwargs: What ADK's service registry passes along; ignored. Any but
                ``agents_dir`` is logged as a warning, since it may be misspelt.

        Raises:
            ConfigurationError: the arguments do not fit together.
        """
        if on_conflict not in {"raise", "rebase"}:
            message = f"on_conflict must be 'raise' or 'rebase', not {on_conflict!r}."
            raise ConfigurationError(message)
        self._is_rebasing = on_conflict == "rebase"
        if unknown := adk_kwargs.keys() - {"agents_dir"}:
            logger.warning("Ignored unknown arguments: %s.", ", ".join(sorted(unknown)))
        target = Target.of(
            uri,
            client,
            database=database,
            prefix=collection_prefix,
            transactions=transactions,
            hooks=Hooks(before_store, after_load),
        )
        super().__init__(uri, client, target)

    @override
    @traced
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | timedelta | None = None,
        expire_time: datetime | str | None = None,
    ) -> Session:
        """Creates a session, and writes the app and user state among its ``state``.

        Those after ``session_id`` are what ADK's REST API passes on of ``options``.

        Args:
            app_name: The app.
            user_id: The user.
            state: The initial state, keys prefixed by scope; ``temp:`` is dropped.
            session_id: The session's id, stripped; generated if blank or None.
            title: What people call it, up to 1,000 characters.
            labels: What to find it by: up to 64, of up to 256 characters each.
            ttl: Seconds, or a ``timedelta``, after which it is gone, with its events;
                each append renews it, by the clock of the process that appends.
            expire_time: Or when it is gone, whatever is appended until then: a
                ``datetime`` with a time zone, or ISO 8601 text with one.

        Raises:
            AlreadyExistsError: the session exists. No state was written.
            InvalidInputError: something of it cannot be stored.
            DocumentTooLargeError: the state does not fit into a document.
            UnknownOutcomeError: the session, whole, may have been stored or not.
        """
        if session_id is None or (
            isinstance(session_id, str) and not session_id.strip()
        ):
            session_id = platform_uuid.new_uuid()
        key = session_key(app_name, user_id, session_id)
        now = platform_time.get_time()
        details = new_details(title, labels, ttl, expire_time, now)
        initial = {} if state is None else state
        new = encode_new_session(key, initial, now, self._hooks, details)
        async with self._opened() as opened:
            reading = opened.store.reading_shared_state(key)
            await opened.committer.create(new)
            with once_written():
                shared = await asyncio.shield(reading)
                return to_session(decode_new_session(new, shared, self._hooks))

    @override
    @traced
    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns a session as it is at one point in time, or None.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session's id, stripped.
            config: Which events to load: at most the ``num_recent_events`` latest, and
                of these the ones at or after ``after_timestamp``. All by default.
        """
        key = session_key(app_name, user_id, session_id)
        config = check_config(config)
        async with self._opened() as opened:
            stored = await opened.store.load_session(key, config)
        return to_session(stored) if stored else None

    @override
    @traced
    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Lists an app's or a user's sessions with their state, without events.

        The longest untouched comes first, ties by user and then session id.
        """
        app_name = check_id("app_name", app_name)
        if user_id is not None:
            user_id = check_id("user_id", user_id)
        async with self._opened() as opened:
            stored = await opened.store.list_sessions(app_name, user_id)
        return ListSessionsResponse(sessions=[to_session(each) for each in stored])

    @override
    @traced
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns a user's state, keys without ``user:``; empty if there is none."""
        app_name = check_id("app_name", app_name)
        user_id = check_id("user_id", user_id)
        async with self._opened() as opened:
            return await opened.store.load_user_state(app_name, user_id)

    @override
    @traced
    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores an event and its effect on state, as one transaction.

        When this returns, both are committed on a majority of the replica set, and
        ``session`` shows them. When it raises, ``session`` and ``event`` are as they
        were. An event that was stored before is not stored again. A partial event is
        returned as it is. If the caller is cancelled, the transaction is finished
        first, so ``session`` tells whether the event was stored.

        Raises:
            StaleSessionError: the stored session has events ``session`` does not know;
                if it was to be rebased, they leave no place for this one.
            SessionNotFoundError: the session is not stored (any more).
            AlreadyExistsError: another event of the session has the same id.
            InvalidInputError: a value of the event cannot be stored.
            DocumentTooLargeError: the event or the session's state got too large.
            UnknownOutcomeError: it may have been stored or not. Append the same event
                again: it is recognised if it was.
        """
        check_event(event)
        if event.partial:
            return event
        check_session(session)
        key = session_key(session.app_name, session.user_id, session.id)
        async with self._opened() as opened:
            stored = event
            if event.actions.rewind_before_invocation_id:
                stored = await rewinding(opened, key, event)
            append = encode_append(key, stored, self._hooks)
            marker = marker_of(session)
            if marker is None:
                head = await opened.store.load_head(key)
                last_event = session.events[-1] if session.events else None
                marker = head.expected_by(
                    session.last_update_time, last_event, event.id
                )
            caller = Caller(
                append,
                session,
                expected=lambda: marker_of(session) or marker,
                stored=lambda now: self._show(session, event, stored, now),
            )
            if self._is_rebasing:
                await opened.rebaser.commit(caller, session, event)
            else:
                await opened.committer.commit(caller)
        return event

    async def _show(
        self, session: Session, event: Event, stored: Event, marker: Marker
    ) -> None:
        mark(session, marker)
        event.actions = stored.actions
        session.last_update_time = event.timestamp
        await super().append_event(session, event)

    @override
    @traced
    async def delete_session(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> None:
        """Deletes a session and its events; app and user state stay.

        The session is gone at once, and its events when this returns. If that is
        interrupted, the next delete or :meth:`prune` goes on with it, and so does a
        ``create_session`` of the same id.
        """
        key = session_key(app_name, user_id, session_id)
        async with self._opened() as opened:
            await remove_session(opened.connection, key, platform_time.get_time())

    @override
    async def flush(self) -> None:
        """Does nothing: every append is committed before it returns."""
