"""Reconciliation: comparing sessions to import with those that the target holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple

from mongo_session_service.codec import documents
from mongo_session_service.codec.bson_values import decode_value
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Append, Document
from mongo_session_service.sessions.deletion import is_session
from mongo_session_service.transfer.batches import Incoming, IncomingState


class Standing(Enum):
    """How a session in the target compares with the one to import."""

    NEW = "new"
    SAME = "unchanged"
    BEHIND = "behind"
    """The target has its first events."""
    AHEAD = "ahead"
    """The target has all of it, and events that were appended there."""
    CONFLICT = "conflict"


class Plan(NamedTuple):
    """The result of a comparison."""

    standing: Standing
    matched: int = 0
    """Events of this part that are stored correctly, counted from its first."""
    reason: str = ""
    found: int = 0
    """Events that are stored under the part's revisions, correct or not."""


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
            parts = ([_typed(key), _typed(item)] for key, item in value.items())
            return ["dict", *sorted(parts, key=json.dumps)]
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
    """How many events of a part are stored correctly, counted from its first."""
    for index, append in enumerate(incoming.appends):
        if index == len(stored):
            return index
        event = stored[index]["event"]
        is_next = stored[index]["_id"]["revision"] == incoming.offset + index + 1
        if not is_next or not _is_same_event(append, event, hooks):
            return index
    return len(incoming.appends)


def _is_same_event(append: Append, event: Document, hooks: Hooks) -> bool:
    """Whether a stored event equals one to import, in any order of fields."""
    if documents.is_same_event(append, event, hooks):
        return True
    one, other = (
        documents.loaded_fields(each, append.key, hooks)
        for each in (append.event, event)
    )
    return event_digest(one) == event_digest(other)


def plan(
    incoming: Incoming,
    session: Document | None,
    stored: Sequence[Document],
    hooks: Hooks,
) -> Plan:
    """Compare a session, or a part of one, with what the target holds.

    Args:
        incoming: The session, or a part of it.
        session: The target's document under its id: a session or a reservation.
        stored: The target's events from the part's first on, at most one more.
        hooks: The application's: content is compared as it is after loading.
    """
    matched = matching(incoming, stored, hooks)
    if session is None or not is_session(session):
        return Plan(Standing.NEW, matched, found=len(stored))
    revision, begins = session["revision"], documents.log_begins(session)
    if begins != incoming.log_begins:
        reason = f"its log begins after revision {begins}, not {incoming.log_begins}"
        return Plan(Standing.CONFLICT, matched, reason)
    if incoming.offset + matched < min(revision, incoming.revision):
        number = incoming.offset + matched + 1
        return Plan(Standing.CONFLICT, matched, f"its event {number} is different")
    if not incoming.is_last:
        return Plan(Standing.BEHIND, matched)
    if revision == begins and not _is_same_beginning(incoming, session, hooks):
        return Plan(Standing.CONFLICT, matched, "it was created separately")
    if revision > incoming.revision:
        return Plan(Standing.AHEAD, matched)
    if revision < incoming.revision:
        return Plan(Standing.BEHIND, matched)
    return _compared(incoming, session, matched, hooks)


def _is_same_beginning(incoming: Incoming, session: Document, hooks: Hooks) -> bool:
    """Whether two sessions, one of them without events, may be the same."""
    if incoming.create_time is not None:
        return bool(incoming.create_time == session["create_time"])
    owner = Owner.of_session(incoming.key)
    return _is_same_state(incoming.state, session["state"], owner, hooks)


def _compared(
    incoming: Incoming, session: Document, matched: int, hooks: Hooks
) -> Plan:
    """Compare two sessions with the same events; their state may still differ."""
    owner = Owner.of_session(incoming.key)
    if not _has_same_details(incoming, session, owner, hooks):
        reason = "its title, labels or time to live are different"
    elif not _is_same_state(incoming.state, session["state"], owner, hooks):
        reason = "its state is different"
    elif incoming.update_time != session["update_time"]:
        reason = "its update time is different"
    elif incoming.initial is None:
        return Plan(Standing.SAME, matched)
    elif documents.INITIAL not in session:
        return Plan(Standing.BEHIND, matched)
    elif _is_same_state(incoming.initial, session[documents.INITIAL], owner, hooks):
        return Plan(Standing.SAME, matched)
    else:
        return Plan(Standing.CONFLICT, matched, "its initial state is different")
    if incoming.update_time > session["update_time"]:
        return Plan(Standing.BEHIND, matched)
    return Plan(Standing.CONFLICT, matched, reason)


def _has_same_details(
    incoming: Incoming, session: Document, owner: Owner, hooks: Hooks
) -> bool:
    """Whether two sessions have the same details, as far as the source tells.

    A title may be in a session's state, as its display name.
    """
    here, there = incoming.details, Details.of(session)
    if here is None or here == there:
        return True
    states = (incoming.state, session["state"])
    shown, stored = (documents.decode_state(each, owner, hooks) for each in states)
    return here.named(shown) == there.named(stored)


def plan_state(
    wanted: IncomingState,
    stored: Document | None,
    imported: Document | None,
    hooks: Hooks,
) -> Standing:
    """Compare the state of an app or user with what the target holds.

    Args:
        wanted: The state to import.
        stored: The target's document.
        imported: The note of the last import, with the revision that it wrote.
        hooks: The application's.
    """
    if stored is None:
        return Standing.NEW
    if _is_same_state(wanted.state, stored["state"], wanted.shared.owner, hooks):
        return Standing.SAME
    if imported is not None and imported["revision"] == stored["revision"]:
        return Standing.BEHIND
    return Standing.CONFLICT


def _is_same_state(one: Document, other: Document, owner: Owner, hooks: Hooks) -> bool:
    here, there = (documents.decode_state(each, owner, hooks) for each in (one, other))
    return content_digest(here) == content_digest(there)
