"""Comparison of a source's sessions with those of a target, for import and verify."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from mongo_session_service.codec import documents
from mongo_session_service.codec.bson_values import decode_value, is_same_value
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.codec.record import (
    INITIAL,
    LOG_BEGINS,
    REDACTIONS,
    SessionRecord,
    is_placeholder,
    log_begins,
    unknown_needs,
)
from mongo_session_service.errors import InvalidInputError, StorageError
from mongo_session_service.model.metadata import (
    BRANCH,
    DETAILS,
    NO_DETAILS,
    display_name,
    with_title,
)
from mongo_session_service.model.records import (
    Append,
    Document,
    ScopedState,
    SessionKey,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.deletion import remove_expired
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.transfer.batches import (
    Batch,
    EncodedSession,
    EncodedState,
    encoded_batches,
)
from mongo_session_service.transfer.sources import (
    EVERYTHING,
    Problem,
    Selection,
    ServiceSource,
    Source,
    StoreSource,
    add_initial_states,
    key_of_event,
    session_text,
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
    """The target has all of it, and what was appended or changed there since."""
    CONFLICT = "conflict"


class SessionPlan(NamedTuple):
    """A session of the source, or a part of one, beside what the target holds of it."""

    incoming: EncodedSession
    found: Document | None
    """The target's document under its id: a session or a reservation."""
    comparison: ComparisonResult
    matched: int
    """Events of this part that are stored correctly, counted from its first."""
    stored: int
    """Events that are stored at its revisions, correct or not."""
    differing: tuple[str, ...] = ()
    """What differs: the first such event, and parts of the session's document."""

    @property
    def differences(self) -> list[str]:
        """What verification reports."""
        if self.comparison is not ComparisonResult.NEW:
            return [f"{each} differs" for each in self.differing]
        return ["the target does not have it"] if self.incoming.is_last else []

    @property
    def conflict(self) -> Problem:
        """Problem that keeps the source's session from being stored."""
        reasons = self.differences
        if self.incoming.is_renamed:
            reasons.append("its id is stored without its white space")
        if self._lasting:
            reasons.append(f"the target's {self._lasting}, so it is never replaced")
        return Problem(session_text(self.incoming.header.key), "; ".join(reasons))

    @property
    def may_replace(self) -> bool:
        """Whether it may replace what differs.

        It may not if it has another one's id, or would bring back what was redacted, or
        remove what a newer release has stored.
        """
        return not (self.incoming.is_renamed or self._lasting)

    @property
    def _lasting(self) -> str:
        """What the target's has that an import would destroy; empty if it has none."""
        found = self.found or {}
        if unknown_needs(found):
            return "is a newer release's"
        return "has redacted events" if REDACTIONS in found else ""

    @property
    def is_lacking(self) -> bool:
        """Whether there is something to write."""
        return self.comparison not in {ComparisonResult.SAME, ComparisonResult.AHEAD}


class StatePlan(NamedTuple):
    """State of the source beside what the target holds of it."""

    state: EncodedState
    comparison: ComparisonResult
    revision: int | None
    """The target's; None if it has none."""
    is_noted: bool
    """Whether an import has noted that it brought the target to that revision."""
    differs: bool = True
    may_replace: bool = True

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
        is_there = self.comparison in {ComparisonResult.SAME, ComparisonResult.AHEAD}
        return not is_there or self.lacks_note


def compare_session(
    incoming: EncodedSession,
    found: Document | None,
    stored: Sequence[Document],
    hooks: Hooks,
) -> SessionPlan:
    """Compare a session, or a part of one, with what the target holds.

    That is the document under its id, and the events from the part's first on, at most
    one more than it has. Content is compared as it is after loading.
    """
    matched = _count_matching(incoming, stored, hooks)
    plan = SessionPlan(incoming, found, ComparisonResult.NEW, matched, len(stored))
    if found is None or is_placeholder(found):
        return plan
    plan = plan._replace(comparison=ComparisonResult.CONFLICT)
    try:
        SessionRecord.read(found)
        differing = _differing_parts(incoming, found, hooks)
    except StorageError:
        return plan._replace(differing=("its document",))
    if incoming.offset + matched < min(found["revision"], incoming.revision):
        event_id = incoming.appends[matched].event.get("id")
        event = f"event {incoming.offset + matched + 1} ({event_id!r})"
        return plan._replace(differing=(event, *differing))
    comparison = _classify(incoming, found, {*differing})
    return plan._replace(comparison=comparison, differing=differing)


def _count_matching(
    incoming: EncodedSession, stored: Sequence[Document], hooks: Hooks
) -> int:
    """Count the events of a part that are stored correctly, from its first on."""
    for index, append in enumerate(incoming.appends):
        if index == len(stored) or not _is_already_stored(
            append, incoming.offset + index + 1, stored[index], hooks
        ):
            return index
    return len(incoming.appends)


def _is_already_stored(
    append: Append, revision: int, stored: Document, hooks: Hooks
) -> bool:
    """Whether an event is stored at its revision, in any order of fields."""
    id_ = stored["_id"]
    is_next = id_ == append.key.event_id(revision) and isinstance(id_["revision"], int)
    if not is_next:
        return False
    event = stored.get("event")
    if not isinstance(event, dict):
        return False
    if documents.is_same_event(append, event, hooks):
        return True
    try:
        one, other = (
            documents.loaded_fields(each, append.key, hooks)
            for each in (append.event, event)
        )
        return is_same_value(decode_value(one), decode_value(other))
    except (StorageError, InvalidInputError):
        return False


def _classify(
    incoming: EncodedSession, session: Document, differing: set[str]
) -> ComparisonResult:
    """Judge two sessions, of which these parts differ, but no events."""
    revision = session["revision"]
    if LOG_BEGINS in differing:
        return ComparisonResult.CONFLICT
    if not incoming.is_last:
        return ComparisonResult.BEHIND
    if revision == log_begins(session):
        # Without events, two sessions are one if they were created at the same time.
        known = "state" if incoming.header.create_time is None else "create_time"
        if known in differing:
            return ComparisonResult.CONFLICT
    if revision != incoming.revision:
        is_ahead = revision > incoming.revision
        return ComparisonResult.AHEAD if is_ahead else ComparisonResult.BEHIND
    # A title alone, without other details, may have been given here.
    known_details = DETAILS if incoming.details else ()
    if differing == {BRANCH}:  # another version was shown since
        return ComparisonResult.BEHIND
    if differing & {"state", "update_time", *known_details}:
        is_newer = incoming.header.update_time > session["update_time"]
        return ComparisonResult.BEHIND if is_newer else ComparisonResult.CONFLICT
    return ComparisonResult.CONFLICT if INITIAL in differing else ComparisonResult.SAME


def _differing_parts(
    incoming: EncodedSession, session: Document, hooks: Hooks
) -> tuple[str, ...]:
    """Name what differs in the documents; before the last part, only the log's begin.

    What the source does not record does not differ.
    """
    header = incoming.header
    if not incoming.is_last:
        is_same = is_same_value(header.log_begins, log_begins(session))
        return () if is_same else (LOG_BEGINS,)
    document = {
        LOG_BEGINS: header.log_begins,
        "revision": incoming.revision,
        **(incoming.details or NO_DETAILS).to_document(),
        "state": incoming.state,
        INITIAL: incoming.initial or {},
        "update_time": header.update_time,
        "create_time": header.create_time,
    }
    here, there = (
        _with_decoded_states(each, incoming.key, hooks)
        for each in (document, {**session, LOG_BEGINS: log_begins(session)})
    )
    if display_name(here["state"]) or display_name(there["state"]):
        # A title may be stored as the display name; it is compared as one.
        for each in (here, there):
            each["state"] = with_title(each["state"], "-")
    recorded = {"create_time": header.create_time, INITIAL: incoming.initial}
    unknown = {name for name, value in recorded.items() if value is None}
    if incoming.details is None:
        unknown |= {*DETAILS} - ({"title"} & here.keys())
    if BRANCH not in here:
        unknown.add(BRANCH)
    names = dict.fromkeys((*document, *DETAILS))
    return tuple(
        name
        for name in names
        if name not in unknown and not _is_same(name, here, there)
    )


def _with_decoded_states(document: Document, key: SessionKey, hooks: Hooks) -> Document:
    """Decode the states in a document; a display name is the title if there is none."""
    owner = Owner.of_session(key)
    state, initial = (
        documents.decode_state(document.get(name, {}), owner, hooks)
        for name in ("state", INITIAL)
    )
    name = display_name(state)
    title = {} if name is None else {"title": name}
    return {**title, **document, "state": state, INITIAL: initial}


def _is_same(name: str, here: Document, there: Document) -> bool:
    if name not in here or name not in there:
        return name not in here and name not in there
    one, other = here[name], there[name]
    if name in {"create_time", "update_time"}:
        # Databases keep microseconds, and events a little more.
        return isinstance(other, float) and abs(one - other) <= _ROUNDING
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
    here = documents.decode_state(wanted.state, owner, hooks)
    revision = stored.get("revision") if stored else None
    is_noted = note is not None and note["revision"] == revision
    plan = StatePlan(wanted, ComparisonResult.CONFLICT, revision, is_noted)
    try:
        fields = {} if stored is None else stored.get("state")
        there = documents.decode_state(fields, owner, hooks)
    except StorageError:
        return plan
    plan = plan._replace(differs=not is_same_value(here, there))
    if stored is None:
        return plan._replace(comparison=ComparisonResult.NEW)
    if not plan.differs:
        return plan._replace(comparison=ComparisonResult.SAME)
    if is_noted:
        return plan._replace(comparison=ComparisonResult.BEHIND)
    if note and wanted.digest and note.get("digest") == wanted.digest:
        return plan._replace(comparison=ComparisonResult.AHEAD)
    return plan


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
        found = await self._load_sessions(each.key for each in sessions)
        events = await self._load_events(sessions)
        return [
            compare_session(
                each, found.get(each.key), events.get(each.key, []), self.hooks
            )
            for each in sessions
        ]

    async def _load_sessions(
        self, keys: Iterable[SessionKey]
    ) -> dict[SessionKey, Document]:
        """Load sessions, with initial states, and reservations; remove expired ones."""
        wanted = Query("sessions", {"_id": {"$in": [key.id for key in keys]}})
        now = self._storage.clock.now()
        found: dict[SessionKey, Document] = {}
        (stored,) = await self._storage.read(wanted)
        for each in stored:
            key = SessionKey(**each["_id"])
            expires = each.get("expire_time")
            is_over = isinstance(expires, float) and expires <= now
            if is_over and not self._is_read_only:
                is_over = await remove_expired(self._storage, key)
            if not is_over:
                found[key] = each
        sessions = {
            key: each for key, each in found.items() if not is_placeholder(each)
        }
        await add_initial_states(self._storage, sessions)
        return found

    async def _load_events(
        self, parts: Sequence[EncodedSession]
    ) -> dict[SessionKey, list[Document]]:
        """Load the events at these parts' revisions, and one more, in order."""
        found: dict[SessionKey, list[Document]] = {}
        ranges = [
            queries.events_until(part.key, part.revision + 1, part.offset)
            for part in parts
        ]
        if ranges:
            wanted = Query("events", queries.any_of(ranges), order=1)
            (events,) = await self._storage.read(wanted)
            for event in events:
                found.setdefault(key_of_event(event), []).append(event)
        return found

    async def plan_states(self, states: Sequence[EncodedState]) -> list[StatePlan]:
        """Compare shared states with those that are stored."""
        ids = [id_ for each in states for id_ in (each.id, {"of": each.id})]
        found = await self._storage.read(
            *(
                Query(collection, {"_id": {"$in": ids}})
                for collection in ("app_states", "user_states", "imports")
            )
        )
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


class _ServiceTarget:
    """A session service, whose sessions are compared as they would be stored."""

    hooks: Hooks = NO_HOOKS

    def __init__(self, source: ServiceSource) -> None:
        self._source = source

    async def plan_sessions(
        self, sessions: Sequence[EncodedSession]
    ) -> list[SessionPlan]:
        return [
            compare_session(each, *await self._load_encoded(each), NO_HOOKS)
            for each in sessions
        ]

    async def _load_encoded(
        self, incoming: EncodedSession
    ) -> tuple[Document | None, list[Document]]:
        """Encode the service's session, and the events that a part of it may have."""
        key, begins = incoming.key, incoming.header.log_begins
        session = await self._source.load(key)
        if session is None:
            return None, []
        own = ScopedState.split(session.state).session
        state, _ = documents.encode_state(own, Owner.of_session(key), NO_HOOKS)
        # Fields that the public methods do not return count as equal.
        document: Document = {
            **incoming.session_document(),
            "state": state,
            "revision": begins + len(session.events),
            "update_time": session.last_update_time,
        }
        document.pop("title", None)
        first = incoming.offset - begins
        events = [
            documents.event_document(
                documents.encode_append(key, event, NO_HOOKS), revision
            )
            for revision, event in enumerate(
                session.events[first : first + len(incoming.appends) + 1],
                start=incoming.offset + 1,
            )
        ]
        return document, events

    async def plan_states(self, states: Sequence[EncodedState]) -> list[StatePlan]:
        plans = []
        for each in states:
            shared = each.shared
            found = await self._source.find_shared(shared.app_name, shared.user_id)
            state, _ = documents.encode_state(found, shared.owner, NO_HOOKS)
            document = {"state": state, "revision": shared.revision}
            plans.append(compare_state(each, document, None, NO_HOOKS))
        return plans


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
    target: StoreSource | ServiceSource,
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

    stored: StoreTarget | _ServiceTarget
    if isinstance(target, ServiceSource):
        stored = _ServiceTarget(target)
    else:
        stored = StoreTarget(target.storage, is_read_only=True)
    compared: set[int] = set()  # hashed keys, which take little memory
    batches = encoded_batches(source, selection, stored.hooks)
    async with aclosing(batches):
        async for batch in batches:
            verified.sessions += batch.sessions_read
            verified.events += batch.events_read
            verified.states += batch.states_read
            for problem in await _batch_differences(batch, stored, is_exact=is_exact):
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


async def _batch_differences(
    batch: Batch, stored: StoreTarget | _ServiceTarget, *, is_exact: bool
) -> list[Problem]:
    problems = [*batch.problems, *batch.conflicts]
    for state in await stored.plan_states([*batch.states.values()]):
        shared = state.state.shared
        # An import begins to count anew, so only two of our own stores count alike.
        is_counted = is_exact and shared.revision is not None and bool(shared.state)
        if state.differs or (
            is_counted and not is_same_value(shared.revision, state.revision)
        ):
            problems.append(Problem(str(shared), "it differs"))
    for session in await stored.plan_sessions([*batch.sessions.values()]):
        where = session_text(session.incoming.key)
        problems += (Problem(where, reason) for reason in session.differences)
    return problems
