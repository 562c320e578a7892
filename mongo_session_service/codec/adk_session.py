"""ADK ``Session`` objects: built from records, with the version they were read at."""

from __future__ import annotations

from typing import Any, Final

from google.adk.events.event import Event
from google.adk.sessions.session import Session

from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.model.records import Marker, SessionKey
from mongo_session_service.model.results import SessionSummary

_MARK: Final = "_storage_update_marker"
"""ADK's own slot for it."""

_set: Final = object.__setattr__
"""Past pydantic, which would take these for fields."""


_FIELDS: Final = {"id", "app_name", "user_id", "state", "events", "last_update_time"}
_BLANK: Final = Session(id="", app_name="", user_id="")
_OTHERS: Final = {k: it for k, it in _BLANK.__dict__.items() if k not in _FIELDS}
_PRIVATE: Final = _BLANK.__pydantic_private__ or {}


def to_session(stored: StoredSession) -> Session:
    record, state, events = stored
    return _build(record.key, record.marker, record.updated, state, [*events])


def listed_session(summary: SessionSummary) -> Session:
    """Make what a list shows of a session, of a summary with its state."""
    key = SessionKey(summary.app_name, summary.user_id, summary.id)
    expires = summary.expire_time is not None
    marker = Marker(summary.revision, summary.create_time, summary.ttl, expires)
    state = dict(summary.state or {})
    return _build(key, marker, summary.last_update_time, state, [])


def _build(
    key: SessionKey,
    marker: Marker,
    updated: float,
    state: dict[str, Any],
    events: list[Event],
) -> Session:
    app_name, user_id, session_id = key
    fields = {
        **_OTHERS,
        "id": session_id,
        "app_name": app_name,
        "user_id": user_id,
        "state": state,
        "events": events,
        "last_update_time": updated,
    }
    # As pickle does it, for nothing is left to validate: half the time of a list.
    session = Session.__new__(Session)
    _set(session, "__dict__", fields)
    _set(session, "__pydantic_fields_set__", _FIELDS.copy())
    _set(session, "__pydantic_extra__", None)
    _set(session, "__pydantic_private__", {**_PRIVATE, _MARK: marker})
    return session


def marker_of(session: Session) -> Marker | None:
    """Return the marker that a session was read at; None if it was not read here."""
    # Ten times faster than by name, and asked twice for each append.
    found = (session.__pydantic_private__ or {}).get(_MARK)
    return found if isinstance(found, Marker) else None


def mark(session: Session, marker: Marker) -> None:
    # ADK's own services keep text in it, other services what they like.
    private = session.__pydantic_private__ or {}
    _set(session, "__pydantic_private__", {**private, _MARK: marker})


def show_missed_events(session: Session, stored: StoredSession) -> None:
    """Show a session what others have appended, unless it has been shown before.

    Its state becomes what is stored, beside what is in no storage: ``temp:`` keys.
    """
    marker = marker_of(session)
    missed = stored.events
    if marker is not None:
        count = max(stored.marker.revision - marker.revision, 0)
        missed = missed[len(missed) - count :]
    if missed:
        session.events.extend(missed)
        session.state.update(stored.state)
