"""How the store tells the committer that a write is not to be as planned."""

from __future__ import annotations

from typing import Final

from .records import Marker

STALE: Final = (
    "The session was modified in storage after it was loaded: reload it with"
    " get_session() and append again. Nothing was stored."
)


class RefusedError(Exception):
    """Something about a batch of appends is not as expected; nothing was written."""


class OtherTtlError(Exception):
    """All but its time to live is as expected of a session; nothing was written."""

    def __init__(self, expected: Marker) -> None:
        super().__init__()
        self.expected = expected
