"""What is to be done about a session, decided from what the target holds of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from mongo_session_service.codec import is_same_event
from mongo_session_service.values import decode_value

from .incoming import Document, Incoming, digest, event_digest


class Standing(Enum):
    """How a session in the target compares with the one coming in."""

    NEW = "new"
    SAME = "unchanged"
    BEHIND = "behind"
    """The target holds its beginning."""
    AHEAD = "ahead"
    """The target holds all of it, and what was appended there since."""
    CONFLICT = "conflict"


class Plan(NamedTuple):
    """What was found, and how far the events agree."""

    standing: Standing
    matched: int = 0
    """Events of this part that are stored as they should be, from its first on."""
    reason: str = ""
    found: int = 0
    """Events that are stored under the part's revisions, right or wrong."""

    @property
    def is_lacking(self) -> bool:
        """Whether there is something to write."""
        return self.standing not in {Standing.SAME, Standing.AHEAD}


def matching(incoming: Incoming, stored: Sequence[Document]) -> int:
    """How many events of a part are stored under their revisions, from its first."""
    for index, append in enumerate(incoming.appends):
        if index == len(stored):
            return index
        event = stored[index]["event"]
        is_next = stored[index]["_id"]["revision"] == incoming.offset + index + 1
        if not is_next or not (
            is_same_event(append, event)
            or event_digest(append.event) == event_digest(event)
        ):
            return index
    return len(incoming.appends)


def plan(
    incoming: Incoming, session: Document | None, stored: Sequence[Document]
) -> Plan:
    """What a whole session, or the last part of one, needs.

    Args:
        incoming: The session, or a part of it.
        session: What the target has under its id; without revision, it is a claim.
        stored: The target's events from the part's first on, at most one more than it.
    """
    matched = matching(incoming, stored)
    if session is None or "revision" not in session:
        return Plan(Standing.NEW, matched, found=len(stored))
    revision = session["revision"]
    if incoming.offset + matched < min(revision, incoming.revision):
        number = incoming.offset + matched + 1
        return Plan(Standing.CONFLICT, matched, f"its event {number} is another")
    if not incoming.is_last:
        return Plan(Standing.BEHIND, matched)
    if revision == 0 and not _is_same_beginning(incoming, session):
        return Plan(Standing.CONFLICT, matched, "it was created apart from this one")
    if revision > incoming.revision:
        return Plan(Standing.AHEAD, matched)
    if revision < incoming.revision:
        return Plan(Standing.BEHIND, matched)
    return _compared(incoming, session, matched)


def _is_same_beginning(incoming: Incoming, session: Document) -> bool:
    """Whether two sessions, one of them without events, can be the same."""
    if incoming.create_time is not None:
        return bool(incoming.create_time == session["create_time"])
    return _is_same_state(incoming.state, session["state"])


def _compared(incoming: Incoming, session: Document, matched: int) -> Plan:
    """Of the same events: a session's state can be set without one, at its creation."""
    if _is_same_state(incoming.state, session["state"]):
        if incoming.update_time == session["update_time"]:
            return Plan(Standing.SAME, matched)
        reason = "it was updated at another time"
    else:
        reason = "its state is another"
    if incoming.update_time > session["update_time"]:
        return Plan(Standing.BEHIND, matched)
    return Plan(Standing.CONFLICT, matched, reason)


def plan_state(
    wanted: Document, stored: Document | None, imported: Document | None
) -> Standing:
    """What state that sessions share needs.

    Args:
        wanted: The state coming in.
        stored: The target's document of it.
        imported: At which revision the last import left that.
    """
    if stored is None:
        return Standing.NEW
    if _is_same_state(wanted, stored["state"]):
        return Standing.SAME
    if imported is not None and imported["revision"] == stored["revision"]:
        return Standing.BEHIND
    return Standing.CONFLICT


def _is_same_state(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return digest(decode_value(dict(one))) == digest(decode_value(dict(other)))
