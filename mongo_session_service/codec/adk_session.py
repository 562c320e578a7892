"""ADK ``Session`` objects: built from records, with the version they were read at."""

from __future__ import annotations

from typing import Any, Final

from google.adk.sessions.session import Session

from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.model.records import Marker

_MARK: Final = "_storage_update_marker"
"""ADK's own slot for it."""

_set: Final = object.__setattr__
"""Past pydantic, which would take these for fields."""


def _has_known_session_layout() -> bool:
    """True if ADK's sessions have the fields that :func:`to_session` sets."""
    fields: dict[str, Any] = {
        "id": "",
        "app_name": "",
        "user_id": "",
        "state": {},
        "events": [],
        "last_update_time": 0.0,
    }
    made = Session(**fields).__getstate__()
    return Session.model_fields.keys() == fields.keys() and made == {
        "__dict__": fields,
        "__pydantic_fields_set__": set(fields),
        "__pydantic_extra__": None,
        "__pydantic_private__": {_MARK: None},
    }


_HAS_KNOWN_LAYOUT: Final = _has_known_session_layout()
_FIELDS: Final = set(Session.model_fields)


def to_session(stored: StoredSession) -> Session:
    record, state, events = stored
    (app_name, user_id, session_id), marker = record.key, record.marker
    fields = {
        "id": session_id,
        "app_name": app_name,
        "user_id": user_id,
        "state": state,
        "events": [*events],
        "last_update_time": record.updated,
    }
    if not _HAS_KNOWN_LAYOUT:
        session = Session.model_validate(fields)
        mark(session, marker)
        return session
    # As pickle does it, for nothing is left to validate: half the time of a list.
    session = Session.__new__(Session)
    _set(session, "__dict__", fields)
    _set(session, "__pydantic_fields_set__", _FIELDS.copy())
    _set(session, "__pydantic_extra__", None)
    _set(session, "__pydantic_private__", {_MARK: marker})
    return session


def marker_of(session: Session) -> Marker | None:
    """Return the marker that a session was read at; None if it was not read here."""
    # Ten times faster than by name, and asked twice for each append.
    found = (session.__pydantic_private__ or {}).get(_MARK)
    return found if isinstance(found, Marker) else None


def mark(session: Session, marker: Marker) -> None:
    # ADK's own services keep text in it, other services what they like.
    session._storage_update_marker = marker  # type: ignore[assignment]  # noqa: SLF001


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
