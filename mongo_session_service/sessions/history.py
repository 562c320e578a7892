"""What a session's state has been: its initial state, folded with the log so far.

What is folded are fields as they are stored, but for :func:`restored`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.adk.events.event import Event

from mongo_session_service.codec.bson_values import (
    UnreadableError,
    decode_value,
    encode_fields,
)
from mongo_session_service.codec.shapes import INITIAL
from mongo_session_service.errors import quoted
from mongo_session_service.model import scopes

from .queries import Document


def delta_of(event: Document) -> Document:
    """What a stored event has set of its session's own state.

    Raises:
        UnreadableError: another tool has written it.
    """
    try:
        actions = event.get("event", {}).get("actions", {})
        delta = decode_value(actions.get("state_delta", {}))
        return encode_fields(scopes.split(delta).session)
    except (AttributeError, UnreadableError):
        id_ = event["_id"]
        where = f"of session {quoted(id_['session_id'])} at revision {id_['revision']}"
        raise UnreadableError(f"The event {where}") from None


def fold(initial: Document, deltas: Iterable[Document]) -> Document:
    """The state that a log leaves."""
    state = {**initial}
    for delta in deltas:
        state |= delta
    return state


def recorded(session: Document, apart: Document | None) -> Document | None:
    """A session's initial state; None if the session is older than the record of it.

    Args:
        session: Its document.
        apart: What is stored before its log, perhaps for an earlier one of its id.
    """
    if INITIAL in session:
        fields: Document = session[INITIAL]
        return fields
    if apart is not None and apart["create_time"] == session["create_time"]:
        return apart[INITIAL]  # type: ignore[no-any-return]
    return None


def inferred(state: Document, log: Iterable[Iterable[str]]) -> Document:
    """What is known of an initial state that was not recorded: what nobody has set.

    Of the log, the names of what each event has set are enough.
    """
    changed = {name for delta in log for name in delta}
    return {name: value for name, value in state.items() if name not in changed}


def restored(
    delta: Mapping[str, Any],
    initial: Mapping[str, Any],
    log: Iterable[Event],
    invocation_id: str,
) -> dict[str, Any]:
    """A rewind's delta, with the initial state, of which ADK knows nothing.

    ADK folds the events before an invocation, and empties every key that comes not of
    them. A key that they have not set is as it was when the session was created.

    Args:
        delta: What ADK has made of it.
        initial: The session's initial state.
        log: All its events.
        invocation_id: What is undone, with all that came later.
    """
    before: set[str] = set()
    ever: set[str] = set()
    is_undone = False
    for event in log:
        is_undone = is_undone or event.invocation_id == invocation_id
        ever |= event.actions.state_delta.keys()
        if not is_undone:
            before |= event.actions.state_delta.keys()
    result = {**delta}
    for key, value in delta.items():
        if value is None and key in initial and key not in before:
            if key in ever:
                result[key] = initial[key]
            else:
                del result[key]
    return result
