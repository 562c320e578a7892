"""Event log: a session's events, its rewinds, and its earlier states.

Logs, of a session or of a user, are read in pages of one point in time each.

No cursor is left open between two pages, so a reader may be slow, or stop early. With
each page the session is read, so that a reader notices one that was deleted or
recreated in between.

A rewind undoes a part of a log. Ids of invocations have no index, whose cost each
append would pay: the server looks through the session's log. Where a hook has sealed
the events, pages are decoded.

Earlier states are folded from the initial state and the log, whose fields stay in their
stored form.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.codec import documents
from mongo_session_service.codec.bson_values import encode_value
from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.codec.record import STATES, SessionRecord, is_placeholder
from mongo_session_service.codec.waiting_calls import REDACTED
from mongo_session_service.errors import (
    InvalidInputError,
    TrimmedError,
    session_not_found_error,
    stale_session_error,
)
from mongo_session_service.model.metadata import ADK_METADATA
from mongo_session_service.model.records import (
    Document,
    SessionKey,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.families import join_one
from mongo_session_service.sessions.reads import (
    found_record,
    head_query,
    read_head,
)
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.tasks import in_slices

INVOCATION: Final = "event.invocation_id"
"""The field of an event, unless a hook has sealed it."""
_REWIND: Final = "event.actions.rewind_before_invocation_id"

DELTA: Final = "event.actions.state_delta"
"""The field of an event that has its delta to state."""
_OUTLINE: Final = (
    *("wrapped", "hooked", INVOCATION, _REWIND, f"event.custom_metadata.{REDACTED}"),
    *("event.id", "event.timestamp", "event.author", "event.branch"),
    *("event.error_code", "event.long_running_tool_ids"),
    *(
        f"event.content.parts.{kind}.{name}"
        for kind in ("function_call", "function_response")
        for name in ("id", "name")
    ),
)
"""The fields by which calls, rewinds and invocations are known."""
_DELTAS_TOGETHER: Final = 2000
"""Events whose deltas are read at once."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """The events of a session to read, and the order in which to read them."""

    after: int = 0
    """The revision before the first of them."""
    until: int | None = None
    """The revision of the last of them; None for no end."""
    newest_first: bool = False
    limit: int | None = None
    """How many events are wanted; None for all."""
    undone: Sequence[tuple[int, int]] = ()
    """The first and the last revision of each part that is passed over."""
    created: float | None = None
    """When the session was created, if it is not to be another one with its id."""


async def read_log(
    storage: Storage,
    key: SessionKey,
    wanted: LogRange,
    *,
    where: Document | None = None,
) -> AsyncGenerator[list[EventRecord]]:
    """Read the events of a session, page by page; a page may be empty.

    They have to match ``where`` as well. Each page is read as of a time of its own. If
    the session is not stored (any more), it raises ``SessionNotFoundError``.
    """
    left, created = wanted.limit, wanted.created
    if left == 0:
        return
    size = storage.limits.page_events
    if left is not None and not wanted.undone:
        size = min(size, left)
    log = queries.events_after(key, wanted.after, wanted.until) | (where or {})
    query = Query("events", log, order=-1 if wanted.newest_first else 1, limit=size)
    async for page in storage.scan(query, beside=[head_query(key)]):
        head = found_record(storage, key, *page.beside)
        if created not in {None, head.created}:
            raise session_not_found_error(key.session_id)
        created = head.created
        left_by_trim = head.trimmed(page.documents)
        found = map(EventRecord, left_by_trim)
        kept = [it for it in found if not is_within(wanted.undone, it.revision)]
        yield kept[:left]
        if left is not None and (left := left - len(kept)) <= 0:
            return
        if wanted.newest_first and len(left_by_trim) < len(page.documents):
            return


async def read_user_log(
    storage: Storage, app_name: str, user_id: str
) -> AsyncGenerator[list[EventRecord]]:
    """Read the events of a user's sessions, in pages, by session id and revision.

    The events of a session that is deleted meanwhile end there; of one that was
    recreated, none come.
    """
    key: SessionKey | None = None
    created: float | None = None
    log = Query("events", queries.all_sessions(app_name, user_id), order=1)
    async for page in storage.scan(log):
        if not page.documents:
            return
        found = [*map(EventRecord, page.documents)]
        ids = [key.id for key in sorted({each.key for each in found})]
        query = Query("sessions", {"_id": {"$in": ids}}, without=STATES)
        (sessions,) = await storage.read(query, as_of=page.as_of)
        now = storage.clock.now()
        stored = [each for each in sessions if not is_placeholder(each)]
        heads = {
            each.key: each
            for each in SessionRecord.read_all(stored)
            if each.is_visible(now)
        }
        begun = heads.get(key) if key else None
        if begun and begun.created != created:
            del heads[begun.key]  # the rest is of another session with this id
        yield [each for each in found if _is_logged(each, heads.get(each.key))]
        if (last := found[-1].key) != key:
            key, head = last, heads.get(last)
            created = head.created if head else None


def _is_logged(event: EventRecord, head: SessionRecord | None) -> bool:
    """True if a document is an event of a session that is shown."""
    return head is not None and event.revision > head.begins and event.is_event


def undone_parts(
    rewinds: Iterable[tuple[int, str]], firsts: Mapping[str, int]
) -> list[tuple[int, int]]:
    """Find the parts of a log that rewinds have undone, as ADK does; the latest first.

    The latest rewind counts first. It undoes itself and what follows the first event of
    its invocation; a rewind that is undone has no effect. One to an invocation that is
    not there, or comes later, undoes itself alone. Given are revisions with the
    invocations before which they rewind, and where these begin.
    """
    parts: list[tuple[int, int]] = []
    for revision, invocation_id in sorted(rewinds, reverse=True):
        if parts and revision >= parts[-1][0]:
            continue
        first = firsts.get(invocation_id, revision)
        parts.append((min(first, revision), revision))
    return parts


def is_within(parts: Iterable[tuple[int, int]], revision: int) -> bool:
    return any(first <= revision <= last for first, last in parts)


class LogAtRevision(NamedTuple):
    key: SessionKey
    begins: int
    """The revision after which it begins."""
    until: int
    """The last revision."""

    @classmethod
    def of(cls, session: SessionRecord) -> LogAtRevision:
        return cls(session.key, session.begins, session.revision)

    @property
    def where(self) -> Document:
        return queries.events_after(self.key, self.begins, self.until)

    @property
    def deltas_query(self) -> Query:
        """The query for the deltas of its events to state."""
        return Query("events", self.where, limit=_DELTAS_TOGETHER, fields=(DELTA,))


def is_sealed(storage: Storage) -> bool:
    """True if events must be decoded here to see invocations and rewinds."""
    return storage.hooks.after_load is not None


async def select_events(
    storage: Storage,
    key: SessionKey,
    wanted: LogRange,
    invocation_id: str | None,
    *,
    rewound: bool,
) -> AsyncGenerator[list[EventRecord]]:
    """Read a log in pages, of an invocation, or without what rewinds have undone.

    Events that are sealed may be of other invocations. Memory grows with the number of
    rewinds.
    """
    if not rewound:
        head = await read_head(storage, key)
        created, until = head.created, head.revision
        if wanted.created not in {None, created}:
            raise session_not_found_error(key.session_id)
        undone = await _find_undone(storage, LogAtRevision.of(head))
        until = until if wanted.until is None else min(until, wanted.until)
        wanted = replace(wanted, until=until, undone=undone, created=created)
    where = None
    if invocation_id is not None and is_sealed(storage):
        wanted = replace(wanted, limit=None)
    elif invocation_id is not None:
        where = {INVOCATION: encode_value(invocation_id)}
    async for page in read_log(storage, key, wanted, where=where):
        yield page


async def _find_undone(storage: Storage, log: LogAtRevision) -> list[tuple[int, int]]:
    outlines = read_outlines(storage, log, {_REWIND: {"$exists": 1}})
    rewinds = [
        (revision, target)
        async for revision, event in outlines
        if (target := event.actions.rewind_before_invocation_id)
    ]
    targets = {invocation_id for _, invocation_id in rewinds}
    firsts = await find_firsts(storage, log, targets) if targets else {}
    return undone_parts(rewinds, firsts)


def outline_fields(storage: Storage, *more: str) -> tuple[str, ...]:
    """The fields to read of events whose content is not needed; all if it is sealed."""
    return () if is_sealed(storage) else (*_OUTLINE, *more)


async def read_outlines(
    storage: Storage,
    log: LogAtRevision,
    where: Document | None = None,
    *,
    more: tuple[str, ...] = (),
    as_of: Timestamp | None = None,
) -> AsyncGenerator[tuple[int, Event]]:
    """Read the events of a log without their content, with their revisions.

    They have the fields ``more`` beside those that calls, rewinds and invocations are
    known by, and match ``where`` as well. Those that are sealed are read as they are.
    """
    wanted = log.where if is_sealed(storage) else log.where | (where or {})
    fields = outline_fields(storage, *more)
    query = Query("events", wanted, order=1, fields=fields)
    async for page in storage.scan(query, as_of=as_of):
        for each in map(EventRecord, page.documents):
            yield each.revision, documents.decode_event(each, storage.hooks)


async def find_firsts(
    storage: Storage,
    log: LogAtRevision,
    invocation_ids: set[str],
    as_of: Timestamp | None = None,
) -> dict[str, int]:
    firsts: dict[str, int] = {}
    wanted = {INVOCATION: {"$in": [encode_value(each) for each in invocation_ids]}}
    outlines = read_outlines(storage, log, wanted, as_of=as_of)
    async for revision, event in outlines:
        if event.invocation_id in invocation_ids:
            firsts.setdefault(event.invocation_id, revision)
            if len(firsts) == len(invocation_ids):
                break
    return firsts


# --- Earlier states ---


def apply_deltas(initial: Document, deltas: Iterable[Document]) -> Document:
    state = {**initial}
    for delta in deltas:
        state |= delta
    return state


def infer_initial_state(state: Document, log: Iterable[Iterable[str]]) -> Document:
    """Infer what is known of an unrecorded initial state: keys never set since.

    Of the log, only the names of the keys that each event has set are needed.
    """
    changed = {name for delta in log for name in delta}
    return {name: value for name, value in state.items() if name not in changed}


def restore_initial_state(
    delta: Mapping[str, Any],
    initial: Mapping[str, Any],
    deltas: Sequence[tuple[str, dict[str, Any]]],
    invocation_id: str,
) -> dict[str, Any]:
    """Add the initial state, which ADK does not know, to the delta of a rewind.

    ADK folds the events before an invocation, and empties every other key. A key that
    these events have not set gets its initial value back. A title that was set without
    an event, which ADK takes for state, stays. Given are the invocation and the delta
    of each event.
    """
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


async def read_with_initial_state(storage: Storage, key: SessionKey) -> SessionRecord:
    """Read a session with its initial state, wherever that is stored.

    A session that is not stored is an error.
    """
    sessions, apart = await storage.read(*_queries(key))
    found = found_record(storage, key, sessions).with_initial(apart)
    return await join_one(found, storage)


def _queries(key: SessionKey) -> tuple[Query, Query]:
    return Query("sessions", {"_id": key.id}), before_log(key)


def before_log(key: SessionKey) -> Query:
    """The query for the document before a log, which may have the initial state."""
    return Query("events", {"_id": key.event_id(0)})


async def read_session_at(
    storage: Storage,
    key: SessionKey,
    revision: int,
    created: float | None = None,
    config: GetSessionConfig | None = None,
) -> StoredSession | None:
    """Read a session as it was at a revision, with those of its events asked for then.

    None if it is not stored, or was created at another time than is given.
    """
    last = Query("events", {"_id": key.event_id(revision)}, fields=("event.timestamp",))
    found = await storage.read(
        *_queries(key),
        *queries.shared_state_queries(key.app_name, key.user_id),
        last,
        *queries.event_queries(key, config, until=revision),
    )
    sessions, apart, apps, users, ends, *logs = found
    head, hooks = SessionRecord.find(sessions, storage.clock.now()), storage.hooks
    if head is None or created not in {None, head.created}:
        return None
    revision = logged_revision(head, revision)
    head, updated = head.with_initial(apart), head.created
    if revision == head.revision:
        updated = head.updated
    elif ends and revision > head.begins:
        updated = EventRecord(ends[0]).timestamp
    state = await state_at(storage, head, revision, as_of=found.as_of)
    log = head.trimmed([*chain(*logs)][::-1])
    decoding = (documents.decode_event(EventRecord(each), hooks) for each in log)
    events = await in_slices(decoding)
    past = head.as_of(revision, updated, state)
    shown = documents.show_session(past, chain(apps, users), hooks)
    return shown._replace(events=events)


async def state_at(
    storage: Storage,
    session: SessionRecord,
    revision: int,
    *,
    as_of: Timestamp | None = None,
) -> Document:
    """Compute the fields of the state of a session, with its initial state, then."""
    state: Document = {**session.initial}
    log = LogAtRevision.of(session)._replace(until=revision)
    async for page in storage.scan(log.deltas_query, as_of=as_of):
        state = apply_deltas(
            state, (EventRecord(each).own_delta for each in page.documents)
        )
    return state


def logged_revision(session: SessionRecord, revision: int | None) -> int:
    """Check a revision of a stored session; return its latest, if none is given.

    One that it has not reached, or that was trimmed, is refused.
    """
    head, begins = session.revision, session.begins
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
    invocation_id = event.actions.rewind_before_invocation_id or ""
    sessions, apart = found = await storage.read(*_queries(key))
    session = found_record(storage, key, sessions).with_initial(apart)
    log = LogAtRevision.of(session)
    outlines = read_outlines(storage, log, more=(DELTA,), as_of=found.as_of)
    deltas = [
        (each.invocation_id, each.actions.state_delta) async for _, each in outlines
    ]
    if log.begins and all(each != invocation_id for each, _ in deltas):
        raise stale_session_error(key.session_id)
    owner = Owner.of_session(key)
    initial = documents.decode_state(session.initial, owner, storage.hooks)
    delta = restore_initial_state(
        event.actions.state_delta, initial, deltas, invocation_id
    )
    actions = event.actions.model_copy(update={"state_delta": delta})
    return event.model_copy(update={"actions": actions})
