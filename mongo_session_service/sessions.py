"""ADK's ``Session`` objects, and the mark of what they were read at."""

from __future__ import annotations

from google.adk.sessions.session import Session

from . import scopes
from .records import Marker, StoredSession


def to_session(stored: StoredSession) -> Session:
    """A stored session as ADK's callers get it."""
    session = Session(
        app_name=stored.key.app_name,
        user_id=stored.key.user_id,
        id=stored.key.session_id,
        state=scopes.merge(stored.scopes),
        events=stored.events,
        last_update_time=stored.update_time,
    )
    mark(session, stored.marker)
    return session


def marker_of(session: Session) -> Marker | None:
    """What a session was read at; None if it was not read here."""
    return Marker.parse(session._storage_update_marker)  # noqa: SLF001  ADK's own slot


def mark(session: Session, marker: Marker) -> None:
    """Note in a session what it is at."""
    session._storage_update_marker = str(marker)  # noqa: SLF001  as above
