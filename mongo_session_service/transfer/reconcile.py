"""Reconciliation: what to do about a session, given what the target holds of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple

from mongo_session_service.codec.bson_values import decode_value
from mongo_session_service.codec.documents import (
    INITIAL,
    decode_state,
    is_same_event,
    loaded_fields,
)
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Append, Document
from mongo_session_service.transfer.batches import (
    Incoming,
    IncomingState,
)


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


def content_digest(value: Mapping[str, Any]) -> bytes:
    """A hash of decoded fields: equal for the same content, in any order of keys.

    It distinguishes every value that BSON can hold, also those that this package does
    not store itself, such as dates.
    """
    try:
        text = json.dumps(value, sort_keys=True)
    except TypeError:  # bytes, or what another tool has stored
        text = "typed:" + json.dumps(_typed(value), sort_keys=True)
    return blake2b(text.encode(), digest_size=16).digest()


def _typed(value: Any) -> Any:
    """A value as JSON in which each part names its type."""
    match value:
        case dict():
            return {key: _typed(item) for key, item in value.items()}
        case list() | tuple():
            return [_typed(item) for item in value]
        case None | bool() | int() | float() | str():
            return f"json:{json.dumps(value)}"
        case _:
            return f"{type(value).__name__}:{value!r}"


def event_digest(event: Document) -> bytes:
    """A hash of the content of a stored event's fields."""
    return content_digest(decode_value(event))


def matching(incoming: Incoming, stored: Sequence[Document], hooks: Hooks) -> int:
    """How many events of a part are stored under their revisions, from its first."""
    for index, append in enumerate(incoming.appends):
        if index == len(stored):
            return index
        event = stored[index]["event"]
        is_next = stored[index]["_id"]["revision"] == incoming.offset + index + 1
        if not is_next or not _is_same_event(append, event, hooks):
            return index
    return len(incoming.appends)


def _is_same_event(append: Append, event: Document, hooks: Hooks) -> bool:
    """Whether a stored event is one coming in, whatever the order of their fields."""
    if is_same_event(append, event, hooks):
        return True
    one, other = (
        loaded_fields(each, append.key, hooks) for each in (append.event, event)
    )
    return event_digest(one) == event_digest(other)


def plan(
    incoming: Incoming,
    session: Document | None,
    stored: Sequence[Document],
    hooks: Hooks,
) -> Plan:
    """What a whole session, or the last part of one, needs.

    Args:
        incoming: The session, or a part of it.
        session: What the target has under its id; without revision, it is a claim.
        stored: The target's events from the part's first on, at most one more than it.
        hooks: The application's, by whose results alone nothing can be compared.
    """
    matched = matching(incoming, stored, hooks)
    if session is None or "revision" not in session:
        return Plan(Standing.NEW, matched, found=len(stored))
    revision = session["revision"]
    if incoming.offset + matched < min(revision, incoming.revision):
        number = incoming.offset + matched + 1
        return Plan(Standing.CONFLICT, matched, f"its event {number} is another")
    if not incoming.is_last:
        return Plan(Standing.BEHIND, matched)
    if revision == 0 and not _is_same_beginning(incoming, session, hooks):
        return Plan(Standing.CONFLICT, matched, "it was created apart from this one")
    if revision > incoming.revision:
        return Plan(Standing.AHEAD, matched)
    if revision < incoming.revision:
        return Plan(Standing.BEHIND, matched)
    return _compared(incoming, session, matched, hooks)


def _is_same_beginning(incoming: Incoming, session: Document, hooks: Hooks) -> bool:
    """Whether two sessions, one of them without events, can be the same."""
    if incoming.create_time is not None:
        return bool(incoming.create_time == session["create_time"])
    owner = Owner.of_session(incoming.key)
    return _is_same_state(incoming.state, session["state"], owner, hooks)


def _compared(
    incoming: Incoming, session: Document, matched: int, hooks: Hooks
) -> Plan:
    """Of the same events: a session's state can be set without one, at its creation."""
    owner = Owner.of_session(incoming.key)
    if incoming.details not in (None, Details.of(session)):
        reason = "its title, labels or time to live are others"
    elif _is_same_state(incoming.state, session["state"], owner, hooks):
        if incoming.update_time == session["update_time"]:
            return _compared_beginnings(incoming, session, matched, hooks)
        reason = "it was updated at another time"
    else:
        reason = "its state is another"
    if incoming.update_time > session["update_time"]:
        return Plan(Standing.BEHIND, matched)
    return Plan(Standing.CONFLICT, matched, reason)


def _compared_beginnings(
    incoming: Incoming, session: Document, matched: int, hooks: Hooks
) -> Plan:
    """Of sessions that end alike: what is not known in the target is brought there."""
    if incoming.initial is None:
        return Plan(Standing.SAME, matched)
    if INITIAL not in session:
        return Plan(Standing.BEHIND, matched)
    owner = Owner.of_session(incoming.key)
    if _is_same_state(incoming.initial, session[INITIAL], owner, hooks):
        return Plan(Standing.SAME, matched)
    return Plan(Standing.CONFLICT, matched, "its initial state is another")


def plan_state(
    wanted: IncomingState,
    stored: Document | None,
    imported: Document | None,
    hooks: Hooks,
) -> Standing:
    """What state that sessions share needs.

    Args:
        wanted: The state coming in.
        stored: The target's document of it.
        imported: At which revision the last import left that.
        hooks: The application's, as above.
    """
    if stored is None:
        return Standing.NEW
    if _is_same_state(wanted.state, stored["state"], wanted.shared.owner, hooks):
        return Standing.SAME
    if imported is not None and imported["revision"] == stored["revision"]:
        return Standing.BEHIND
    return Standing.CONFLICT


def _is_same_state(one: Document, other: Document, owner: Owner, hooks: Hooks) -> bool:
    here, there = (decode_state(each, owner, hooks) for each in (one, other))
    return content_digest(here) == content_digest(there)
