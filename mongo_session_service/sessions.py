"""ADK's ``Session`` objects, and the mark of what they were read at."""

from __future__ import annotations

from typing import Any, Final

from google.adk.sessions.session import Session

from .records import Marker, StoredSession

_MARK: Final = "_storage_update_marker"
"""ADK's own slot for it."""

_PICKLED: Final[dict[str, Any]] = Session(
    id="", app_name="", user_id="", state={}, events=[], last_update_time=0
).__getstate__()


def _is_known() -> bool:
    """Whether ADK's sessions still are what :func:`to_session` makes."""
    known = {"id", "app_name", "user_id", "state", "events", "last_update_time"}
    return (
        Session.model_fields.keys() == known
        and _PICKLED["__dict__"].keys() == known
        and _PICKLED["__pydantic_private__"] == {_MARK: None}
    )


_IS_KNOWN: Final = _is_known()


def to_session(stored: StoredSession) -> Session:
    """A stored session as ADK's callers get it."""
    fields = {
        "id": stored.key.session_id,
        "app_name": stored.key.app_name,
        "user_id": stored.key.user_id,
        "state": stored.state,
        "events": [*stored.events],
        "last_update_time": stored.update_time,
    }
    if not _IS_KNOWN:
        session = Session.model_validate(fields)
        mark(session, stored.marker)
        return session
    # As pickle does it, for nothing is left to validate: half the time of a list.
    session = Session.__new__(Session)
    private = {_MARK: str(stored.marker)}
    fields_set = set(fields)
    session.__setstate__(
        {
            **_PICKLED,
            "__dict__": fields,
            "__pydantic_fields_set__": fields_set,
            "__pydantic_private__": private,
        }
    )
    return session


def marker_of(session: Session) -> Marker | None:
    """What a session was read at; None if it was not read here."""
    # Ten times faster than by name, and asked twice for each append.
    private = session.__pydantic_private__ or {}
    return Marker.parse(private.get(_MARK))


def mark(session: Session, marker: Marker) -> None:
    """Note in a session what it is at."""
    session._storage_update_marker = str(marker)  # noqa: SLF001  ADK's own slot
