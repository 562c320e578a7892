"""Document encoding: sessions, events and state deltas to and from MongoDB.

What cannot be stored, or what an application's hook fails on, is an
``InvalidInputError``; what is too large a ``DocumentTooLargeError``. What was stored
but cannot be read, by this release of ADK or by the hook, is a ``StorageError``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

import bson
from bson.raw_bson import RawBSONDocument
from google.adk.events.event import Event
from google.adk.sessions.state import State

from mongo_session_service.codec import bson_values, document_size, events
from mongo_session_service.codec.bson_values import decode_bson, decode_value
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.codec.record import (
    COPIED_BY,
    FORKED_FROM,
    INITIAL,
    LOG_BEGINS,
    NEEDS,
    SessionRecord,
    check_needs,
    decode_fields_of,
    readable,
)
from mongo_session_service.codec.waiting_calls import WAITING, waiting_step
from mongo_session_service.errors import (
    InvalidInputError,
    StorageError,
    quoted,
)
from mongo_session_service.model import metadata
from mongo_session_service.model.metadata import NO_DETAILS, NOT_GIVEN, StoredDetails
from mongo_session_service.model.records import (
    Append,
    Document,
    Marker,
    NewSession,
    ScopedState,
    SessionKey,
    TurnFence,
)
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import check_id, wrong_type


class StoredSession(NamedTuple):
    """A session as one snapshot of storage shows it."""

    record: SessionRecord
    state: dict[str, Any]
    """Flat, with that of its app and user."""
    events: list[Event]

    @property
    def key(self) -> SessionKey:
        return self.record.key

    @property
    def marker(self) -> Marker:
        return self.record.marker


_scopes: Final = partial(ScopedState.split, name_of=bson_values.escape_key)
"""Splits state into the fields of the documents of its scopes."""

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
    event = RawBSONDocument(append.encoded) if encoded else decode_bson(append.encoded)
    document = {"_id": append.key.event_id(revision), "event": event, **append.flags}
    if waiting is not None:
        document[WAITING] = waiting[WAITING] or []
    if copied_by is not None:
        document[COPIED_BY] = copied_by
    return document


def partial_event_fields(key: SessionKey, event: Event, hooks: Hooks) -> Document:
    """Build the fields of a partial event in a document of a running turn."""
    encoded, delta, _ = _encode_event(key, event, hooks)
    document_size.check_event_size(event.id, delta, len(encoded))
    return {"event": RawBSONDocument(encoded), **event_flags(encoded, hooks)}


def event_flags(encoded: bytes, hooks: Hooks) -> Document:
    """Build the fields that decide how the event beside them is decoded."""
    flags = {"wrapped": True} if _WRAPPER_FIELD in encoded else {}
    return {**flags, "hooked": True} if hooks.has_both else flags


_WRAPPER_FIELD: Final = bson_values.WRAPPER.encode() + b"\0"


def decode_state(fields: Any, owner: Owner, hooks: Hooks) -> dict[str, Any]:
    return hooks.loaded_state(decode_fields_of(owner, fields), owner)


def encode_new_session(
    key: SessionKey,
    state: object,
    create_time: float,
    hooks: Hooks,
    details: StoredDetails = NO_DETAILS,
) -> NewSession:
    flat = json_state(state)
    if hooks.is_missing:
        details = details.with_display_name(flat)
    else:
        flat = hooks.state_to_store(flat, Owner.of_session(key))
    delta = _scopes(bson_values.encode_values(flat))
    parts = delta.app, delta.user, delta.session
    size = sum(map(document_size.check_initial_state, parts))
    return NewSession(key, create_time, delta, size, details)


def encode_state(
    state: Mapping[str, Any], owner: Owner, hooks: Hooks
) -> tuple[dict[str, Any], int]:
    """Encode the state of one app, user or session for storage; return its size, too.

    Its keys have no prefix; those of a session that have one are left out. It may have
    grown to any size that MongoDB takes.
    """
    shown = {
        owner.prefix + key if isinstance(key, str) else key: value
        for key, value in state.items()
    }
    stored = hooks.state_to_store(json_state(shown), owner._replace(prefix=""))
    parts = _scopes(bson_values.encode_values(stored))
    by_prefix = {State.APP_PREFIX: parts.app, State.USER_PREFIX: parts.user}
    fields = by_prefix.get(owner.prefix, parts.session)
    return fields, len(bson.encode(fields))


def encode_event_fields(event: Event) -> dict[str, Any]:
    """Encode an event's fields as they are stored without hooks."""
    nobody = SessionKey("", "", "")  # only a hook receives whose event it is
    return decode_bson(encode_append(nobody, event, NO_HOOKS).encoded)


def encode_append(
    key: SessionKey, event: Event, hooks: Hooks, fence: TurnFence | None = None
) -> Append:
    """Encode an event and its effect on state for storage, without ``temp:``."""
    encoded, delta, values = _encode_event(key, event, hooks)
    document_size.check_event_size(event.id, delta, len(encoded))
    return Append(
        key,
        event.id,
        float(event.timestamp),
        event_flags(encoded, hooks),
        _scopes(values),
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
) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """Encode an event as the application's hook changes it.

    Returns it, the delta in it, and the values of that as BSON has them.
    """
    check_id("The event's id", event.id)
    try:
        document, is_doubtful = events.dump_event(event)
    except InvalidInputError as error:
        raise InvalidInputError(f"The event cannot be stored: {error}.") from None
    delta = json_state(event.actions.state_delta)
    if hooks.before_store is not None:
        delta = hooks.state_to_store(delta, Owner.of_session(key))
    document["actions"]["state_delta"] = delta
    events.drop_defaults(document)
    values, encoded = delta, bson_values.encode_native(document)
    try:
        if encoded is None:
            encoded = bson.encode(bson_values.encode_value(document))
            values = bson_values.encode_values(delta)
        if is_doubtful:
            events.check_readable(decode_value(decode_bson(encoded)))
    except InvalidInputError as error:
        message = f"Event {quoted(event.id)} cannot be stored: {error}."
        raise InvalidInputError(message) from None
    if hooks.before_store is not None:
        fields = decode_value(decode_bson(encoded))
        content = hooks.event_to_store(fields, Owner.of_session(key))
        encoded = bson.encode(bson_values.encode_value(content))
    return encoded, delta, values


def decode_event(record: EventRecord, hooks: Hooks) -> Event:
    return decode_events([record.document], hooks)[0]


def decode_events(stored: Sequence[Document], hooks: Hooks) -> list[Event]:
    """Decode events of a list, which may be long: of their documents themselves."""
    return build_events(event_fields(stored, hooks), stored)


def event_fields(stored: Iterable[Document], hooks: Hooks) -> list[dict[str, Any]]:
    """Decode events' fields to those that were given before storage."""
    found: list[dict[str, Any]] = []
    for each in stored:
        if NEEDS in each:
            check_needs(each)
        id_ = each["_id"]
        if "hooked" in each and hooks.after_load is None:
            raise StorageError(
                f"{_place(id_)} was changed by before_store: give the service"
                " after_load."
            )
        try:
            fields = each["event"]
            if "wrapped" in each:
                fields = decode_value(fields)
            if hooks.after_load is not None:
                owner = Owner(id_["app_name"], id_["user_id"])
                fields = hooks.loaded_event(fields, owner)
        except Exception as error:
            if type(error) is StorageError:  # the hook's
                raise
            raise _unreadable_event(id_) from None
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
        raise _unreadable_event(stored[len(built)]["_id"]) from None
    return built


def _unreadable_event(id_: Document) -> StorageError:
    what = f"{_place(id_)} is not one that this release of ADK can read."
    return StorageError(what)


def _place(id_: Document) -> str:
    """The event of a log, or of a turn that runs, that has this ``_id``."""
    is_logged = "revision" in id_
    where = f"at revision {id_['revision']}" if is_logged else "of a running turn"
    return f"The event of session {id_['session_id']!r} {where}"


def show_sessions(
    records: Iterable[SessionRecord], shared: Iterable[Document], hooks: Hooks
) -> Iterator[StoredSession]:
    """Show sessions of a list, each with what it shares of an app and its users.

    The longest untouched comes first, ties by user and then session id. One that cannot
    be read is left out.
    """
    app, users = _shared_copiers(shared, hooks)
    left = sorted(records, key=attrgetter("updated", "key"), reverse=True)
    popped = (left.pop() for _ in range(len(left)))  # what is shown is freed
    has_common = app is not dict or bool(users)
    for record, own in readable(lambda it: (it, it.own_state(hooks)), popped):
        user = users.get(record.key.user_id, dict)
        yield StoredSession(record, own | app() | user() if has_common else own, [])


def show_session(
    record: SessionRecord, shared: Iterable[Document], hooks: Hooks
) -> StoredSession:
    common = _shared_state(record.key, shared, hooks)
    return StoredSession(record, record.own_state(hooks) | common, [])


def _shared_state(
    key: SessionKey, shared: Iterable[Document], hooks: Hooks
) -> dict[str, Any]:
    app, users = _shared_copiers(shared, hooks)
    return app() | users.get(key.user_id, dict)()


_Copier = Callable[[], dict[str, Any]]
_Sharing: TypeAlias = tuple[_Copier, dict[str, _Copier]]


def _shared_copiers(shared: Iterable[Document], hooks: Hooks) -> _Sharing:
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
    return lambda: _with_scope_prefix(decode_fields_of(owner, fields), owner)


def _with_scope_prefix(state: dict[str, Any], owner: Owner) -> dict[str, Any]:
    return {owner.prefix + key: value for key, value in state.items()}


def decode_new_session(
    new: NewSession, documents: Iterable[dict[str, Any]], hooks: Hooks
) -> StoredSession:
    """Build a session just stored: its initial state over what it shares.

    What is shared is in those of the documents that are its app's or its user's.
    """
    shares = (new.key.app_name, {"app_name": new.key[0], "user_id": new.key[1]})
    shared = [each for each in documents if each["_id"] in shares]
    own = new.delta.mapped(bson_values.decode_fields).merged()
    state = _shared_state(new.key, shared, hooks)
    state |= hooks.loaded_state(own, Owner.of_session(new.key))
    if hooks.is_missing:
        state = metadata.with_title(state, new.details.title)
    return StoredSession(SessionRecord(new.key, session_document(new)), state, [])


def is_same_event(append: Append, document: dict[str, Any], hooks: Hooks) -> bool:
    """True if a stored sub-document is the very event of an append."""
    if hooks.after_load is None:
        return append.encoded == bson.encode(document)
    one, other = (
        hooks.loaded_event(decode_value(it), Owner.of_session(append.key))
        for it in (decode_bson(append.encoded), document)
    )
    return bson_values.is_same_value(one, other)


def json_state(state: object) -> dict[str, Any]:
    """Check a flat state; return the JSON forms of its values, without ``temp:``."""
    if not isinstance(state, dict):
        raise wrong_type("state", "a dict", state)
    forms = {}
    for key, value in state.items():
        if not isinstance(key, str):
            raise wrong_type("State keys", "strings", key)
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


def summaries(
    records: Iterable[SessionRecord],
    hooks: Hooks,
    states: Mapping[SessionKey, dict[str, Any]] | None = None,
) -> Iterator[SessionSummary]:
    """Summarise sessions of a list, with these states if there are some."""
    known = states or {}
    return readable(lambda each: each.summary(hooks, known.get(each.key)), records)
