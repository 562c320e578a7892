"""The service's methods that say more of sessions, or find them by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from google.adk.platform import time as platform_time

from .amending import amend
from .details import NOT_GIVEN, NotGiven, changed_fields
from .lifecycle import Lifecycle
from .records import session_key
from .summaries import SessionSummary, summary
from .telemetry import traced


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
                each append; None if it is not to expire, at an ``expire_time`` either.

        Returns:
            The session as it is now, without its state.

        Raises:
            SessionNotFoundError: it is not stored, or has expired.
            InvalidInputError: an argument is not what it should be, or none is given.
        """
        key = session_key(app_name, user_id, session_id)
        now = platform_time.get_time()
        fields = changed_fields(title, labels, ttl, now)
        async with self._opened() as opened:
            found = await amend(opened.connection, key, fields, now)
        return summary(found, state=None)
