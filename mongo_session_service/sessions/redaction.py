"""Redaction: the content of some of a session's events is replaced, for ever.

What state has of them goes first, if that is wanted; then the events, a step of them in
one transaction. Who is interrupted repeats the call: events that were redacted are
passed over. The session's document counts the steps, by which read caches, forks and
trims see that what they have read is out of date.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.documents import INITIAL, REDACTIONS, log_begins
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.codec.waiting_fields import decode_waiting, encode_waiting
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
from mongo_session_service.model.waiting_calls import REDACTED, WaitingCalls
from mongo_session_service.sessions import history, queries, rewinds
from mongo_session_service.sessions.details import announce_details
from mongo_session_service.sessions.event_log import (
    LogRange,
    read_log,
    read_session_head,
)
from mongo_session_service.sessions.queries import fields_update
from mongo_session_service.sessions.waiting_log import refresh_waiting
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction, run_write

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
"""Fields of an event that say nothing of its content. Others are left out, also those
of a later ADK."""

_KEPT_ACTIONS: Final = (
    *("skip_summarization", "transfer_to_agent", "escalate", "end_of_agent", "route"),
    "rewind_before_invocation_id",
)


class LoggedPart(NamedTuple):
    """The events of a session that are to be redacted."""

    key: SessionKey
    created: float
    """The session's creation time."""
    revisions: list[int]


async def find_part(
    connection: Connection,
    key: SessionKey,
    wanted: Sequence[str] | str,
) -> LoggedPart:
    """Find the events that have some ids, or are of one invocation; refuse others."""
    head = await read_session_head(connection, key)
    if isinstance(wanted, str):
        revisions = await _find_invocation(connection, key, wanted)
        if not revisions:
            which = quoted(wanted)
            raise InvalidInputError(f"The session has no event of invocation {which}.")
        return LoggedPart(key, head["create_time"], revisions)
    found: dict[str, int] = {}
    possible = [it for it in dict.fromkeys(wanted) if lookup_id("An event id", it)]
    for some in cut_by_size(possible, _IDS_AT_ONCE):
        log = queries.event_by_id(key, {"$in": some})
        ids = [{"$match": log}, {"$project": {"event.id": 1}}]
        events = connection.retry(connection.aggregate, connection.events, ids)
        for each in await events:
            if each["_id"]["revision"] > log_begins(head):
                found[each["event"]["id"]] = each["_id"]["revision"]
    if missing := [quoted(each) for each in wanted if each not in found]:
        more = len(missing) - _SHOWN
        names = ", ".join(missing[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise InvalidInputError(f"The session has no event with id {names}.")
    return LoggedPart(key, head["create_time"], sorted(found.values()))


async def _find_invocation(
    connection: Connection, key: SessionKey, invocation_id: str
) -> list[int]:
    pages = await rewinds.select_events(
        connection, key, LogRange(), invocation_id, rewound=True
    )
    return [
        each["_id"]["revision"]
        async for page in pages
        for each in page
        if documents.decode_event(each, connection.hooks).invocation_id == invocation_id
    ]


async def _find_copies(connection: Connection, part: LoggedPart) -> list[LoggedPart]:
    key = part.key
    source = {"session_id": key.session_id, "create_time": part.created}
    wanted = {
        **{f"_id.{name}": key.id[name] for name in ("app_name", "user_id")},
        **queries.visible_filter(connection.clock.now()),
        documents.FORKED_FROM: {"$elemMatch": source},
    }
    fields = ("create_time", documents.LOG_BEGINS, documents.FORKED_FROM)
    search = [{"$match": wanted}, {"$project": dict.fromkeys(fields, 1)}]
    found = connection.retry(connection.aggregate, connection.sessions, search)
    copies: list[LoggedPart] = []
    for fork in await found:
        origins = fork[documents.FORKED_FROM]
        shared = next(it for it in origins if source.items() <= it.items())["revision"]
        revisions = [it for it in part.revisions if log_begins(fork) < it <= shared]
        if revisions:
            key = SessionKey(**fork["_id"])
            copies.append(LoggedPart(key, fork["create_time"], revisions))
    return copies


async def _find_with_copies(
    connection: Connection, part: LoggedPart, *, forks: bool
) -> AsyncIterator[LoggedPart]:
    """Yield a part, then its copies until there are no others.

    A fork that is being made sees that its source was redacted meanwhile, and fails.
    """
    yield part
    done: set[SessionKey] = set()
    while forks:
        copies = await _find_copies(connection, part)
        left = [each for each in copies if each.key not in done]
        for each in left:
            done.add(each.key)
            yield each
        forks = bool(left)


async def preview(
    connection: Connection, part: LoggedPart, replacement: str, *, forks: bool
) -> Redactable:
    """Count what would be redacted, and name the state that would change."""
    count, names = 0, set[str]()
    async for each in _find_with_copies(connection, part, forks=forks):
        for some in cut_by_size(each.revisions, connection.limits.redacted_events):
            reading = partial(_find_events, connection, each.key, some, None)
            stored = await connection.retry(reading)
            count += sum(not is_redacted(event) for _, event in stored)
        own = await _find_kept_keys(connection, each, replacement)
        names.update(map(bson_values.unescape_key, own))
        shared = await connection.retry(_find_shared_keys, connection, each, None)
        for owner, fields in shared.items():
            names.update(owner.prefix + bson_values.unescape_key(it) for it in fields)
    return Redactable(count, tuple(sorted(names)))


async def redact(
    connection: Connection,
    part: LoggedPart,
    replacement: str,
    *,
    state: bool,
    forks: bool,
) -> int:
    """Replace the content of events; return how many were not redacted before."""
    count = 0
    async for each in _find_with_copies(connection, part, forks=forks):
        if state:
            await _redact_state(connection, each, replacement)
        count += await _redact_log(connection, each, replacement)
    return count


async def _redact_state(
    connection: Connection, part: LoggedPart, replacement: str
) -> None:
    """Replace the values in state that the events have set last."""
    for _ in range(REDACTION_ATTEMPTS):
        revision, own = await _find_own_keys(connection, part)
        setting = partial(
            _redact_values, connection, part, replacement, revision=revision, own=own
        )
        if await uninterrupted(run_transaction(connection, setting)):
            return
    raise StorageUnavailableError(_BUSY)


async def _redact_log(
    connection: Connection, part: LoggedPart, replacement: str
) -> int:
    count = 0
    for some in cut_by_size(part.revisions, connection.limits.redacted_events):
        step = partial(_redact_step, connection, part, some, replacement)
        count += await uninterrupted(run_transaction(connection, step))
    if count:
        await connection.retry(refresh_waiting, connection, part.key)
    return count


async def _redact_step(
    connection: Connection,
    part: LoggedPart,
    revisions: Sequence[int],
    replacement: str,
    txn: Txn,
) -> int:
    session = await _find_session(connection, part, txn)
    new: dict[int, Document] = {}
    deltas: list[Document] = []
    for stored, event in await _find_events(connection, part.key, revisions, txn):
        revision = stored["_id"]["revision"]
        if not is_redacted(event) and revision > log_begins(session):
            deltas.append(history.delta_of(stored))
            redacted = redacted_event(event, replacement)
            append = documents.encode_append(part.key, redacted, connection.hooks)
            new[revision] = documents.event_document(append, revision)
    if not new:
        return 0
    await _replace_events(connection, list(new.values()), txn)
    said = connection.routed(queries.partials_of_session(part.key))
    ids = [each["event"]["id"] for each in new.values()]
    await connection.partials.delete_many(
        {**said, "event.id": {"$in": ids}}, session=txn
    )
    await _redact_initial_state(connection, session, deltas, replacement, txn)
    waiting = decode_waiting(session, connection.hooks)
    left = tuple(each for each in waiting.named if each.revision not in new)
    told = encode_waiting(WaitingCalls(left, waiting.more), part.key, connection.hooks)
    is_changed = len(left) < len(waiting.named)
    change = fields_update(told if is_changed else {}) | {"$inc": {REDACTIONS: 1}}
    await connection.sessions.update_one({"_id": part.key.id}, change, session=txn)
    if txn and is_changed:
        await announce_details(connection, session | told, txn)
    return len(new)


async def _replace_events(
    connection: Connection, new: list[Document], txn: Txn
) -> None:
    """Replace documents, by which the change feed tells it from all other writes."""
    if txn is None:
        for each in new:
            await connection.events.replace_one({"_id": each["_id"]}, each)
        return
    updates = [{"q": {"_id": each["_id"]}, "u": each} for each in new]
    await run_write(
        connection, {"update": connection.events.name, "updates": updates}, txn
    )


async def _find_session(connection: Connection, part: LoggedPart, txn: Txn) -> Document:
    wanted = {
        **queries.visible_filter(connection.clock.now()),
        "_id": part.key.id,
        "create_time": part.created,
    }
    found: Document | None = await connection.sessions.find_one(wanted, session=txn)
    if found is None:
        raise session_not_found_error(part.key.session_id)
    return found


async def _find_events(
    connection: Connection, key: SessionKey, revisions: Sequence[int], txn: Txn
) -> list[tuple[Document, Event]]:
    ids = [key.event_id(each) for each in revisions]
    wanted = connection.routed({"_id": {"$in": ids}})
    found = (
        await connection.events.find(wanted, session=txn).sort("_id", 1).to_list(None)
    )
    return [(each, documents.decode_event(each, connection.hooks)) for each in found]


async def _redact_initial_state(
    connection: Connection,
    session: Document,
    deltas: list[Document],
    replacement: str,
    txn: Txn,
) -> None:
    """Replace what the initial state has of the same values, as after a trim."""
    key = SessionKey(**session["_id"])
    apart = await connection.events.find_one({"_id": key.event_id(0)}, session=txn)
    for collection, document in (
        (connection.sessions, session),
        (connection.events, apart),
    ):
        initial = (document or {}).get(INITIAL, {})
        same = {
            name
            for delta in deltas
            for name, value in delta.items()
            if value is not None and name in initial and initial[name] == value
        }
        if document and same:
            values = _encode_replacement(
                connection, Owner.of_session(key), same, replacement
            )
            change = {f"{INITIAL}.{name}": it for name, it in values.items()}
            await collection.update_one(
                {"_id": document["_id"]}, {"$set": change}, session=txn
            )


async def _find_own_keys(
    connection: Connection, part: LoggedPart
) -> tuple[int, set[str]]:
    """Find the keys of a session's state that the events have set last, as stored.

    Also return the revision as of which that is so.
    """
    head = await read_session_head(connection, part.key)
    if head["create_time"] != part.created:
        raise session_not_found_error(part.key.session_id)
    revision: int = head["revision"]
    wanted = set(part.revisions)
    latest: dict[str, int] = {}
    log = LogRange(part.revisions[0] - 1, revision + 1)
    fields = ("event.actions.state_delta",)
    pages = read_log(connection, part.key, log, created=part.created, fields=fields)
    async for page in pages:
        for each in page:
            names = [it for it, to in history.delta_of(each).items() if to is not None]
            latest |= dict.fromkeys(names, each["_id"]["revision"])
    return revision, {name for name, last in latest.items() if last in wanted}


async def _find_kept_keys(
    connection: Connection, part: LoggedPart, replacement: str
) -> set[str]:
    """Find those of the session's own keys whose values were not replaced before."""
    _, own = await _find_own_keys(connection, part)
    values = _encode_replacement(
        connection, Owner.of_session(part.key), own, replacement
    )
    found = await connection.retry(
        connection.sessions.find_one, {"_id": part.key.id}, {"state": 1}
    )
    state = (found or {}).get("state", {})
    return {name for name in own if state.get(name) != values[name]}


def _shared_scopes(
    connection: Connection, key: SessionKey
) -> list[tuple[Owner, Any, Any]]:
    """List what a session shares state with: its owner, collection and ``_id``."""
    user_id = queries.user_state_id(key.app_name, key.user_id)
    return [
        (Owner.of_shared(key.app_name), connection.app_states, key.app_name),
        (Owner.of_shared(*key[:2]), connection.user_states, user_id),
    ]


async def _find_shared_keys(
    connection: Connection, part: LoggedPart, txn: Txn
) -> dict[Owner, set[str]]:
    """Find the keys of app and user state that still have the values of the events."""
    states: dict[Owner, Document] = {}
    for owner, collection, id_ in _shared_scopes(connection, part.key):
        found = await collection.find_one({"_id": id_}, session=txn)
        states[owner] = (found or {}).get("state", {})
    keys: dict[Owner, set[str]] = {owner: set() for owner in states}
    for some in cut_by_size(part.revisions, connection.limits.redacted_events):
        for stored, event in await _find_events(connection, part.key, some, txn):
            actions = {} if is_redacted(event) else stored["event"].get("actions", {})
            delta = bson_values.decode_value(actions.get("state_delta", {}))
            shared = ScopedState.split(delta)
            for owner, own in zip(states, (shared.app, shared.user), strict=True):
                keys[owner] |= {
                    name
                    for name, value in bson_values.encode_fields(own).items()
                    if value is not None and states[owner].get(name) == value
                }
    return keys


async def _redact_values(
    connection: Connection,
    part: LoggedPart,
    replacement: str,
    txn: Txn,
    *,
    revision: int,
    own: set[str],
) -> bool:
    """Replace values of state, unless the session has moved on."""
    key = part.key
    shared = await _find_shared_keys(connection, part, txn)
    values = _encode_replacement(connection, Owner.of_session(key), own, replacement)
    change: Document = {f"state.{name}": it for name, it in values.items()}
    where = {"_id": key.id, "create_time": part.created, "revision": revision}
    if ADK_METADATA in own and connection.hooks.is_missing:
        change |= await _redact_title(connection, where, replacement, txn)
    update = {**fields_update(change), "$inc": {REDACTIONS: 1}}
    done = await connection.sessions.update_one(where, update, session=txn)
    if not done.matched_count:
        return False
    for owner, collection, id_ in _shared_scopes(connection, key):
        if names := shared[owner]:
            values = _encode_replacement(connection, owner, names, replacement)
            change = {f"state.{name}": it for name, it in values.items()}
            await collection.update_one(
                {"_id": id_}, {"$set": change, "$inc": {"revision": 1}}, session=txn
            )
    return True


async def _redact_title(
    connection: Connection, where: Document, replacement: str, txn: Txn
) -> Document:
    """Replace a title that an event has set, and inform subscribers of it."""
    session = await connection.sessions.find_one(where, session=txn)
    named = (session or {}).get("state", {}).get(ADK_METADATA)
    fields = bson_values.decode_fields({ADK_METADATA: named})
    if not session or display_name(fields) != session.get("title"):
        return {}
    title = {"title": replacement[:MAX_TITLE]}
    if txn:
        await announce_details(connection, session | title, txn)
    return title


def _encode_replacement(
    connection: Connection, owner: Owner, names: set[str], replacement: str
) -> dict[str, Any]:
    """Encode the replacement as the value of fields of state."""
    keys = map(bson_values.unescape_key, names)
    fields, _ = documents.encode_state(
        dict.fromkeys(keys, replacement), owner, connection.hooks
    )
    return fields


def is_redacted(event: Event) -> bool:
    """Tell whether an event's content was replaced before."""
    return REDACTED in (event.custom_metadata or {})


def redacted_event(event: Event, replacement: str) -> Event:
    """Make an event that says and sets the replacement in the place of everything.

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
        said = _content(compaction.compacted_content, replacement)
        compaction = compaction.model_copy(update={"compacted_content": said})
    return EventActions(
        **{name: it for name, it in kept.items() if it is not None},
        state_delta={
            key: None if value is None else replacement
            for key, value in actions.state_delta.items()
        },
        compaction=compaction,
    )


def _transcription(
    said: types.Transcription | None, replacement: str
) -> types.Transcription | None:
    return said and types.Transcription(text=replacement, finished=said.finished)
