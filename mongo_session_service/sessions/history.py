"""Session history: earlier states, folded from the initial state and the event log.

Fields are folded in their stored form, except in :func:`restored`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.documents import INITIAL, LOG_BEGINS
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.errors import (
    InvalidInputError,
    TrimmedError,
    quoted,
    session_not_found_error,
    stale_session_error,
)
from mongo_session_service.model.metadata import ADK_METADATA
from mongo_session_service.model.records import (
    Document,
    ScopedState,
    SessionKey,
    StoredSession,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import LogRange, read_log
from mongo_session_service.storage.cooperative import in_slices
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query


def delta_of(event: Document) -> Document:
    """Return a stored event's delta to its session's own state, as it is stored."""
    try:
        actions = event.get("event", {}).get("actions", {})
        delta = bson_values.decode_value(actions.get("state_delta", {}))
        return bson_values.encode_fields(ScopedState.split(delta).session)
    except (AttributeError, bson_values.UnreadableError):
        id_ = event["_id"]
        where = f"of session {quoted(id_['session_id'])} at revision {id_['revision']}"
        raise bson_values.UnreadableError(f"The event {where}") from None


def apply_deltas(initial: Document, deltas: Iterable[Document]) -> Document:
    """Return a state after the deltas of a log."""
    state = {**initial}
    for delta in deltas:
        state |= delta
    return state


def recorded_initial_state(session: Document, apart: Document | None) -> Document:
    """Pick the fields of a session's initial state from where they are stored.

    The document ``apart``, before its log, may be of an earlier session of its id.
    """
    found = session if INITIAL in session else apart
    is_its = found is not None and all(
        found.get(name) == session.get(name) for name in ("create_time", LOG_BEGINS)
    )
    # Without transactions, a crash or a trim may have come between the two documents.
    fields: Document = found[INITIAL] if found and is_its else {}
    return fields


def infer_initial_state(state: Document, log: Iterable[Iterable[str]]) -> Document:
    """Infer what is known of an unrecorded initial state: keys never set since.

    Of the log, only the names of the keys that each event has set are needed.
    """
    changed = {name for delta in log for name in delta}
    return {name: value for name, value in state.items() if name not in changed}


def restore_initial_state(
    delta: Mapping[str, Any],
    initial: Mapping[str, Any],
    log: Iterable[Event],
    invocation_id: str,
) -> dict[str, Any]:
    """Add the initial state, which ADK does not know, to the delta of a rewind.

    ADK folds the events before an invocation, and empties every other key. A key that
    these events have not set gets its initial value back. A title that was set without
    an event, which ADK takes for state, stays.
    """
    deltas = [(event.invocation_id, event.actions.state_delta) for event in log]
    kept = [it for _, it in takewhile(lambda each: each[0] != invocation_id, deltas)]
    before = {key for delta in kept for key in delta}
    ever = {key for _, delta in deltas for key in delta}
    emptied = {key for key, value in delta.items() if value is None}
    untouched = emptied & initial.keys() - before
    result = {
        key: initial[key] if key in untouched else value
        for key, value in delta.items()
        if key not in untouched - ever
    }
    earlier, latest = (
        apply_deltas({**initial}, each).get(ADK_METADATA)
        for each in (kept, (delta for _, delta in deltas))
    )
    if earlier == latest:
        result.pop(ADK_METADATA, None)
    else:
        result[ADK_METADATA] = earlier
    return result


_DELTAS_TOGETHER: Final = 2000
"""Events whose deltas are read at once."""

_DELTA: Final = ("event.actions.state_delta",)


class SessionAtRevision(NamedTuple):
    """A session as it was at a revision, and its initial state."""

    session: StoredSession
    initial: dict[str, Any]


async def load_with_initial_state(storage: Storage, key: SessionKey) -> Document:
    """Load a session's document, with its initial state wherever that is stored.

    A session that is not stored is an error.
    """
    sessions, apart = await storage.read(*_queries(key))
    session = _with_initial_state(sessions, apart, storage)
    if session is None:
        raise session_not_found_error(key.session_id)
    return session


def _queries(key: SessionKey) -> tuple[Query, Query]:
    before_log = Query("events", {"_id": key.event_id(0)})
    return Query("sessions", {"_id": key.id}), before_log


def _with_initial_state(
    sessions: list[Document], apart: list[Document], storage: Storage
) -> Document | None:
    if not sessions or not documents.is_visible(sessions[0], storage.clock.now()):
        return None
    (session,) = sessions
    initial = recorded_initial_state(session, apart[0] if apart else None)
    return {**session, INITIAL: initial}


async def load_session_at(
    storage: Storage, key: SessionKey, revision: int | None
) -> SessionAtRevision | None:
    """Load a session as it was at a revision; None if it is not stored."""
    until = 2**63 - 1 if revision is None else revision
    sessions, apart, *shared, stored = await storage.read(
        *_queries(key),
        *queries.shared_state_queries(key.app_name, key.user_id),
        Query("events", queries.events_until(key, until), order=-1),
    )
    head = _with_initial_state(sessions, apart, storage)
    if head is None:
        return None
    revision = check_revision(head, revision)
    # Without transactions there may be more events by now.
    kept = range(documents.log_begins(head) + 1, revision + 1)
    events = [each for each in stored if each["_id"]["revision"] in kept]
    changes = await in_slices(map(delta_of, reversed(events)))
    initial = head[INITIAL]
    updated = events[0]["event"].get("timestamp") if events else head["create_time"]
    # Without the title, which is today's and in no log.
    past = {
        "title": None,
        "state": apply_deltas(initial, changes),
        "revision": revision,
        "update_time": head["update_time"] if revision == head["revision"] else updated,
    }
    now, hooks = storage.clock.now(), storage.hooks
    log = await in_slices(documents.decode_event(each, hooks) for each in events[::-1])
    heads = [{**head, **past}, *chain.from_iterable(shared)]
    session = next(documents.decode_sessions(heads, now, hooks), None)
    if session is None:
        return None  # it has just expired
    known = documents.decode_state(initial, Owner.of_session(key), hooks)
    return SessionAtRevision(session._replace(events=log), known)


async def state_at(
    storage: Storage,
    key: SessionKey,
    session: Document,
    revision: int,
) -> Document:
    """Compute the fields of a session's state after a revision.

    Its document has its initial state.
    """
    state: Document = {**session[INITIAL]}
    wanted = LogRange(
        documents.log_begins(session), revision + 1, page_events=_DELTAS_TOGETHER
    )
    pages = read_log(
        storage, key, wanted, created=session["create_time"], fields=_DELTA
    )
    async for page in pages:
        state = apply_deltas(state, map(delta_of, page))
    return state


def check_revision(session: Document, revision: int | None) -> int:
    """Check a revision of a stored session; return its latest, if none is given.

    One that it has not reached, or that was trimmed, is refused.
    """
    head: int = session["revision"]
    begins = documents.log_begins(session)
    if revision is not None and revision < begins:
        raise TrimmedError(begins)
    if revision is not None and revision > head:
        message = f"The session is at revision {head}, and was never at {revision}."
        raise InvalidInputError(message)
    return head if revision is None else revision


async def complete_rewind(storage: Storage, key: SessionKey, event: Event) -> Event:
    """Complete a rewind for storage: it brings the initial state back as well.

    If the invocation was trimmed since the session was loaded, ADK would pass over the
    rewind: the session is stale.
    """
    invocation_id = event.actions.rewind_before_invocation_id
    found = await load_session_at(storage, key, None)
    if not invocation_id or found is None:
        return event
    log = found.session.events
    if found.session.log_begins and all(
        each.invocation_id != invocation_id for each in log
    ):
        raise stale_session_error(key.session_id)
    delta = restore_initial_state(
        event.actions.state_delta, found.initial, log, invocation_id
    )
    actions = event.actions.model_copy(update={"state_delta": delta})
    return event.model_copy(update={"actions": actions})
