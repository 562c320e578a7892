"""Redaction: the content of some of a session's events is replaced, for ever.

What state has of them goes first, if that is wanted; then the events, a step of them in
one transaction, with their copies in dead letters. Who is interrupted repeats the call:
events that were redacted are passed over. The session's document counts the steps, by
which read caches, forks and trims see that what they have read is out of date.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from google.adk.sessions.state import State

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.documents import INITIAL, REDACTIONS, log_begins
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.codec.redactor import is_redacted, redacted_document
from mongo_session_service.codec.waiting_fields import decode_waiting, encode_waiting
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn, run_transaction, run_write
from mongo_session_service.errors import (
    InvalidInputError,
    StorageUnavailableError,
    quoted,
    session_not_found_error,
)
from mongo_session_service.model import scopes
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    MAX_TITLE,
    display_name,
)
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import Redactable
from mongo_session_service.model.validation import lookup_id
from mongo_session_service.model.waiting_calls import WaitingCalls
from mongo_session_service.sessions import history, queries, rewinds
from mongo_session_service.sessions.batch import announce_details
from mongo_session_service.sessions.event_log import (
    LogRange,
    read_log,
    read_session_head,
)
from mongo_session_service.sessions.queries import fields_update
from mongo_session_service.sessions.waiting_log import refresh_waiting

ATTEMPTS: Final = 100
"""How often another writer may append while the log is read."""

_IDS_AT_ONCE: Final = 1000
_SHOWN: Final = 3
_BUSY: Final = "Nothing was redacted: others kept appending to the session. Try again."


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
    """Find the events that have some ids, or are of one invocation.

    Raises:
        SessionNotFoundError: the session is not stored.
        InvalidInputError: an id is not there.
    """
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
        **queries.visible(connection.clock.now()),
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
        names.update(await connection.retry(_find_shared_keys, connection, each, None))
    return Redactable(count, tuple(sorted(names)))


async def redact(
    connection: Connection,
    part: LoggedPart,
    replacement: str,
    *,
    state: bool,
    forks: bool,
) -> int:
    """Replace the content of events; return how many were not redacted before.

    Raises:
        SessionNotFoundError: the session, or a fork, was deleted meanwhile.
        StorageUnavailableError: others kept appending.
    """
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
    for _ in range(ATTEMPTS):
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
    at: Connection,
    part: LoggedPart,
    revisions: Sequence[int],
    replacement: str,
    txn: Txn,
) -> int:
    session = await _find_session(at, part, txn)
    new: dict[int, Document] = {}
    deltas: list[Document] = []
    for stored, event in await _find_events(at, part.key, revisions, txn):
        revision = stored["_id"]["revision"]
        if not is_redacted(event) and revision > log_begins(session):
            deltas.append(history.delta_of(stored))
            new[revision] = redacted_document(
                event, part.key, revision, at.hooks, replacement
            )
    if not new:
        return 0
    await _replace_events(at, list(new.values()), txn)
    said = queries.routed(at, queries.partials_of_session(part.key))
    ids = [each["event"]["id"] for each in new.values()]
    await at.partials.delete_many({**said, "event.id": {"$in": ids}}, session=txn)
    await _redact_letters(at, part.key, new, txn)
    await _redact_initial_state(at, session, deltas, replacement, txn)
    waiting = decode_waiting(session, at.hooks)
    left = tuple(each for each in waiting.named if each.revision not in new)
    told = encode_waiting(WaitingCalls(left, waiting.more), part.key, at.hooks)
    is_changed = len(left) < len(waiting.named)
    change = fields_update(told if is_changed else {}) | {"$inc": {REDACTIONS: 1}}
    await at.sessions.update_one({"_id": part.key.id}, change, session=txn)
    if txn and is_changed:
        await announce_details(at, session | told, txn)
    return len(new)


async def _replace_events(at: Connection, new: list[Document], txn: Txn) -> None:
    """Replace documents, by which the change feed tells it from all other writes."""
    if txn is None:
        for each in new:
            await at.events.replace_one({"_id": each["_id"]}, each)
        return
    updates = [{"q": {"_id": each["_id"]}, "u": each} for each in new]
    await run_write(at, {"update": at.events.name, "updates": updates}, txn)


async def _find_session(at: Connection, part: LoggedPart, txn: Txn) -> Document:
    wanted = {
        **queries.visible(at.clock.now()),
        "_id": part.key.id,
        "create_time": part.created,
    }
    found: Document | None = await at.sessions.find_one(wanted, session=txn)
    if found is None:
        raise session_not_found_error(part.key.session_id)
    return found


async def _find_events(
    at: Connection, key: SessionKey, revisions: Sequence[int], txn: Txn
) -> list[tuple[Document, Event]]:
    ids = [key.event_id(each) for each in revisions]
    wanted = queries.routed(at, {"_id": {"$in": ids}})
    found = await at.events.find(wanted, session=txn).sort("_id", 1).to_list(None)
    return [(each, documents.decode_event(each, at.hooks)) for each in found]


async def _redact_letters(
    at: Connection, key: SessionKey, new: dict[int, Document], txn: Txn
) -> None:
    """Replace the events in dead letters, whose errors may quote them."""
    fields = {f"_id.{name}": part for name, part in key.id.items()}
    wanted = {**fields, "_id.revision": {"$in": [*new]}, "item.document": {"$type": 3}}
    letters = at.dead_letters.find(wanted, {"error": 1}, session=txn)
    for each in await letters.to_list(None):
        document = new[each["_id"]["revision"]]
        error_type = each["error"].partition(":")[0]
        change = {"$set": {"item.document": document, "error": error_type}}
        await at.dead_letters.update_one({"_id": each["_id"]}, change, session=txn)


async def _redact_initial_state(
    at: Connection,
    session: Document,
    deltas: list[Document],
    replacement: str,
    txn: Txn,
) -> None:
    """Replace what the initial state has of the same values, as after a trim."""
    key = SessionKey(**session["_id"])
    apart = await at.events.find_one({"_id": key.event_id(0)}, session=txn)
    for collection, document in (at.sessions, session), (at.events, apart):
        initial = (document or {}).get(INITIAL, {})
        same = {
            name
            for delta in deltas
            for name, value in delta.items()
            if value is not None and name in initial and initial[name] == value
        }
        if document and same:
            values = _encode_replacement(at, Owner.of_session(key), same, replacement)
            change = {f"{INITIAL}.{name}": it for name, it in values.items()}
            await collection.update_one(
                {"_id": document["_id"]}, {"$set": change}, session=txn
            )


async def _find_own_keys(at: Connection, part: LoggedPart) -> tuple[int, set[str]]:
    """Find the keys of a session's state that the events have set last, as stored.

    Also return the revision as of which that is so.
    """
    head = await read_session_head(at, part.key)
    if head["create_time"] != part.created:
        raise session_not_found_error(part.key.session_id)
    revision: int = head["revision"]
    wanted = set(part.revisions)
    latest: dict[str, int] = {}
    log = LogRange(part.revisions[0] - 1, revision + 1)
    fields = ("event.actions.state_delta",)
    pages = read_log(at, part.key, log, created=part.created, fields=fields)
    async for page in pages:
        for each in page:
            names = [it for it, to in history.delta_of(each).items() if to is not None]
            latest |= dict.fromkeys(names, each["_id"]["revision"])
    return revision, {name for name, last in latest.items() if last in wanted}


async def _find_kept_keys(
    at: Connection, part: LoggedPart, replacement: str
) -> set[str]:
    """Find those of the session's own keys whose values were not replaced before."""
    _, own = await _find_own_keys(at, part)
    values = _encode_replacement(at, Owner.of_session(part.key), own, replacement)
    found = await at.retry(at.sessions.find_one, {"_id": part.key.id}, {"state": 1})
    state = (found or {}).get("state", {})
    return {name for name in own if state.get(name) != values[name]}


async def _find_shared_keys(
    at: Connection, part: LoggedPart, txn: Txn
) -> dict[str, str]:
    """Find the keys of app and user state that still have the values of the events.

    Their fields' names, by keys as ADK shows them.
    """
    key = part.key
    keys: dict[str, str] = {}
    app = await at.app_states.find_one({"_id": key.app_name}, session=txn)
    user_id = queries.user_state_id(key.app_name, key.user_id)
    user = await at.user_states.find_one({"_id": user_id}, session=txn)
    for some in cut_by_size(part.revisions, at.limits.redacted_events):
        for stored, event in await _find_events(at, key, some, txn):
            if is_redacted(event):
                continue
            for prefix, state, delta in _split_shared(stored, app, user):
                keys |= {
                    prefix + bson_values.unescape_key(name): name
                    for name, value in delta.items()
                    if value is not None and state.get(name) == value
                }
    return keys


def _split_shared(
    stored: Document, app: Document | None, user: Document | None
) -> Iterator[tuple[str, Document, Document]]:
    """Yield the scopes that sessions share: prefix, state, and what an event sets."""
    actions = stored["event"].get("actions", {})
    delta = scopes.split(bson_values.decode_value(actions.get("state_delta", {})))
    for prefix, document, part in (
        (State.APP_PREFIX, app, delta.app),
        (State.USER_PREFIX, user, delta.user),
    ):
        state = (document or {}).get("state", {})
        yield prefix, state, bson_values.encode_fields(part)


async def _redact_values(
    at: Connection,
    part: LoggedPart,
    replacement: str,
    txn: Txn,
    *,
    revision: int,
    own: set[str],
) -> bool:
    """Replace values of state, unless the session has moved on."""
    key = part.key
    shared = await _find_shared_keys(at, part, txn)
    owner = Owner.of_session(key)
    values = _encode_replacement(at, owner, own, replacement)
    change: Document = {f"state.{name}": it for name, it in values.items()}
    where = {"_id": key.id, "create_time": part.created, "revision": revision}
    if ADK_METADATA in own and at.hooks.is_missing:
        change |= await _redact_title(at, where, replacement, txn)
    update = {**fields_update(change), "$inc": {REDACTIONS: 1}}
    done = await at.sessions.update_one(where, update, session=txn)
    if not done.matched_count:
        return False
    user_id = queries.user_state_id(key.app_name, key.user_id)
    for prefix, collection, id_, of in (
        (State.APP_PREFIX, at.app_states, key.app_name, Owner.of_shared(key.app_name)),
        (State.USER_PREFIX, at.user_states, user_id, Owner.of_shared(*key[:2])),
    ):
        names = {name for shown, name in shared.items() if shown.startswith(prefix)}
        if names:
            values = _encode_replacement(at, of, names, replacement)
            change = {f"state.{name}": it for name, it in values.items()}
            await collection.update_one(
                {"_id": id_}, {"$set": change, "$inc": {"revision": 1}}, session=txn
            )
    return True


async def _redact_title(
    at: Connection, where: Document, replacement: str, txn: Txn
) -> Document:
    """Replace a title that an event has set, and inform subscribers of it."""
    session = await at.sessions.find_one(where, session=txn)
    named = (session or {}).get("state", {}).get(ADK_METADATA)
    fields = bson_values.decode_fields({ADK_METADATA: named})
    if not session or display_name(fields) != session.get("title"):
        return {}
    title = {"title": replacement[:MAX_TITLE]}
    if txn:
        await announce_details(at, session | title, txn)
    return title


def _encode_replacement(
    at: Connection, owner: Owner, names: set[str], replacement: str
) -> dict[str, Any]:
    """Encode the replacement as the value of fields of state."""
    keys = map(bson_values.unescape_key, names)
    fields, _ = documents.encode_state(
        dict.fromkeys(keys, replacement), owner, at.hooks
    )
    return fields
