"""The service's methods that go back in a session's log, or on from there elsewhere."""

from __future__ import annotations

from google.adk.events.event import Event
from google.adk.platform import uuid as platform_uuid
from google.adk.sessions.session import Session

from mongo_session_service.backend import Opened
from mongo_session_service.codec.adk_session import to_session
from mongo_session_service.driver.errors import once_written
from mongo_session_service.lifecycle import Lifecycle
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.validation import check_revision
from mongo_session_service.sessions.fork import copy_session
from mongo_session_service.sessions.history import restored, revisit
from mongo_session_service.sessions.store import not_found
from mongo_session_service.telemetry import traced


class Branching(Lifecycle):
    """What can be made of a session's past."""

    @traced
    async def get_session_at(
        self, *, app_name: str, user_id: str, session_id: str, revision: int
    ) -> Session | None:
        """Returns a session as it was at a revision, or None if it is not stored.

        That is its first events, and the state it had after them. App and user state
        are as they are now: only sessions have a log. An append to it is stale, unless
        the session is still at this revision.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session's id, stripped.
            revision: After how many appends; 0 for the session as it was created.

        Raises:
            InvalidInputError: the session has not come so far.
        """
        key = session_key(app_name, user_id, session_id)
        check_revision("revision", revision)
        async with self._opened() as opened:
            found = await revisit(opened.connection, opened.store, key, revision)
        return to_session(found.session) if found else None

    @traced
    async def fork_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        at_revision: int | None = None,
        new_session_id: str | None = None,
    ) -> Session:
        """Creates a session with another's events up to a revision, and its state then.

        It belongs to the same user, has the title, the labels and the time to live of
        the other, and goes on by itself. App and user state stay as they are. The
        server copies the events, a step at a time; the session exists once it is
        whole. If that is interrupted, :meth:`prune` removes what is there after a
        minute, and so does a ``create_session`` of the same id.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session to fork, stripped.
            at_revision: After how many appends; all there are by default.
            new_session_id: The new session's id, stripped; generated if blank or None.

        Raises:
            SessionNotFoundError: the session is not stored, or is deleted meanwhile.
            AlreadyExistsError: the new session's id is taken.
            InvalidInputError: an id is unusable, or the session has not come so far.
            UnknownOutcomeError: the new session, whole, may have been stored or not.
        """
        key = session_key(app_name, user_id, session_id)
        check_revision("at_revision", at_revision)
        if isinstance(new_session_id, str):
            new_session_id = new_session_id.strip()
        new_id = new_session_id or platform_uuid.new_uuid()
        target = session_key(app_name, user_id, new_id)
        async with self._opened() as opened:
            await copy_session(
                opened.connection, opened.store, key, target, at_revision
            )
            with once_written():
                stored = await opened.store.load_session(target)
        if stored is None:
            raise not_found(new_id)
        return to_session(stored)


async def rewinding(opened: Opened, key: SessionKey, event: Event) -> Event:
    """A rewind as it is to be stored: it brings the initial state back as well."""
    invocation_id = event.actions.rewind_before_invocation_id
    found = await revisit(opened.connection, opened.store, key, None)
    if not invocation_id or found is None:
        return event
    delta = restored(
        event.actions.state_delta, found.initial, found.session.events, invocation_id
    )
    actions = event.actions.model_copy(update={"state_delta": delta})
    return event.model_copy(update={"actions": actions})
