"""Redaction: the content of some of a session's events is replaced, for ever.

What state has of them goes first, if that is wanted; then the events, a step of them in
one transaction, which writes to the session first, so that nobody appends meanwhile.
Who is interrupted repeats the call: events that were redacted are passed over. The
session's document counts the steps, by which read caches, forks and trims see that what
they have read is out of date.

A fork has the same events at the same revisions. Where a trim has removed them, what
they have set is known by its value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import bson
from bson.timestamp import Timestamp
from google.adk.errors.session_not_found_error import SessionNotFoundError
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
    Origin,
    SessionRecord,
    state_fields,
)
from mongo_session_service.codec.waiting_calls import (
    REDACTED,
    WaitingCalls,
    encode_waiting,
)
from mongo_session_service.errors import InvalidInputError, quoted
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    MAX_TITLE,
    display_name,
)
from mongo_session_service.model.records import (
    SHARD_KEY,
    Document,
    ScopedState,
    SessionKey,
)
from mongo_session_service.model.results import Redactable
from mongo_session_service.model.validation import lookup_id
from mongo_session_service.sessions import event_log, queries
from mongo_session_service.sessions.details import change_statements
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.families import find_family
from mongo_session_service.sessions.reads import lock_session, read_head
from mongo_session_service.sessions.trim import remove_trimmed
from mongo_session_service.sessions.waiting_log import refresh_waiting
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Delete, Query, Update
from mongo_session_service.storage.transactions import Transaction

_IDS_AT_ONCE: Final = 1000
_SHOWN: Final = 3

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
    """Some of a session's events, of which a trim may have removed some."""

    session: SessionRecord
    revisions: list[int]

    @property
    def key(self) -> SessionKey:
        return self.session.key

    @property
    def is_trimmed(self) -> bool:
        return self.revisions[0] <= self.session.begins

    @property
    def log(self) -> LogAtRevision:
        """The log from the first of them on."""
        begins = max(self.session.begins, self.revisions[0] - 1)
        return LogAtRevision(self.key, begins, self.session.revision)


async def find_part(
    storage: Storage, key: SessionKey, wanted: Sequence[str] | str
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
        return LoggedPart(head, revisions)
    found: dict[str, int] = {}
    possible = [it for it in dict.fromkeys(wanted) if lookup_id("An event id", it)]
    for some in cut_by_size(possible, _IDS_AT_ONCE):
        by_id = queries.event_by_id(key, {"$in": some})
        query = Query("events", by_id, fields=("event.id",))
        (events,) = await storage.read(query)
        for each in map(EventRecord, head.trimmed(events)):
            found[each.id] = each.revision
    if missing := [quoted(each) for each in wanted if each not in found]:
        more = len(missing) - _SHOWN
        names = ", ".join(missing[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        raise InvalidInputError(f"The session has no event with id {names}.")
    return LoggedPart(head, sorted(found.values()))


async def _find_parts(
    storage: Storage, part: LoggedPart, *, forks: bool
) -> dict[Origin, LoggedPart]:
    """Find what has the same events: a session's forks, and theirs, to any depth.

    In a family also what one is a branch of, and branches that repeat an event. Two
    sessions have in common what both have of an origin of both.
    """
    own = part.session
    parts = {own.origin: part}
    held = await _held_in_family(storage, own)
    of_user = {f"_id.{name}": own.key.id[name] for name in SHARD_KEY}
    visible = {**of_user, **queries.visible_filter(storage.clock.now())}
    names = [*held] if forks else []
    while names:
        some, names = names[:_IDS_AT_ONCE], names[_IDS_AT_ONCE:]
        ids = {"$in": [session_id for session_id, _ in some]}
        related = [{f"{FORKED_FROM}.session_id": ids}, {"_id.session_id": ids}]
        query = Query("sessions", visible | {"$or": related}, without=STATES)
        (found,) = await storage.read(query)
        for other in map(SessionRecord.read, found):
            its = other.held | {other.origin: math.inf}
            both = [min(held[it], its[it]) for it in held.keys() & its]
            shared = max(both, default=0)
            revisions = [it for it in part.revisions if it <= shared]
            if revisions and other.origin not in parts:
                parts[other.origin] = LoggedPart(other, revisions)
                if other.origin not in held:
                    in_family = await _held_in_family(storage, other)
                    names += in_family.keys() - held.keys()
                    new = {it: min(shared, most) for it, most in in_family.items()}
                    held = new | held
    return parts


async def _held_in_family(
    storage: Storage, session: SessionRecord
) -> dict[Origin, float]:
    """How many events a session has of its family's, gone or not, and of itself."""
    family = await find_family(session.family_key, storage)
    shared = {} if family is None else family.shared_with(session.origin)
    return shared | {session.origin: math.inf}


class _Values:
    """Values that events have set, by the prefix and the stored name of their key."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, set[bytes]]] = {"app:": {}, "user:": {}, "": {}}

    def add(self, deltas: Iterable[ScopedState]) -> None:
        for delta in deltas:
            scopes = delta.app, delta.user, delta.session
            for known, scope in zip(self.known.values(), scopes, strict=True):
                for name, value in bson_values.encode_fields(scope).items():
                    if value is not None:
                        known.setdefault(name, set()).add(bson.encode({"": value}))

    def names_in(self, state: Document, prefix: str = "") -> set[str]:
        """Name the keys of a state, as stored, that have one of these values."""
        return {
            name
            for name, values in self.known[prefix].items()
            if bson.encode({"": state.get(name)}) in values
        }


async def _read_deltas(storage: Storage, part: LoggedPart) -> list[ScopedState]:
    """Read the deltas of the events of a part that are not redacted."""
    fields = event_log.outline_fields(storage, event_log.DELTA)
    deltas: list[ScopedState] = []
    for some in cut_by_size(part.revisions, storage.limits.redacted_events):
        (found,) = await storage.read(_query(part, some, fields))
        stored = _decode(storage, part.session.trimmed(found))
        deltas += [each.delta for each, event in stored if not is_redacted(event)]
    return deltas


def _query(
    part: LoggedPart, revisions: Sequence[int], fields: tuple[str, ...] = ()
) -> Query:
    ids = {"_id": {"$in": [part.key.event_id(each) for each in revisions]}}
    return Query("events", ids, order=1, fields=fields)


def _decode(
    storage: Storage, found: Sequence[Document]
) -> list[tuple[EventRecord, Event]]:
    records = map(EventRecord, found)
    return [(each, documents.decode_event(each, storage.hooks)) for each in records]


async def preview(
    storage: Storage, part: LoggedPart, replacement: str, *, forks: bool
) -> Redactable:
    """Count what would be redacted, and name the state that would change."""
    parts = [*(await _find_parts(storage, part, forks=forks)).values()]
    values, count, names = _Values(), 0, set[str]()
    for each in parts:
        deltas = await _read_deltas(storage, each)
        values.add(deltas)
        count += len(deltas)
    for each in parts:
        setters = await _find_setters(storage, each.log)
        query = Query("sessions", {"_id": each.key.id})
        if found := await storage.find_one(query):
            session = SessionRecord.part(each.key, found)
            own = _own_keys(each, session, setters, values)
            owner = Owner.of_session(each.key)
            new = _replacement_update("state", storage, owner, own, replacement)
            left = [it for it in own if session.state[it] != new[STATE_PATH + it]]
            names.update(map(bson_values.unescape_key, left))
    for owner, collection, id_ in _shared_scopes(part.key):
        found = await storage.find_one(Query(collection, {"_id": id_}))
        shared = values.names_in(state_fields(found) or {}, owner.prefix)
        names.update(owner.prefix + bson_values.unescape_key(it) for it in shared)
    return Redactable(count, tuple(sorted(names)))


async def redact(
    storage: Storage,
    part: LoggedPart,
    replacement: str,
    *,
    state: bool,
    forks: bool,
) -> int:
    """Replace the content of events; return how many were not redacted before.

    What is deleted meanwhile is passed over, but not its copies. A fork that is being
    made sees that its source was redacted, and fails; one that was made just before is
    found by another search.
    """
    count, values = 0, _Values()
    done: set[Origin] = set()
    while True:
        parts = await _find_parts(storage, part, forks=forks)
        left = [each for origin, each in parts.items() if origin not in done]
        if not left:
            return count
        for each in left:
            values.add(await _read_deltas(storage, each))
        for scope in _shared_scopes(part.key) if state else ():
            if values.known[scope[0].prefix]:
                shared = partial(_redact_shared, storage, scope, values, replacement)
                await storage.run(shared)
        # Who is interrupted finds the values again in those that come last.
        left.sort(key=lambda each: (each is part, not each.is_trimmed))
        for each in left:
            done.add(each.session.origin)
            redaction = _Redaction(storage, each, values, replacement)
            with suppress(SessionNotFoundError):
                if state:
                    await redaction.redact_state()
                count += await redaction.redact_log()


@dataclass(frozen=True, slots=True)
class _Redaction:
    """The redaction of the events of one session."""

    storage: Storage
    part: LoggedPart
    values: _Values
    """Those that the events, and their copies elsewhere, have set."""
    replacement: str

    async def redact_state(self) -> None:
        """Replace the values in state that the events have set last."""
        setters = await _find_setters(self.storage, self.part.log)
        await self.storage.run(partial(self._redact_values, setters))

    async def _redact_values(self, setters: Mapping[str, int], tx: Transaction) -> None:
        session = await lock_session(self.storage, self.part.session, tx)
        log = self.part.log
        later = log._replace(begins=log.until, until=session.revision)
        latest = {**setters, **await _find_setters(self.storage, later, tx.time)}
        own = _own_keys(self.part, session, latest, self.values)
        if own:
            fields = self._replaced("state", own)
            if ADK_METADATA in own and self.storage.hooks.is_missing:
                fields |= _redacted_title(session, self.replacement)
            change = session.change(fields, is_redaction=True)
            await tx.write(*change_statements(self.storage, change))

    async def redact_log(self) -> int:
        storage, part, count = self.storage, self.part, 0
        for some in cut_by_size(part.revisions, storage.limits.redacted_events):
            count += await storage.run(partial(self._redact_step, some))
        session = part.session
        if session.most_stored > session.event_count:  # a trim was interrupted
            await remove_trimmed(storage, part.key, session.created, session.begins)
        if count and session.waiting(storage.hooks).named:
            await storage.run(partial(refresh_waiting, storage, session))
        return count

    async def _redact_step(self, revisions: Sequence[int], tx: Transaction) -> int:
        storage, key = self.storage, self.part.key
        session = await lock_session(storage, self.part.session, tx)
        found = session.trimmed(await tx.find(_query(self.part, revisions)))
        new: dict[int, Document] = {}
        for stored, event in _decode(storage, found):
            if not is_redacted(event):
                redacted = redacted_event(event, self.replacement)
                append = documents.encode_append(key, redacted, storage.hooks)
                new[stored.revision] = documents.event_document(
                    append, stored.revision, copied_by=stored.copied_by
                )
        before_log = event_log.before_log(key)
        apart = await tx.find_one(before_log) or {}
        # As after a trim, which made it of events.
        own, beside = (
            self._replaced(INITIAL, self.values.names_in(initial))
            for initial in (session.initial, apart.get(INITIAL, {}))
        )
        if not (new or own or beside):
            return 0
        events, partials = new.values(), queries.partials_of_session(key)
        ids = [EventRecord(each).id for each in events]
        await tx.write(
            # Replaced: by this the change feed knows a redaction from all other writes.
            *(Update("events", {"_id": it["_id"]}, it, expected=1) for it in events),
            Delete("partials", {**partials, "event.id": {"$in": ids}}, many=True),
        )
        if beside:
            await tx.write(Update("events", before_log.filter, {"$set": beside}))
        waiting = session.waiting(storage.hooks)
        left = tuple(each for each in waiting.named if each.revision not in new)
        fields = encode_waiting(WaitingCalls(left, waiting.more), key, storage.hooks)
        change = session.change(own, waiting=fields, is_redaction=True)
        await tx.write(*change_statements(storage, change))
        return len(new)

    def _replaced(self, field: str, names: set[str]) -> Document:
        owner = Owner.of_session(self.part.key)
        return _replacement_update(field, self.storage, owner, names, self.replacement)


async def _find_setters(
    storage: Storage, log: LogAtRevision, as_of: Timestamp | None = None
) -> dict[str, int]:
    """Find by which event of a log each key of state, as stored, was set last."""
    latest: dict[str, int] = {}
    async for page in storage.scan(log.deltas_query, as_of=as_of):
        for each in map(EventRecord, page.documents):
            latest |= dict.fromkeys(each.own_delta, each.revision)
    return latest


def _own_keys(
    part: LoggedPart,
    session: SessionRecord,
    setters: Mapping[str, int],
    values: _Values,
) -> set[str]:
    """Name the keys of a session's state that have values of the events of a part.

    Of what was trimmed, its value shows that, if no event that is left has set it.
    """
    state, wanted = session.state, {*part.revisions}
    own = {name for name, last in setters.items() if last in wanted}
    if part.revisions[0] <= session.begins:
        own |= values.names_in(state) - setters.keys()
    return {name for name in own if state.get(name) is not None}


_Scope: TypeAlias = tuple[Owner, str, Any]
"""What a session shares state with: its owner, collection and ``_id``."""


def _shared_scopes(key: SessionKey) -> list[_Scope]:
    user_id = queries.user_state_id(key.app_name, key.user_id)
    return [
        (Owner.of_shared(key.app_name), "app_states", key.app_name),
        (Owner.of_shared(*key[:2]), "user_states", user_id),
    ]


async def _redact_shared(
    storage: Storage,
    scope: _Scope,
    values: _Values,
    replacement: str,
    tx: Transaction,
) -> None:
    """Replace what the state of an app or a user has of the same values."""
    owner, collection, id_ = scope
    # Written first, so that it is what it is until the transaction has ended.
    writing = Update(collection, {"_id": id_}, {"$inc": {"revision": 1}})
    state = state_fields(await tx.find_and_update(writing)) or {}
    if names := values.names_in(state, owner.prefix):
        change = _replacement_update("state", storage, owner, names, replacement)
        await tx.write(Update(collection, {"_id": id_}, {"$set": change}))


def _redacted_title(session: SessionRecord, replacement: str) -> Document:
    """Replace a title that an event has set."""
    named = {ADK_METADATA: session.state.get(ADK_METADATA)}
    is_named = display_name(bson_values.decode_fields(named)) == session.details.title
    return {"title": replacement[:MAX_TITLE]} if is_named else {}


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
