"""Document encoding: sessions, events and state deltas to and from MongoDB.

What cannot be stored, or what an application's hook fails on, is an
``InvalidInputError``; what is too large a ``DocumentTooLargeError``. What was stored
but cannot be read, by this release of ADK or by the hook, is a ``StorageError``.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from google.adk.events.event import Event
from google.adk.sessions.state import State

from mongo_session_service.codec import bson_values, document_size, events
from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.codec.waiting_calls import (
    WAITING,
    decode_waiting,
    waiting_step,
)
from mongo_session_service.errors import (
    InvalidInputError,
    SchemaVersionError,
    StorageError,
    quoted,
)
from mongo_session_service.model import metadata
from mongo_session_service.model.metadata import NO_DETAILS, NOT_GIVEN, Details
from mongo_session_service.model.records import (
    Append,
    Document,
    Marker,
    NewSession,
    ScopedState,
    SessionKey,
    StoredSession,
    TurnFence,
)
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import check_id

logger = logging.getLogger(__name__)

INITIAL: Final = "initial_state"
"""Where a session keeps the state it began with."""

LOG_BEGINS: Final = "log_begins"
"""Where a session that was trimmed keeps the revision after which its log begins.

Its initial state, as of then, is in the document before the log, under the same
revision. Events up to it may still be there; they count as removed.
"""

TRIMMING: Final = "trimming"
"""Where it keeps the revision after which such events may be there, if any may."""

REDACTIONS: Final = "redactions"
"""Where a session counts how often events of it were redacted."""

FORKED_FROM: Final = "forked_from"
"""Where a fork names the session it was made of, and what that one was made of.

Each has a ``session_id``, its ``create_time``, and the last ``revision`` of it that the
fork has as well. The nearest is first.
"""

COPIED_BY: Final = "copied_by"
"""Where an event and a session have ``fork`` or ``import``, if that has stored them."""

NEEDS: Final = "needs"
"""Where a session, and each of its events, lists what a release must know to touch it.

Whoever gives a session a need writes it into the events that are stored from then on,
since readers of a change stream see no session. Most have none, and no such field.
"""

LISTED: Final = (
    *("state", "title", "revision", "create_time", "update_time"),
    *("ttl", "expire_time", NEEDS),
)
"""Fields of a session's document that a list needs, and hardly more."""

HEAD: Final = ("revision", "create_time", "ttl", "expire_time", LOG_BEGINS, NEEDS)
"""The fields of a session that show which one it is, whether it has expired, where its
log begins, and what it needs."""

_BESIDE_STATE: Final = 4096
"""Bytes up to which that is in the session's own document, which is read with it."""


def session_document(session: NewSession) -> Document:
    document = {
        "_id": session.key.id,
        "state": session.delta.session,
        "revision": 0,
        "create_time": session.create_time,
        "update_time": session.create_time,
        **session.details.to_document(),
    }
    if session.log_begins:
        document[LOG_BEGINS] = session.log_begins
    if session.forked_from:
        document[FORKED_FROM] = [*session.forked_from]
    if not needs_initial_document(session):
        document[INITIAL] = session.delta.session
    return document


def needs_initial_document(session: NewSession) -> bool:
    """True if a session's initial state has to have a document of its own.

    That of a session that was trimmed is found there by readers of the log alone.
    """
    is_large = bool(session.delta.session) and session.size > _BESIDE_STATE
    return is_large or session.log_begins > 0


def log_begins(session: Mapping[str, Any]) -> int:
    """The revision after which a stored session's log begins; 0 if it is whole."""
    begins = session.get(LOG_BEGINS, 0)
    return begins if isinstance(begins, int) else 0


def event_document(
    append: Append,
    revision: int,
    *,
    encoded: bool = False,
    waiting: Document | None = None,
    copied_by: str | None = None,
) -> Document:
    """Build the document of an event; if ``encoded``, with BSON instead of fields.

    The driver copies BSON as it is, and need not encode the event a second time. Given
    are the fields of what waits from now on, if it changes that.
    """
    event = RawBSONDocument(append.encoded) if encoded else append.event
    document = {"_id": append.key.event_id(revision), "event": event, **append.flags}
    if waiting is not None:
        document[WAITING] = waiting[WAITING] or []
    if copied_by is not None:
        document[COPIED_BY] = copied_by
    return document


def partial_event_fields(key: SessionKey, event: Event, hooks: Hooks) -> Document:
    """Build the fields of a partial event in a document of a running turn."""
    document, _, _ = _encode_event(key, event, hooks)
    encoded = bson.encode(document)
    document_size.check_event_size(event.id, {}, len(encoded))
    return {"event": RawBSONDocument(encoded), **event_flags(encoded, hooks)}


def event_flags(encoded: bytes, hooks: Hooks) -> Document:
    """Build the fields that decide how the event beside them is decoded."""
    flags = {"wrapped": _WRAPPER_FIELD in encoded, "hooked": hooks.has_both}
    return {name: True for name, is_set in flags.items() if is_set}


_NUMBER: Final = (int, float)


def is_visible(session: dict[str, Any], now: float) -> bool:
    """True if a document of the sessions collection is a session to be shown.

    The server's filter is :func:`queries.visible_filter`. One that this release must
    not touch is refused.
    """
    check_needs(session)
    expires = session.get("expire_time", math.inf)
    is_over = isinstance(expires, _NUMBER) and expires <= now
    return "revision" in session and not is_over


class UnknownNeedError(UnreadableError, SchemaVersionError):
    """A session needs what this release does not know; lists leave it out."""

    def __init__(self, message: str) -> None:
        StorageError.__init__(self, message)


def check_needs(document: Document) -> None:
    """Refuse a session, or an event of one, that needs what this release lacks.

    The server's filter is :data:`queries.NEEDS_KNOWN`.
    """
    if NEEDS in document and (unknown := unknown_needs(document)):
        raise UnknownNeedError(
            f"Session {quoted(str(document['_id']['session_id']))} needs"
            f" {', '.join(map(quoted, unknown))}, which this release does not know."
            " Upgrade mongo-session-service."
        )


def unknown_needs(document: Document) -> list[str]:
    """List what a session needs and this release does not know, which knows none."""
    needs = document.get(NEEDS, [])
    named = needs if isinstance(needs, list) else [needs]
    return [str(each) for each in named]


def with_known_needs(sessions: Iterable[Document]) -> Iterator[Document]:
    """Leave out of a list, with a warning, what this release must not touch."""
    for each in sessions:
        try:
            check_needs(each)
        except UnknownNeedError as error:
            _leave_out(error, is_list=True)
        else:
            yield each


_KEY: Final = SessionKey._fields


def key_of(id_: Any, *more: str) -> SessionKey | None:
    """Read a session's key from an ``_id`` that has ``more`` fields behind it.

    None if it has others, as a document of another tool may.
    """
    if isinstance(id_, dict) and tuple(id_) == _KEY + more:
        app_name, user_id, session_id, *_ = id_.values()
        if type(app_name) is type(user_id) is type(session_id) is str:
            return SessionKey(app_name, user_id, session_id)
    return None


def _unreadable_session(id_: Document) -> UnreadableError:
    """Return the error that names a session as well as its ``_id`` allows."""
    name = id_.get("session_id")
    return UnreadableError(
        f"Session {quoted(name)}" if isinstance(name, str) else "A session"
    )


def checked_key(session: Document) -> SessionKey:
    """The key of a session's document; one that cannot be a session's is refused."""
    key = key_of(session["_id"])
    # Spelt out, since a list asks it of each session.
    try:
        is_session = (
            isinstance(session["state"], dict)
            and isinstance(session["revision"], int)
            and isinstance(session["create_time"], _NUMBER)
            and isinstance(session["update_time"], _NUMBER)
            and isinstance(session.get(LOG_BEGINS, 0), int)
        )
    except KeyError:
        is_session = False
    if key is None or not is_session:
        raise _unreadable_session(session["_id"])
    return key


_WHERE: Final = "The event of session {session_id!r} at revision {revision}"
_WRAPPER_FIELD: Final = bson_values.WRAPPER.encode() + b"\0"


def decode_session_state(
    session: dict[str, Any], key: SessionKey, hooks: Hooks, *, is_plain: bool = False
) -> dict[str, Any]:
    """A session's own state as it is shown: its title is the display name in it.

    With hooks that is left out, since titles are stored in clear. What is known to be
    plain is stored as it is shown, and is not copied.
    """
    state = session["state"]
    if not (is_plain or bson_values.is_decoded(state)):
        state = _readable(state, key)
    if hooks.is_missing:
        return (
            metadata.with_title(state, session["title"])
            if "title" in session
            else state
        )
    return hooks.loaded_state(state, Owner.of_session(key))


def decode_state(fields: Any, owner: Owner, hooks: Hooks) -> dict[str, Any]:
    return hooks.loaded_state(_readable(fields, owner), owner)


def _readable(fields: Any, of: Owner | SessionKey) -> dict[str, Any]:
    try:
        return bson_values.decode_fields(fields)
    except (AttributeError, UnreadableError):
        # A list makes no owner of each session.
        owner = Owner.of_session(of) if isinstance(of, SessionKey) else of
        raise UnreadableError(f"The state of {owner}") from None


def encode_new_session(
    key: SessionKey,
    state: object,
    create_time: float,
    hooks: Hooks,
    details: Details = NO_DETAILS,
) -> NewSession:
    flat = _json_state(state)
    if hooks.is_missing:
        details = details.with_display_name(flat)
    else:
        flat = hooks.state_to_store(flat, Owner.of_session(key))
    delta = _split_scopes(bson_values.encode_values(flat))
    size = sum(
        map(document_size.check_initial_state, (delta.app, delta.user, delta.session))
    )
    return NewSession(key, create_time, delta, size, details)


def encode_state(
    state: Mapping[str, Any], owner: Owner, hooks: Hooks
) -> tuple[dict[str, Any], int]:
    """Encode the state of one app, user or session for storage; return its size, too.

    Its keys have no prefix; those of a session that have one are left out.
    """
    shown = {
        owner.prefix + key if isinstance(key, str) else key: value
        for key, value in state.items()
    }
    stored = hooks.state_to_store(_json_state(shown), owner._replace(prefix=""))
    parts = _split_scopes(bson_values.encode_values(stored))
    by_prefix = {State.APP_PREFIX: parts.app, State.USER_PREFIX: parts.user}
    fields = by_prefix.get(owner.prefix, parts.session)
    return fields, document_size.check_initial_state(fields)


def encode_event_fields(event: Event) -> dict[str, Any]:
    """Encode an event's fields as they are stored without hooks."""
    nobody = SessionKey("", "", "")  # only a hook receives whose event it is
    document, delta, _ = _encode_event(nobody, event, NO_HOOKS)
    document_size.check_event_size(event.id, delta, len(bson.encode(document)))
    return document


def encode_append(
    key: SessionKey, event: Event, hooks: Hooks, fence: TurnFence | None = None
) -> Append:
    """Encode an event and its effect on state for storage, without ``temp:``."""
    document, delta, values = _encode_event(key, event, hooks)
    encoded = bson.encode(document)
    document_size.check_event_size(event.id, delta, len(encoded))
    return Append(
        key,
        document["timestamp"],
        document,
        event_flags(encoded, hooks),
        _split_scopes(values),
        encoded,
        len(encoded),
        fence,
        metadata.display_name(delta)
        if metadata.ADK_METADATA in delta and hooks.is_missing
        else NOT_GIVEN,
        waiting_step(event),
    )


def _encode_event(
    key: SessionKey, event: Event, hooks: Hooks
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Encode an event's fields as the application's hook changes them.

    Returns them, the delta in them, and the values of that as BSON has them.
    """
    check_id("The event's id", event.id)
    try:
        document, is_doubtful = events.dump_event(event)
    except InvalidInputError as error:
        raise InvalidInputError(f"The event cannot be stored: {error}.") from None
    delta = _json_state(event.actions.state_delta)
    if hooks.before_store is not None:
        delta = hooks.state_to_store(delta, Owner.of_session(key))
    document["actions"]["state_delta"] = bool(delta)  # its place among the fields
    events.drop_defaults(document)
    try:
        document = bson_values.encode_value(document)
        values = bson_values.encode_values(delta)  # once, for the event and for state
        if delta:
            document["actions"]["state_delta"] = bson_values.encode_dict(delta, values)
        if is_doubtful:
            events.check_readable(bson_values.decode_value(document))
    except InvalidInputError as error:
        message = f"Event {quoted(event.id)} cannot be stored: {error}."
        raise InvalidInputError(message) from None
    if hooks.before_store is not None:
        fields = bson_values.decode_value(document)
        content = hooks.event_to_store(fields, Owner.of_session(key))
        document = bson_values.encode_value(content)
    return document, delta, values


def decode_event(stored: Document, hooks: Hooks) -> Event:
    return build_events(event_fields([stored], hooks), [stored])[0]


def decode_events(stored: Sequence[Document], hooks: Hooks) -> list[Event]:
    return build_events(event_fields(stored, hooks), stored)


def event_fields(stored: Iterable[Document], hooks: Hooks) -> list[dict[str, Any]]:
    """Decode events' fields to those that were given before storage."""
    found: list[dict[str, Any]] = []
    for each in stored:
        check_needs(each)
        id_ = each["_id"]
        if "hooked" in each and hooks.after_load is None:
            raise StorageError(
                f"{_WHERE.format(**id_)} was changed by before_store: give the service"
                " after_load."
            )
        try:
            fields = each["event"]
            if "wrapped" in each:
                fields = bson_values.decode_value(fields)
            if hooks.after_load is not None:
                owner = Owner(id_["app_name"], id_["user_id"])
                fields = hooks.loaded_event(fields, owner)
        except Exception as error:
            if type(error) is StorageError:  # the hook's
                raise
            raise _unreadable(id_) from None
        found.append(fields)
    return found


def build_events(
    fields: Iterable[dict[str, Any]], stored: Sequence[Document]
) -> list[Event]:
    """Build events of their fields; an error names the first that cannot be built."""
    built: list[Event] = []
    try:
        # In a loop, which has those that are built before it fails.
        for each in fields:
            built.append(events.build_event(each))  # noqa: PERF401
    except Exception:  # noqa: BLE001  ADK's enumerations stumble over other types
        raise _unreadable(stored[len(built)]["_id"]) from None
    return built


def _unreadable(id_: Document) -> StorageError:
    where = _WHERE.format(**id_)
    return StorageError(f"{where} is not one that this release of ADK can read.")


def without_trimmed(log: list[Document], session: Document) -> list[Document]:
    """Leave out the events that a trim of a session is about to remove."""
    if not (begins := log_begins(session)):
        return log
    return [each for each in log if each["_id"]["revision"] > begins]


def decode_sessions(
    sessions: Iterable[Document],
    shared: Iterable[Document],
    now: float,
    hooks: Hooks,
    *,
    is_list: bool = False,
    is_plain: bool = False,
) -> Iterator[StoredSession]:
    """Decode sessions, each with what it shares of the states of an app and its users.

    The longest untouched comes first, ties by user and then session id. A list holds
    only visible sessions, and leaves out one that cannot be read.
    """
    app, users = _shared_copiers(shared, hooks)
    shown: list[tuple[float, SessionKey, Document]] = []
    for document in sessions:
        if is_list or is_visible(document, now):
            try:
                key = checked_key(document)
                check_needs(document)
            except UnreadableError as error:
                _leave_out(error, is_list=is_list)
            else:
                shown.append((document["update_time"], key, document))
    shown.sort(key=itemgetter(0, 1))
    shown.reverse()
    has_no_shared_state = app is dict and not users
    is_as_shown = is_plain and hooks.is_missing
    while shown:
        update_time, key, document = shown.pop()
        if is_as_shown and "title" not in document:  # as most are in a long list
            state = document["state"]
        else:
            try:
                state = decode_session_state(document, key, hooks, is_plain=is_plain)
            except UnreadableError as error:
                _leave_out(error, is_list=is_list)
                continue
        if not has_no_shared_state and (
            common := app() | users.get(key.user_id, dict)()
        ):
            state = state | common
        marker = Marker.of(document)
        yield StoredSession(
            key,
            marker,
            update_time,
            state,
            [],
            document.get(LOG_BEGINS, 0),
            document.get(REDACTIONS, 0),
        )


def _leave_out(error: UnreadableError, *, is_list: bool) -> None:
    if not is_list:
        raise error
    logger.warning("A session is missing from a list. %s", error)


_Copier = Callable[[], dict[str, Any]]


def _shared_copiers(
    shared: Iterable[Document], hooks: Hooks
) -> tuple[_Copier, dict[str, _Copier]]:
    """Return what copies the state of an app, and that of each of its users."""
    app: _Copier = dict
    users: dict[str, _Copier] = {}
    for document in shared:
        id_ = document["_id"]
        if isinstance(id_, str):
            app = _copier(document.get("state"), Owner.of_shared(id_), hooks)
        else:
            owner = Owner.of_shared(id_["app_name"], id_["user_id"])
            users[id_["user_id"]] = _copier(document.get("state"), owner, hooks)
    return app, users


def _copier(fields: Any, owner: Owner, hooks: Hooks) -> _Copier:
    """Return a function that makes copies of shared state, one for each session.

    Its keys are as ADK shows them. It is decoded again each time, unless that would
    call the application's hook, or no value of it is mutable.
    """
    if hooks.after_load is not None:
        return partial(
            copy.deepcopy, _with_scope_prefix(decode_state(fields, owner, hooks), owner)
        )
    if isinstance(fields, dict) and bson_values.is_decoded(fields):
        shown = _with_scope_prefix(fields, owner)
        return lambda: shown
    return lambda: _with_scope_prefix(_readable(fields, owner), owner)


def _with_scope_prefix(state: dict[str, Any], owner: Owner) -> dict[str, Any]:
    return {owner.prefix + key: value for key, value in state.items()}


def decode_shared_state(
    key: SessionKey, documents: Iterable[dict[str, Any]], hooks: Hooks
) -> ScopedState:
    """Decode the state of a session's app and user, if it is among the documents."""
    shared = ScopedState()
    user = {"app_name": key.app_name, "user_id": key.user_id}
    for document in documents:
        if document["_id"] in (key.app_name, user):
            is_app = document["_id"] == key.app_name
            owner = Owner.of_shared(key.app_name, None if is_app else key.user_id)
            fields = decode_state(document.get("state"), owner, hooks)
            (shared.app if is_app else shared.user).update(fields)
    return shared


def decode_new_session(
    new: NewSession, documents: Iterable[dict[str, Any]], hooks: Hooks
) -> StoredSession:
    """Build a session just stored: its initial state over what it shares.

    What is shared is in those of the documents that are its app's or its user's.
    """
    shared = decode_shared_state(new.key, documents, hooks)
    own = new.delta.mapped(bson_values.decode_fields)
    owner = Owner.of_session(new.key)
    state = shared.merged() | hooks.loaded_state(own.merged(), owner)
    if hooks.is_missing:
        state = metadata.with_title(state, new.details.title)
    return StoredSession(
        new.key, new.expected.after_append(), new.create_time, state, []
    )


def is_same_event(append: Append, document: dict[str, Any], hooks: Hooks) -> bool:
    """True if a stored sub-document is the very event of an append."""
    one, other = (
        event if hooks.after_load is None else loaded_fields(event, append.key, hooks)
        for event in (append.event, document)
    )
    return bool(bson.encode(one) == bson.encode(other))


def loaded_fields(event: dict[str, Any], key: SessionKey, hooks: Hooks) -> Any:
    fields = hooks.loaded_event(bson_values.decode_value(event), Owner.of_session(key))
    return bson_values.encode_value(fields)


def _json_state(state: object) -> dict[str, Any]:
    """Check a flat state; return the JSON forms of its values, without ``temp:``."""
    if not isinstance(state, dict):
        message = f"state must be a dict, not {type(state).__name__}."
        raise InvalidInputError(message)
    forms = {}
    for key, value in state.items():
        if not isinstance(key, str):
            message = f"State keys must be strings, not {type(key).__name__}."
            raise InvalidInputError(message)
        if len(key) > bson_values.MAX_KEY_LENGTH:
            message = (
                f"State key {quoted(key)} has {len(key)} characters; it may have"
                f" {bson_values.MAX_KEY_LENGTH}."
            )
            raise InvalidInputError(message)
        if key.startswith(State.TEMP_PREFIX):
            continue
        if type(value) in bson_values.SCALARS:  # which JSON has as they are
            forms[key] = value
            continue
        try:
            forms[key] = bson_values.json_form(value, f"State key {quoted(key)}")
        except InvalidInputError as error:
            message = f"The value of state key {quoted(key)} cannot be stored: {error}."
            raise InvalidInputError(message) from None
    return forms


def _split_scopes(values: dict[str, Any]) -> ScopedState:
    return ScopedState.split(values).mapped(bson_values.escape_keys)


def summaries(
    documents: Iterable[Document],
    hooks: Hooks,
    states: Mapping[SessionKey, dict[str, Any]] | None = None,
    families: Mapping[str, int] | None = None,
) -> list[SessionSummary]:
    """Build the summaries of stored sessions, with these states if there are some.

    Given are the sizes of their families as well. Those that cannot be read are left
    out.
    """
    made = []
    for each in documents:
        state = states[SessionKey(**each["_id"])] if states else None
        try:
            made.append(summary(each, hooks, state, families))
        except UnreadableError as error:
            _leave_out(error, is_list=True)
    return made


def summary(
    document: Document,
    hooks: Hooks,
    state: dict[str, Any] | None = None,
    families: Mapping[str, int] | None = None,
) -> SessionSummary:
    """Build the summary of a stored session, with its state if that is known."""
    id_ = document["_id"]
    if (key := key_of(id_)) is None:
        raise _unreadable_session(id_)
    check_needs(document)
    try:
        details, waiting = (
            Details.from_document(document),
            decode_waiting(document, hooks),
        )
        return SessionSummary(
            id=key.session_id,
            app_name=key.app_name,
            user_id=key.user_id,
            state=state,
            revision=document["revision"],
            log_begins=log_begins(document),
            create_time=document["create_time"],
            last_update_time=document["update_time"],
            **details.as_results(),
            waiting=waiting.named,
            waiting_more=waiting.more,
            branches=(families or {}).get(details.branch.get("family", ""), 1),
        )
    except (AttributeError, LookupError, TypeError, ValueError):
        # The original may quote what is stored.
        raise _unreadable_session(id_) from None
