"""Redaction: the content of some of a session's events is replaced, for ever.

What state has of them goes first, if that is wanted; then the events, a step of them in
one transaction. Who is interrupted repeats the call: events that were redacted are
passed over. The session's document counts the steps, by which read caches, forks and
trims see that what they have read is out of date.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.codec.record import (
    FORKED_FROM,
    INITIAL,
    STATE_PATH,
    STATES,
    SessionRecord,
    state_fields,
)
from mongo_session_service.codec.waiting_calls import (
    REDACTED,
    WaitingCalls,
    encode_waiting,
)
from mongo_session_service.errors import (
    InvalidInputError,
    StorageUnavailableError,
    quoted,
    session_not_found_error,
)
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    MAX_TITLE,
    display_name,
)
from mongo_session_service.model.records import Document, ScopedState, SessionKey
from mongo_session_service.model.results import Redactable
from mongo_session_service.model.validation import lookup_id
from mongo_session_service.sessions import event_log, queries
from mongo_session_service.sessions.details import change_statements
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.reads import head_query, read_head
from mongo_session_service.sessions.waiting_log import refresh_waiting
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Delete, Query, RefusedError, Update
from mongo_session_service.storage.transactions import Transaction

REDACTION_ATTEMPTS: Final = 100
"""How often another writer may append while the log is read."""

_IDS_AT_ONCE: Final = 1000
_SHOWN: Final = 3
_BUSY: Final = "Nothing was redacted: others kept appending to the session. Try again."


_KEPT: Final = (
    *("id", "timestamp", "author", "invocation_id", "branch", "isolation_scope"),
    *("node_info", "model_version", "partial", "turn_complete", "finish_reason"),
    *("turn_complete_reason", "interrupted", "error_code", "usage_metadata"),
)
"""Fields of an event that reveal nothing of its content. Others are left out, those of
a later ADK as well."""

_KEPT_ACTIONS: Final = (
    *("skip_summarization", "transfer_to_agent", "escalate", "end_of_agent", "route"),
    "rewind_before_invocation_id",
)


class LoggedPart(NamedTuple):
    key: SessionKey
    created: float
    """The session's creation time."""
    revisions: list[int]


async def find_part(
    storage: Storage,
    key: SessionKey,
    wanted: Sequence[str] | str,
) -> LoggedPart:
    """Find the events that have some ids, or are of one invocation; refuse others."""
    head = await read_head(storage, key)
    if isinstance(wanted, str):
        log = LogAtRevision.of(head)
        where = {event_log.INVOCATION: bson_values.encode_value(wanted)}
        revisions = [
            revision
            async for revision, event in event_log.read_outlines(storage, log, where)
            if event.invocation_id == wanted
        ]
        if not revisions:
            which = quoted(wanted)
            raise InvalidInputError(f"The session has no event of invocation {which}.")
        return LoggedPart(key, head.created, revisions)
    found: dict[str, int] = {}
    possible = [it for it in dict.fromkeys(wanted) if lookup_id("An event id", it)]
    for some in cut_by_size(possible, _IDS_AT_ONCE):
        by_id = queries.event_by_id(key, {"$in": some})
        query = Query("events", by_id, fields=("event.id",))
        (events,) = await storage.read(query, patient=True)
        for each in map(EventRecord, head.trimmed(events)):
            found[each.id] = each.revision
    if missing := [quoted(each) for each in wanted if each not in found]:
        more = len(missing) - _SHOWN
        names = ", ".join(missing[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise InvalidInputError(f"The session has no event with id {names}.")
    return LoggedPart(key, head.created, sorted(found.values()))


async def _find_copies(storage: Storage, part: LoggedPart) -> list[LoggedPart]:
    """Find the forks of a session, and in its family what it is a branch of.

    Two sessions have in common what both have of an origin of both.
    """
    (own,) = await storage.read(head_query(part.key), patient=True)
    sources = {(part.key.session_id, part.created): math.inf}
    for head in map(SessionRecord.read, own):
        sources |= head.origins_in_family
    of_user = {f"_id.{name}": part.key.id[name] for name in ("app_name", "user_id")}
    names = [{"session_id": id_, "create_time": time} for id_, time in sources]
    related = [{FORKED_FROM: {"$elemMatch": each}} for each in names]
    itself = {"_id.session_id": {"$in": [id_ for id_, _ in sources]}}
    wanted = {
        **of_user,
        **queries.visible_filter(storage.clock.now()),
        "$or": [*related, itself],
    }
    query = Query("sessions", wanted, without=STATES)
    (found,) = await storage.read(query, patient=True)
    copies: list[LoggedPart] = []
    for other in map(SessionRecord.read, found):
        key, origins = other.key, other.origins
        origins[key.session_id, other.created] = math.inf
        both = sources.keys() & origins.keys()
        shared = max((min(sources[it], origins[it]) for it in both), default=0)
        revisions = [it for it in part.revisions if other.begins < it <= shared]
        if revisions and key != part.key:
            copies.append(LoggedPart(key, other.created, revisions))
    return copies


async def _find_with_copies(
    storage: Storage, part: LoggedPart, *, forks: bool
) -> AsyncIterator[LoggedPart]:
    """Yield a part, then its copies until there are no others.

    A fork that is being made sees that its source was redacted meanwhile, and fails.
    """
    yield part
    done: set[SessionKey] = set()
    while forks:
        copies = await _find_copies(storage, part)
        left = [each for each in copies if each.key not in done]
        for each in left:
            yield each
        done.update(each.key for each in left)
        forks = bool(left)


async def preview(
    storage: Storage, part: LoggedPart, replacement: str, *, forks: bool
) -> Redactable:
    """Count what would be redacted, and name the state that would change."""
    count, names = 0, set[str]()
    async for each in _find_with_copies(storage, part, forks=forks):
        for some in cut_by_size(each.revisions, storage.limits.redacted_events):
            outline = event_log.outline_fields(storage)
            finding = partial(_read_events, storage, each.key, some, fields=outline)
            stored = await storage.run(finding, patient=True)
            count += sum(not is_redacted(event) for _, event in stored)
        own = await _find_unredacted_keys(storage, each, replacement)
        names.update(map(bson_values.unescape_key, own))
        finding_keys = partial(_find_shared_keys, storage, each)
        shared = await storage.run(finding_keys, patient=True)
        for owner, fields in shared.items():
            names.update(owner.prefix + bson_values.unescape_key(it) for it in fields)
    return Redactable(count, tuple(sorted(names)))


async def redact(
    storage: Storage,
    part: LoggedPart,
    replacement: str,
    *,
    state: bool,
    forks: bool,
) -> int:
    """Replace the content of events; return how many were not redacted before."""
    count = 0
    async for each in _find_with_copies(storage, part, forks=forks):
        if state:
            await _redact_state(storage, each, replacement)
        count += await _redact_log(storage, each, replacement)
    return count


async def _redact_state(storage: Storage, part: LoggedPart, replacement: str) -> None:
    """Replace the values in state that the events have set last."""
    for _ in range(REDACTION_ATTEMPTS):
        revision, own = await _find_own_keys(storage, part)
        setting = partial(
            _redact_values, storage, part, replacement, revision=revision, own=own
        )
        with suppress(RefusedError):
            return await storage.run(setting)
    raise StorageUnavailableError(_BUSY)


async def _redact_log(storage: Storage, part: LoggedPart, replacement: str) -> int:
    count = 0
    for some in cut_by_size(part.revisions, storage.limits.redacted_events):
        step = partial(_redact_step, storage, part, some, replacement)
        count += await storage.run(step)
    if count:
        await refresh_waiting(storage, part.key)
    return count


async def _redact_step(
    storage: Storage,
    part: LoggedPart,
    revisions: Sequence[int],
    replacement: str,
    tx: Transaction,
) -> int:
    session = await _read_session(storage, part, tx)
    new: dict[int, Document] = {}
    ids: list[Any] = []
    deltas: list[Document] = []
    for stored, event in await _read_events(storage, part.key, revisions, tx):
        if not is_redacted(event) and stored.revision > session.begins:
            ids.append(stored.id)
            deltas.append(stored.own_delta)
            redacted = redacted_event(event, replacement)
            append = documents.encode_append(part.key, redacted, storage.hooks)
            new[stored.revision] = documents.event_document(
                append, stored.revision, copied_by=stored.copied_by
            )
    if not new:
        return 0
    partials = queries.partials_of_session(part.key)
    await tx.write(
        # Replaced: by this the change feed knows a redaction from all other writes.
        *(Update("events", {"_id": it["_id"]}, it, expected=1) for it in new.values()),
        Delete("partials", {**partials, "event.id": {"$in": ids}}, many=True),
    )
    before_log = {"_id": part.key.event_id(0)}
    apart = await tx.find_one(Query("events", before_log)) or {}
    own, beside = (
        _redacted_initial_state(storage, part.key, initial, deltas, replacement)
        for initial in (session.initial, apart.get(INITIAL, {}))
    )
    if beside:
        await tx.write(Update("events", before_log, {"$set": beside}))
    waiting = session.waiting(storage.hooks)
    left = tuple(each for each in waiting.named if each.revision not in new)
    calls = WaitingCalls(left, waiting.more)
    fields = encode_waiting(calls, part.key, storage.hooks)
    is_answered = len(left) < len(waiting.named)
    change = session.change(
        own, waiting=fields if is_answered else None, is_redaction=True
    )
    await tx.write(*change_statements(storage, change))
    return len(new)


async def _read_session(
    storage: Storage, part: LoggedPart, tx: Transaction
) -> SessionRecord:
    wanted = {
        **queries.visible_filter(storage.clock.now()),
        "_id": part.key.id,
        "create_time": part.created,
    }
    found = await tx.find_one(Query("sessions", wanted))
    if found is None:
        raise session_not_found_error(part.key.session_id)
    return SessionRecord.read(found)


async def _read_events(
    storage: Storage,
    key: SessionKey,
    revisions: Sequence[int],
    tx: Transaction,
    fields: tuple[str, ...] = (),
) -> list[tuple[EventRecord, Event]]:
    ids = {"_id": {"$in": [key.event_id(each) for each in revisions]}}
    found = await tx.find(Query("events", ids, order=1, fields=fields))
    records = map(EventRecord, found)
    return [(each, documents.decode_event(each, storage.hooks)) for each in records]


def _redacted_initial_state(
    storage: Storage,
    key: SessionKey,
    initial: Document,
    deltas: list[Document],
    replacement: str,
) -> Document:
    """Replace what an initial state has of the same values, as after a trim."""
    same = {
        name
        for delta in deltas
        for name, value in delta.items()
        if value is not None and name in initial and initial[name] == value
    }
    if not same:
        return {}
    owner = Owner.of_session(key)
    return _replacement_update(INITIAL, storage, owner, same, replacement)


async def _find_own_keys(storage: Storage, part: LoggedPart) -> tuple[int, set[str]]:
    """Find the keys of a session's state that the events have set last, as stored.

    Also return the revision as of which that is so.
    """
    head = await read_head(storage, part.key)
    if head.created != part.created:
        raise session_not_found_error(part.key.session_id)
    revision = head.revision
    wanted = set(part.revisions)
    latest: dict[str, int] = {}
    log = LogAtRevision(part.key, part.revisions[0] - 1, revision)
    async for page in storage.scan(log.deltas_query):
        for each in map(EventRecord, page.documents):
            delta = each.own_delta.items()
            set_here = [name for name, value in delta if value is not None]
            latest |= dict.fromkeys(set_here, each.revision)
    return revision, {name for name, last in latest.items() if last in wanted}


async def _find_unredacted_keys(
    storage: Storage, part: LoggedPart, replacement: str
) -> set[str]:
    _, own = await _find_own_keys(storage, part)
    owner = Owner.of_session(part.key)
    values = _replacement_update("state", storage, owner, own, replacement)
    query = Query("sessions", {"_id": part.key.id}, fields=("state",))
    found = await storage.find_one(query, patient=True)
    state = SessionRecord.part(part.key, found).state if found else {}
    return {name for name in own if state.get(name) != values[STATE_PATH + name]}


def _shared_scopes(key: SessionKey) -> list[tuple[Owner, str, Any]]:
    """List what a session shares state with: its owner, collection and ``_id``."""
    user_id = queries.user_state_id(key.app_name, key.user_id)
    return [
        (Owner.of_shared(key.app_name), "app_states", key.app_name),
        (Owner.of_shared(*key[:2]), "user_states", user_id),
    ]


async def _find_shared_keys(
    storage: Storage, part: LoggedPart, tx: Transaction
) -> dict[Owner, set[str]]:
    """Find the keys of app and user state that still have the values of the events."""
    states: dict[Owner, Document] = {}
    for owner, collection, id_ in _shared_scopes(part.key):
        found = await tx.find_one(Query(collection, {"_id": id_}))
        states[owner] = state_fields(found) or {}
    keys: dict[Owner, set[str]] = {owner: set() for owner in states}
    for some in cut_by_size(part.revisions, storage.limits.redacted_events):
        fields = event_log.outline_fields(storage, event_log.DELTA)
        for stored, event in await _read_events(storage, part.key, some, tx, fields):
            shared = ScopedState() if is_redacted(event) else stored.delta
            for owner, own in zip(states, (shared.app, shared.user), strict=True):
                keys[owner] |= {
                    name
                    for name, value in bson_values.encode_fields(own).items()
                    if value is not None and states[owner].get(name) == value
                }
    return keys


async def _redact_values(
    storage: Storage,
    part: LoggedPart,
    replacement: str,
    tx: Transaction,
    *,
    revision: int,
    own: set[str],
) -> None:
    key = part.key
    session = await _read_session(storage, part, tx)
    if session.revision != revision:
        raise RefusedError
    shared = await _find_shared_keys(storage, part, tx)
    owner = Owner.of_session(key)
    fields = _replacement_update("state", storage, owner, own, replacement)
    if ADK_METADATA in own and storage.hooks.is_missing:
        fields |= _redacted_title(session, replacement)
    redacted = session.change(fields, is_redaction=True)
    as_read = session.expected("revision")
    await tx.write(*change_statements(storage, redacted, as_read))
    for owner, collection, id_ in _shared_scopes(key):
        if names := shared[owner]:
            change = _replacement_update("state", storage, owner, names, replacement)
            update = {"$set": change, "$inc": {"revision": 1}}
            await tx.write(Update(collection, {"_id": id_}, update))


def _redacted_title(session: SessionRecord, replacement: str) -> Document:
    """Replace a title that an event has set."""
    named = {ADK_METADATA: session.state.get(ADK_METADATA)}
    if display_name(bson_values.decode_fields(named)) != session.details.title:
        return {}
    return {"title": replacement[:MAX_TITLE]}


def _replacement_update(
    field: str, storage: Storage, owner: Owner, names: set[str], replacement: str
) -> Document:
    """The change that replaces values of a field with state, named as stored."""
    values = {bson_values.unescape_key(name): replacement for name in names}
    fields, _ = documents.encode_state(values, owner, storage.hooks)
    return {f"{field}.{name}": value for name, value in fields.items()}


def is_redacted(event: Event) -> bool:
    return REDACTED in (event.custom_metadata or {})


def redacted_event(event: Event, replacement: str) -> Event:
    """Make an event with the replacement in the place of all text and values.

    Its calls and responses have their ids and names, so that they still belong together
    and ADK makes prompts of them. No call waits for a person any longer.
    """
    content = event.content
    kept: dict[str, Any] = {name: getattr(event, name, None) for name in _KEPT}
    return Event(
        **{name: it for name, it in kept.items() if it is not None},
        content=None if content is None else _content(content, replacement),
        actions=_actions(event.actions, replacement),
        error_message=None if event.error_message is None else replacement,
        input_transcription=_transcription(event.input_transcription, replacement),
        output_transcription=_transcription(event.output_transcription, replacement),
        output=None if getattr(event, "output", None) is None else replacement,
        custom_metadata={REDACTED: True},
    )


def _content(content: types.Content, replacement: str) -> types.Content:
    parts = [_part(each, replacement) for each in content.parts or ()]
    return types.Content(role=content.role, parts=parts)


def _part(part: types.Part, replacement: str) -> types.Part:
    if call := part.function_call:
        args = {"redacted": replacement}
        kept = types.FunctionCall(id=call.id, name=call.name, args=args)
        return types.Part(function_call=kept)
    if response := part.function_response:
        answer = types.FunctionResponse(
            id=response.id, name=response.name, response={"redacted": replacement}
        )
        return types.Part(function_response=answer)
    return types.Part(text=replacement, thought=part.thought)


def _actions(actions: EventActions, replacement: str) -> EventActions:
    kept = {name: getattr(actions, name, None) for name in _KEPT_ACTIONS}
    compaction = actions.compaction
    if compaction is not None:
        content = _content(compaction.compacted_content, replacement)
        compaction = compaction.model_copy(update={"compacted_content": content})
    return EventActions(
        **{name: it for name, it in kept.items() if it is not None},
        state_delta={
            key: None if value is None else replacement
            for key, value in actions.state_delta.items()
        },
        compaction=compaction,
    )


def _transcription(
    text: types.Transcription | None, replacement: str
) -> types.Transcription | None:
    return text and types.Transcription(text=replacement, finished=text.finished)
