"""Comparison of a source's sessions with those of a target, for import and verify.

Both are compared as an export has them, line by line: a session's line field by field,
and its events. What the source does not record does not differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp

from mongo_session_service.codec.bson_values import is_same_value
from mongo_session_service.codec.documents import (
    decode_state,
    event_fields,
)
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.codec.record import (
    FORKED_FROM,
    INITIAL,
    LOG_BEGINS,
    SessionRecord,
    is_placeholder,
    state_fields,
)
from mongo_session_service.codec.waiting_calls import (
    MAX_NAMED,
    WAITING,
    WAITING_FIELDS,
    decode_waiting,
    waiting_calls,
)
from mongo_session_service.errors import StorageError
from mongo_session_service.model.metadata import (
    DETAILS,
    display_name,
    with_title,
)
from mongo_session_service.model.records import (
    Append,
    Document,
    SessionKey,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.deletion import remove_expired
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.waiting_log import pending_calls_at
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.transfer.batches import (
    Batch,
    EncodedSession,
    EncodedState,
    encoded_batches,
)
from mongo_session_service.transfer.export_file import session_fields
from mongo_session_service.transfer.sources import (
    EVERYTHING,
    Problem,
    Selection,
    SessionHeader,
    Source,
    StoreSource,
    add_initial_states,
    joined_documents,
    session_text,
    stored_header,
)

_ROUNDING: Final = 2e-6
"""Seconds by which equal times may differ."""


class ComparisonResult(Enum):
    """Result of comparing a session in the target with the one to import.

    All but a conflict have the name of the field of ``Moved`` that counts them.
    """

    NEW = "new"
    SAME = "unchanged"
    BEHIND = "caught_up"
    """The target has its first events."""
    AHEAD = "ahead"
    """The target has all of it, and what was appended there since."""
    CONFLICT = "conflict"


class Stored(NamedTuple):
    """What a target has of a session, or of a part of one."""

    document: Document | None = None
    """The one under its id: a session's or a reservation's."""
    header: SessionHeader | Problem | None = None
    """As an export has it; None without a session."""
    events: Sequence[Document] = ()
    """Those from the part's first on, at most one more than it has; behind the last
    part of a session also those after the session's last revision."""
    waits_as_logged: bool = True
    """Whether it names the calls that wait by its log."""


class SessionPlan(NamedTuple):
    """A session of the source, or a part of one, beside what the target has of it."""

    incoming: EncodedSession
    found: Document | None
    """The target's document under its id: a session or a reservation."""
    comparison: ComparisonResult
    differences: Sequence[str]
    """What verification reports."""
    matched: int
    """Events of this part that are stored correctly, counted from its first."""
    stored: int
    """Events that are stored at its revisions, correct or not."""

    @property
    def conflict(self) -> Problem:
        """Problem that keeps the source's session from being stored."""
        reasons = [*self.differences]
        if self.incoming.key != self.incoming.header.key:
            reasons.append("its id is stored without its white space")
        return Problem(session_text(self.incoming.header.key), "; ".join(reasons))

    @property
    def is_lacking(self) -> bool:
        return self.comparison in {ComparisonResult.NEW, ComparisonResult.BEHIND}


class StatePlan(NamedTuple):
    """State of the source beside what the target holds of it."""

    state: EncodedState
    comparison: ComparisonResult
    differs: bool
    revision: int | None
    """The target's; None if it has none."""
    is_noted: bool
    """Whether an import has noted that it brought the target to that revision."""

    @property
    def conflict(self) -> Problem:
        """Problem that keeps the source's state from being stored."""
        return Problem(str(self.state.shared), "it was changed in the target")

    @property
    def lacks_note(self) -> bool:
        """Whether an import was killed between the state and its note."""
        return self.comparison is ComparisonResult.SAME and not self.is_noted

    @property
    def is_lacking(self) -> bool:
        """Whether there is something to write."""
        is_there = self.comparison in {ComparisonResult.SAME, ComparisonResult.AHEAD}
        return not is_there or self.lacks_note


def compare_session(
    incoming: EncodedSession, stored: Stored, hooks: Hooks
) -> SessionPlan:
    """Compare a session, or a part of one, with what the target has, as exports do.

    A part before the last is behind if the target has its beginning.
    """
    matched = _count_matching(incoming, stored.events, hooks)
    there = stored.header
    end = incoming.offset + matched

    def plan(comparison: ComparisonResult, *differences: str) -> SessionPlan:
        document, events = stored.document, len(stored.events)
        return SessionPlan(incoming, document, comparison, differences, matched, events)

    if there is None:
        lacks = ["the target does not have it"] if incoming.is_last else []
        return plan(ComparisonResult.NEW, *lacks)
    if isinstance(there, Problem):
        return plan(ComparisonResult.CONFLICT, there.reason)
    differing = _differing_fields(incoming.as_loaded(hooks), there)
    if not incoming.is_last:
        differing = [each for each in differing if each == LOG_BEGINS]
    revision = there.revision or 0
    damage = _damage(incoming, stored, max(revision, end))
    differences = [*(f"{each} differs" for each in differing), *damage]
    if end < min(revision, incoming.revision):
        event_id = incoming.appends[matched].event_id
        event = f"event {end + 1} ({event_id!r}) differs"
        return plan(ComparisonResult.CONFLICT, event, *differences)
    # Without events, two sessions are one if they were created at the same time.
    created = "state" if incoming.header.create_time is None else "create_time"
    is_empty = revision == there.log_begins
    is_other = LOG_BEGINS in differing or (is_empty and created in differing)
    if is_other or damage:
        result = ComparisonResult.CONFLICT
    elif not incoming.is_last or revision < incoming.revision:
        result = ComparisonResult.BEHIND
    elif revision > incoming.revision:
        result = ComparisonResult.AHEAD
    else:
        result = ComparisonResult.CONFLICT if differing else ComparisonResult.SAME
    return plan(result, *differences)


def _damage(incoming: EncodedSession, stored: Stored, end: int) -> list[str]:
    """What a stored session has that contradicts its log, which ends there."""
    damage = [] if stored.waits_as_logged else ["what waits differs from its events"]
    last = EventRecord(stored.events[-1]).revision if stored.events else end
    if incoming.is_last and not (isinstance(last, int) and last <= end):
        damage.append(f"event {last!r} is behind its last")
    return damage


def _count_matching(
    incoming: EncodedSession, stored: Sequence[Document], hooks: Hooks
) -> int:
    """Count the events of a part that are stored correctly, from its first on."""
    pairs = zip(incoming.documents(), incoming.appends, stored, strict=False)
    same = takewhile(lambda each: _is_same_event(*each, incoming, hooks), pairs)
    return sum(1 for _ in same)


def _is_same_event(
    here: Document, append: Append, there: Document, of: EncodedSession, hooks: Hooks
) -> bool:
    """Whether two events have one line, in any order of fields.

    If the second names calls that wait, they are the log's.
    """
    if not is_same_value(here["_id"], there["_id"]):
        return False
    try:
        one, other = event_fields([here, there], hooks)
        calls = {*decode_waiting(of.key, there, hooks).named}
    except StorageError:
        return False
    if WAITING in there and len(calls) < MAX_NAMED:
        own = waiting_calls([(EventRecord(there).revision, append.waiting)])
        others = {each for each in calls if each.revision not in of.redacted}
        if not {*own} <= calls or not others <= of.asked:
            return False
    return is_same_value(one, other)


def _differing_fields(one: SessionHeader, other: SessionHeader) -> list[str]:
    """Name the fields of two sessions' lines that differ, and their number of events.

    What the first does not record does not differ.
    """
    here, there = (
        {"revision": each.revision, **session_fields(each)} for each in (one, other)
    )
    names = [display_name(each["state"]) for each in (here, there)]
    for line, name in zip((here, there), names, strict=True):
        # A title may be stored as the display name; it is compared as one.
        if name is not None:
            line.setdefault("title", name)
        if any(names):
            line["state"] = with_title(line["state"], "-")
    unknown = {"create_time", INITIAL, "write_time"}
    unknown = {each for each in unknown if here.get(each) is None}
    if one.details is None:
        unknown |= {*DETAILS, FORKED_FROM} - ({"title"} & here.keys())
    return [
        name
        for name in {**here, **there}
        if name not in unknown and not _is_same(here.get(name), there.get(name), name)
    ]


def _is_same(one: Any, other: Any, name: str) -> bool:
    if name.endswith("_time") and isinstance(one, float) and isinstance(other, float):
        # Databases keep microseconds, and events a little more.
        return abs(one - other) <= _ROUNDING
    return is_same_value(one, other)


def compare_state(
    wanted: EncodedState,
    stored: Document | None,
    note: Document | None,
    hooks: Hooks,
) -> StatePlan:
    """Compare the state of an app or user with what the target holds.

    The note is the last import's, with the revision that it wrote, and a digest.
    """
    owner = wanted.shared.owner
    here = decode_state(wanted.state, owner, hooks)
    there = None
    with suppress(StorageError):
        there = decode_state(state_fields(stored), owner, hooks)
    revision = stored.get("revision") if stored else None
    is_noted = note is not None and note["revision"] == revision
    differs = not is_same_value(here, there)
    if stored is None:
        result = ComparisonResult.NEW
    elif not differs:
        result = ComparisonResult.SAME
    elif there is not None and is_noted:
        result = ComparisonResult.BEHIND
    elif note and wanted.digest and note.get("digest") == wanted.digest:
        result = ComparisonResult.AHEAD
    else:
        result = ComparisonResult.CONFLICT
    return StatePlan(wanted, result, differs, revision, is_noted)


class StoreTarget:
    """The sessions of a database, beside which those of a source are compared."""

    def __init__(self, storage: Storage, *, is_read_only: bool) -> None:
        self._storage = storage
        self.hooks = storage.hooks
        self._is_read_only = is_read_only

    async def plan_sessions(
        self, sessions: Sequence[EncodedSession]
    ) -> list[SessionPlan]:
        """Compare sessions, or parts of them, with those that are stored."""
        found, as_of = await self._load_sessions(each.key for each in sessions)
        headers = {
            key: stored_header(each, self.hooks)
            for key, each in found.items()
            if not is_placeholder(each)
        }
        events = await self._load_events(sessions, headers, as_of)
        plans = []
        for each in sessions:
            document, header = found.get(each.key), headers.get(each.key)
            waits = await self._waits_as_logged(each, document)
            stored = Stored(document, header, events.get(each.key, []), waits)
            plans.append(compare_session(each, stored, self.hooks))
        return plans

    async def _load_sessions(
        self, keys: Iterable[SessionKey]
    ) -> tuple[dict[SessionKey, Document], Timestamp]:
        """Load sessions, with initial states, and reservations; remove expired ones."""
        wanted = Query("sessions", {"_id": {"$in": [key.id for key in keys]}})
        now = self._storage.clock.now()
        found: dict[SessionKey, Document] = {}
        (stored,) = answer = await self._storage.read(wanted)
        for each in stored:
            key = SessionKey(**each["_id"])
            has_expired = not SessionRecord.part(key, each).is_visible(now)
            if has_expired and not self._is_read_only:
                has_expired = await remove_expired(self._storage, key)
            if not has_expired:
                found[key] = each
        sessions = [each for each in found.values() if not is_placeholder(each)]
        await add_initial_states(self._storage, sessions)
        for each in await joined_documents(self._storage, sessions):
            found[SessionKey(**each["_id"])] = each
        return found, answer.as_of

    async def _load_events(
        self,
        parts: Sequence[EncodedSession],
        headers: Mapping[SessionKey, SessionHeader | Problem],
        as_of: Timestamp,
    ) -> dict[SessionKey, list[Document]]:
        """Load the events at these parts' revisions, and more of them, in order."""
        found: dict[SessionKey, list[Document]] = {}
        ranges = [
            queries.events_after(part.key, part.offset, part.revision + 1)
            for part in parts
        ]
        ranges += [
            queries.events_after(part.key, header.revision or 0)
            for part in parts
            if part.is_last
            and isinstance(header := headers.get(part.key), SessionHeader)
        ]
        if ranges:
            wanted = Query("events", queries.any_of(ranges), order=1)
            (events,) = await self._storage.read(wanted, as_of=as_of)
            for event in events:
                found.setdefault(EventRecord(event).key, []).append(event)
        return found

    async def _waits_as_logged(
        self, part: EncodedSession, document: Document | None
    ) -> bool:
        """Whether a session, if this is its last part, names what waits by its log."""
        asks = part.asked or (document or {}).keys() & {*WAITING_FIELDS}
        if document is None or not (part.is_last and asks):
            return True
        try:
            session = SessionRecord.read(document)
            log = LogAtRevision.of(session)
            logged = await pending_calls_at(self._storage, log)
            return session.waiting(self.hooks) == logged
        except StorageError:
            return False

    async def plan_states(self, states: Sequence[EncodedState]) -> list[StatePlan]:
        """Compare shared states with those that are stored."""
        ids = [id_ for each in states for id_ in (each.id, {"of": each.id})]
        wanted = {"_id": {"$in": ids}}
        names = ("app_states", "user_states", "imports")
        found = await self._storage.read(*(Query(it, wanted) for it in names))
        stored = {repr(it["_id"]): it for documents in found for it in documents}
        return [
            compare_state(
                each,
                stored.get(repr(each.id)),
                stored.get(repr({"of": each.id})),
                self.hooks,
            )
            for each in states
        ]


@dataclass(slots=True)
class Verified:
    """The result of a verification."""

    sessions: int = 0
    events: int = 0
    states: int = 0
    """Shared states that are not empty."""
    differences: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether there are no differences."""
        return self.differences == 0


async def verify(
    source: Source,
    target: StoreSource,
    selection: Selection = EVERYTHING,
    *,
    is_exact: bool = False,
    on_difference: Callable[[Problem], None] = lambda _: None,
    on_progress: Callable[[Verified], None] = lambda _: None,
) -> Verified:
    """Compare the selected sessions of an open source with an open target.

    The comparison is the one by which an import decides what to write. Here everything
    that is not the same is reported, and nothing is written.

    Args:
        source: The expected sessions.
        target: The actual sessions.
        selection: Which sessions to compare.
        is_exact: Whether sessions that only the target has are differences too. This
            takes about a hundred bytes of memory for each session.
        on_difference: Called with each difference: a session, and its event or the part
            of its document that differs. It never quotes a value.
        on_progress: Called after each batch.
    """
    verified = Verified()

    def report(problem: Problem) -> None:
        verified.differences += 1
        on_difference(problem)

    stored = StoreTarget(target.storage, is_read_only=True)
    compared: set[int] = set()  # hashed keys, which take little memory
    batches = encoded_batches(source, selection, stored.hooks)
    async with aclosing(batches):
        async for batch in batches:
            verified.sessions += batch.sessions_read
            verified.events += batch.events_read
            verified.states += batch.states_read
            for problem in await _batch_differences(batch, stored):
                report(problem)
            if is_exact:
                compared.update(map(hash, batch.sessions))
            on_progress(verified)
    if is_exact:
        async for each in target.keys(selection):
            if isinstance(each, Problem):
                report(each)
            elif hash(each) not in compared:
                report(Problem(session_text(each), "only the target has it"))
    return verified


async def _batch_differences(batch: Batch, stored: StoreTarget) -> list[Problem]:
    states = await stored.plan_states([*batch.states.values()])
    others = [str(each.state.shared) for each in states if each.differs]
    problems = [*batch.problems, *batch.conflicts]
    problems += (Problem(each, "it differs") for each in others)
    for session in await stored.plan_sessions([*batch.sessions.values()]):
        where = session_text(session.incoming.key)
        problems += (Problem(where, each) for each in session.differences)
    return problems
