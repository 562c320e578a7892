"""The service's methods that say more of sessions, or find them by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from google.adk.platform import time as platform_time

from mongo_session_service.lifecycle import Lifecycle
from mongo_session_service.model.metadata import NOT_GIVEN, NotGiven, changed_fields
from mongo_session_service.model.records import session_key
from mongo_session_service.model.results import SessionPage, SessionSummary, summary
from mongo_session_service.sessions.page_key import load_page_key
from mongo_session_service.sessions.search import (
    check_limit,
    load_page,
    new_search,
    place_in,
    token,
)
from mongo_session_service.sessions.store import amend
from mongo_session_service.telemetry import traced


class Catalogue(Lifecycle):
    """What a service's sessions are called, and which of them there are."""

    @traced
    async def update_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        title: str | NotGiven | None = NOT_GIVEN,
        labels: Mapping[str, str] | NotGiven | None = NOT_GIVEN,
        ttl: float | timedelta | NotGiven | None = NOT_GIVEN,
        expire_time: datetime | str | NotGiven | None = NOT_GIVEN,
    ) -> SessionSummary:
        """Changes a session's details, and leaves what is not given as it is.

        State, revision and last update time stay: no ``Session`` that was loaded
        before becomes stale by it.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session's id, stripped.
            title: The new title; None for none.
            labels: All its labels from now on; None for none.
            ttl: Seconds, or a ``timedelta``, that it lives from now on, and again after
                each append, in place of an ``expire_time`` it may have.
            expire_time: When it is gone, in place of a ``ttl`` it may have. None for
                either if it is not to expire.

        Returns:
            The session as it is now, without its state.

        Raises:
            SessionNotFoundError: it is not stored, or has expired.
            InvalidInputError: an argument is not what it should be, none is given, or
                both a ``ttl`` and an ``expire_time``.
        """
        key = session_key(app_name, user_id, session_id)
        now = platform_time.get_time()
        fields = changed_fields(title, labels, ttl, expire_time, now)
        async with self._opened() as opened:
            found = await amend(opened.connection, key, fields, now)
        return summary(found, state=None)

    @traced
    async def find_sessions(
        self,
        *,
        app_name: str,
        user_id: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        where: Mapping[str, Any] | None = None,
        newest_first: bool = True,
        with_state: bool = True,
        limit: int = 50,
        page_token: str | None = None,
    ) -> SessionPage:
        """Finds sessions, a page at a time, in the order of their creation.

        A page is of one point in time. However sessions are written, created and
        deleted meanwhile, the pages of a search together have each session once that
        was there from the first to the last.

        Args:
            app_name: The app.
            user_id: Only this user's.
            title: Only those with exactly this title.
            labels: Only those with all of these labels; others they may have.
            where: Only those whose own state has these values: literally, type for
                type, but for numbers, of which 1 is 1.0 and True is neither. An int
                beyond 64 bits is equal to no float.
            newest_first: Whether those created last come first.
            with_state: Whether their state is loaded, as ``list_sessions`` does.
            limit: How many a page has at most, up to 1,000.
            page_token: The ``next_page_token`` of the page before. The other arguments
                must be the same, but for ``limit`` and ``with_state``.

        Raises:
            InvalidInputError: an argument is not what it should be, or the token is not
                one of this search.
        """
        check_limit(limit)
        search = new_search(
            app_name,
            user_id,
            title,
            labels,
            where,
            newest_first=newest_first,
            hooks=self._hooks,
        )
        now = platform_time.get_time()
        async with self._opened() as opened:
            at, after, key = opened.connection, None, None
            if page_token is not None:
                key = await load_page_key(at)
                after = place_in(page_token, search, key)
            page = await load_page(at, search, after, limit, now, with_state=with_state)
            following = None
            if page.last is not None:
                key = key or await load_page_key(at)
                following = token(page.last, search, key)
        return SessionPage(sessions=page.summaries, next_page_token=following)
