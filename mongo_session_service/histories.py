"""The service's methods that read the log of events, however long it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple

from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.documents import decode_event
from mongo_session_service.lifecycle import Lifecycle
from mongo_session_service.model.records import Document, SessionKey, session_key
from mongo_session_service.model.validation import check_id, check_revision
from mongo_session_service.sessions.event_log import (
    Span,
    load_session_page,
    load_user_page,
    session_id,
)
from mongo_session_service.sessions.store import not_found
from mongo_session_service.telemetry import Operation


class UserEvent(NamedTuple):
    """An event of a user, and where it stands."""

    session_id: str
    revision: int
    event: Event


class Histories(Lifecycle):
    """What was said in a service's sessions."""

    def iter_events(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        after_revision: int = 0,
        before_revision: int | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Iterates over a session's events with their revisions, in flat memory.

        Events that are appended meanwhile come as well, unless ``newest_first``. To
        stop early needs no care: nothing is left open on the server.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session's id, stripped.
            after_revision: Only events that were appended after it.
            before_revision: Only events that were appended before it.
            newest_first: Whether the last comes first.
            limit: At most so many.

        Raises:
            InvalidInputError: an argument is not what it should be.
            SessionNotFoundError: when iterating: the session is not stored, has
                expired, or was deleted meanwhile, even if it was made anew.
        """
        key = session_key(app_name, user_id, session_id)
        check_revision("after_revision", after_revision)
        check_revision("before_revision", before_revision)
        check_revision("limit", limit)
        span = Span(after_revision or 0, before_revision, newest_first, limit)
        return self._events(key, span)

    async def _events(
        self, key: SessionKey, span: Span
    ) -> AsyncGenerator[tuple[int, Event], None]:
        created: float | None = None
        while span.left != 0:
            with Operation("iter_events", self.database_name, key.app_name):
                async with self._opened() as opened:
                    now = platform_time.get_time()
                    page = await load_session_page(opened.connection, key, span, now)
            found = page.created.get(key.session_id)
            if found is None or created not in {None, found}:
                raise not_found(key.session_id)
            created = found
            for each in page.events:
                yield each["_id"]["revision"], decode_event(each, self._hooks)
            if page.is_last:
                return
            span = span.rest(len(page.events), page.events[-1]["_id"]["revision"])

    def iter_user_events(
        self, *, app_name: str, user_id: str
    ) -> AsyncGenerator[UserEvent, None]:
        """Iterates over the events of all of a user's sessions, in flat memory.

        They come session by session, by id, each in the order of its revisions, and
        with as many reads as there are pages of events, however many sessions. A
        session that is deleted meanwhile ends there; one made anew under its id is
        not told in its place.

        Args:
            app_name: The app.
            user_id: The user.

        Raises:
            InvalidInputError: an id is not what it should be.
        """
        return self._user_events(
            check_id("app_name", app_name), check_id("user_id", user_id)
        )

    async def _user_events(
        self, app_name: str, user_id: str
    ) -> AsyncGenerator[UserEvent, None]:
        last: Document | None = None
        created: float | None = None
        while True:
            with Operation("iter_user_events", self.database_name, app_name):
                async with self._opened() as opened:
                    now, after = platform_time.get_time(), last and last["_id"]
                    page = await load_user_page(
                        opened.connection, app_name, user_id, after, now
                    )
            begun = session_id(last) if last else None
            for each in page.events:
                id_ = session_id(each)
                found = page.created.get(id_)
                is_same = found is not None and (id_ != begun or found == created)
                # A large initial state is kept beside the events.
                if is_same and "event" in each:
                    event = decode_event(each, self._hooks)
                    yield UserEvent(id_, each["_id"]["revision"], event)
            if page.is_last:
                return
            before, last = last, page.events[-1]
            if before is None or session_id(last) != session_id(before):
                created = page.created.get(session_id(last))
