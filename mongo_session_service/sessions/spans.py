"""Parts of the log of events, as ranges of ``_id``: of a session, and of a user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from mongo_session_service.model.records import SessionKey

Document = dict[str, Any]

PAGE: Final = 256
"""Events read at once, if they fit into a reply of 16 MB."""


@dataclass(frozen=True, slots=True)
class Span:
    """The events of a session between two revisions, both left out."""

    after: int
    before: int | None
    newest_first: bool
    left: int | None
    """How many of them are wanted; None for all."""

    @property
    def size(self) -> int:
        """How many to read at once."""
        return PAGE if self.left is None else min(PAGE, self.left)

    def filter(self, key: SessionKey) -> Document:
        """What finds them."""
        end: Any = {} if self.before is None else self.before
        upper = {**key.id, "revision": end}
        return {"_id": {"$gt": key.event_id(self.after), "$lt": upper}}

    @property
    def order(self) -> int:
        """The direction of ``_id`` that they are read in."""
        return -1 if self.newest_first else 1

    def rest(self, count: int, last: int) -> Span:
        """What is left of it after so many events, the last of this revision."""
        left = None if self.left is None else self.left - count
        if self.newest_first:
            return replace(self, before=last, left=left)
        return replace(self, after=last, left=left)


def events_of_user(app_name: str, user_id: str, after: Document | None) -> Document:
    """What finds the events of a user's sessions, after one in the order of ``_id``."""
    user = {"app_name": app_name, "user_id": user_id}
    return {"_id": {"$gt": after or user, "$lt": {**user, "session_id": {}}}}
