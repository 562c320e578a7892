"""What is said, wherever it turns out, of a session that is not as expected."""

from __future__ import annotations

from typing import Final

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from mongo_session_service.errors import quoted
from mongo_session_service.model.records import Marker

STALE: Final = (
    "The session was modified in storage after it was loaded: reload it with"
    " get_session() and append again. Nothing was stored."
)


def not_found(session_id: str) -> SessionNotFoundError:
    """The error to raise for a session that is not stored, or not any more."""
    return SessionNotFoundError(f"Session {quoted(session_id)} not found.")


def already_exists(session_id: str) -> AlreadyExistsError:
    """The error to raise for a session that is to be made and is stored already."""
    return AlreadyExistsError(f"Session {quoted(session_id)} already exists.")


class RefusedError(Exception):
    """Something about a batch of appends is not as expected; nothing was written."""


class OtherTtlError(Exception):
    """All but its time to live is as expected of a session; nothing was written."""

    def __init__(self, expected: Marker) -> None:
        super().__init__()
        self.expected = expected
