"""Trim: a session's oldest events are removed in steps; its state stays.

One transaction stores after which revision the log begins, and the state as of then,
which is the session's initial state from now on. It writes to the session first, so
that nobody appends, and then reads what was appended since the log was read. No reader
is shown an earlier event afterwards. Each step that removes these events finds the
session in its transaction: a step that comes late cannot remove events of a new session
with the same id. A trim that is interrupted is resumed by the next one of the session,
and by its removal.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Final

from bson.timestamp import Timestamp
from google.adk.events.event import Event

from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.record import (
    LOG_BEGINS,
    TRIMMING,
    SessionRecord,
)
from mongo_session_service.codec.waiting_calls import encode_waiting
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import event_log, queries
from mongo_session_service.sessions.batch import initial_update
from mongo_session_service.sessions.details import change_statements
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.reads import lock_session
from mongo_session_service.sessions.waiting_log import pending_calls_at
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query, RefusedError, Update
from mongo_session_service.storage.transactions import Transaction

CALL_LASTS: Final = 86_400.0
"""Seconds in which a function call may get its response: a day."""

LONG_CALL_LASTS: Final = 30 * CALL_LASTS
"""Seconds in which a long-running call may get its responses: 30 days."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """Events to remove, as far as they may be removed; one field is set."""

    keep_last: int | None = None
    """All but so many of the latest."""
    before_revision: int | None = None
    """All before a revision."""
    before_time: float | None = None
    """Up to the first that is not older than this time, in seconds since 1970."""

    def revision(self, session: SessionRecord, older: int) -> int:
        """Return the last revision that it removes; one not reached is refused."""
        if self.keep_last is not None:
            return session.revision - self.keep_last
        if self.before_revision is None:
            return older
        end = session.revision + 1
        if self.before_revision > end:
            message = f"before_revision must be at most {end}, after the last event."
            raise InvalidInputError(message)
        return self.before_revision - 1


@dataclass(slots=True)
class TrimConstraints:
    """Constraints that the events of a log, read up to ``until``, set to a trim.

    No cut may come between a function call and its responses, nor between an event and
    a rewind that has undone it: ADK passes over a rewind to an invocation that it does
    not find, and what was undone would return.
    """

    begins: int
    """The revision after which the log begins."""
    before_time: float
    now: float
    until: int = 0
    older: int = 0
    """The last revision of the longest prefix of the log that is older than that."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last revision of what is tied by calls."""
    calls: dict[str | None, int] = field(default_factory=dict)
    """The revisions of function calls, by id or else by name."""
    pending: dict[str | None, float] = field(default_factory=dict)
    """The times until which calls may get a response."""
    lasting: set[str | None] = field(default_factory=set)
    """The long-running ones, which may get another one."""
    rewinds: list[tuple[int, str]] = field(default_factory=list)
    firsts: dict[str, int] = field(default_factory=dict)
    """The revisions of the invocations' first events."""

    def __post_init__(self) -> None:
        self.until = self.older = self.begins

    async def read_log(
        self, storage: Storage, log: LogAtRevision, as_of: Timestamp | None = None
    ) -> None:
        async for revision, event in event_log.read_outlines(storage, log, as_of=as_of):
            self.add(revision, event)

    def add(self, revision: int, event: Event) -> None:
        if self.older == self.until and event.timestamp < self.before_time:
            self.older = revision
        self.until = revision
        long_running = event.long_running_tool_ids or ()
        for response in event.get_function_responses():
            name = response.id or response.name
            if (called := self.calls.get(name)) is not None:
                self.spans.append((called, revision))
            if name not in self.lasting:
                self.pending.pop(name, None)
        for call in event.get_function_calls():
            name = call.id or call.name
            lasts = LONG_CALL_LASTS if name in long_running else CALL_LASTS
            self.calls[name] = revision
            self.pending[name] = event.timestamp + lasts
            (self.lasting.add if name in long_running else self.lasting.discard)(name)
        if event.invocation_id:
            self.firsts.setdefault(event.invocation_id, revision)
        if target := event.actions.rewind_before_invocation_id:
            self.rewinds.append((revision, target))

    def last_safe_revision(self, wanted: int) -> int:
        """Find the last revision up to which the log may go, at most the wanted one."""
        pending = (name for name, until in self.pending.items() if until > self.now)
        spans: list[tuple[int, float]] = [
            *self.spans,
            *event_log.undone_parts(self.rewinds, self.firsts),
            *((self.calls[name], math.inf) for name in pending),
        ]
        cut = wanted
        for first, last in sorted(spans, key=itemgetter(1), reverse=True):
            if last <= cut:
                break
            cut = min(cut, first - 1)
        return cut


async def trim(
    storage: Storage,
    key: SessionKey,
    criterion: Criterion,
    *,
    is_dry_run: bool = False,
) -> int:
    """Remove the events that a criterion chooses and that may go; return their number.

    A dry run only counts them. If a part of them was removed, it raises
    ``UnknownOutcomeError``: trim again for the rest.
    """
    session = await event_log.read_with_initial_state(storage, key)
    cut = begins = session.begins
    oldest = criterion.before_time or -math.inf
    constraints = TrimConstraints(begins, oldest, storage.clock.now())
    if await _last_removable(storage, session, criterion) > begins:
        await constraints.read_log(storage, LogAtRevision.of(session))
        wanted = criterion.revision(session, constraints.older)
        cut = constraints.last_safe_revision(wanted)
    if is_dry_run:
        return max(0, cut - begins)
    if cut > begins:
        state = await event_log.state_at(storage, session, cut)
        planned = partial(_set_cut, cut=cut, state=state, constraints=constraints)
        cut = await storage.run(partial(planned, storage, session))
    # Or what an interrupted trim has left.
    return await remove_trimmed(storage, key, session.created, max(cut, begins))


async def _last_removable(
    storage: Storage, session: SessionRecord, criterion: Criterion
) -> int:
    """Find the last revision that a criterion may remove; reads one event at most."""
    older = session.revision
    if criterion.before_time is not None:
        log = queries.events_after(session.key, session.begins)
        query = Query("events", log, order=1, fields=("event.timestamp",))
        first = await storage.find_one(query)
        if first and EventRecord(first).timestamp >= criterion.before_time:
            older = session.begins
    return criterion.revision(session, older)


async def _set_cut(
    storage: Storage,
    read: SessionRecord,
    tx: Transaction,
    *,
    cut: int,
    state: Document,
    constraints: TrimConstraints,
) -> int:
    """Have a session's log begin after a revision; return after which it does then.

    An event that was appended since it was read may be a rewind that undoes what is to
    be removed. The state is computed again if the cut is then another one, or events
    were redacted.
    """
    key = read.key
    session = await lock_session(storage, read, tx)
    later = LogAtRevision(key, constraints.until, session.revision)
    await constraints.read_log(storage, later, tx.time)
    safe = constraints.last_safe_revision(cut)
    if safe <= session.begins:  # another trim has cut further
        return session.begins
    was_redacted = session.redactions > read.redactions
    if safe < cut or was_redacted or session.begins > read.begins:
        whole = session.with_initial(await tx.find(event_log.before_log(key)))
        state = await event_log.state_at(storage, whole, safe, as_of=tx.time)
    waiting = session.waiting(storage.hooks)
    if any(each.revision <= safe for each in waiting.named):
        log = LogAtRevision(key, safe, session.revision)
        waiting = await pending_calls_at(storage, log, tx.time)
    fields = encode_waiting(waiting, key, storage.hooks)
    change = session.change(waiting=fields, begins=safe)
    initial = initial_update(key, state, session.created, safe)
    await tx.write(*change_statements(storage, change), initial)
    return safe


async def remove_trimmed(
    storage: Storage, key: SessionKey, created: float, cut: int
) -> int:
    """Remove the events up to a revision at which the log was cut; return how many."""
    session = {"_id": key.id, "create_time": created, LOG_BEGINS: {"$gte": cut}}
    # Unless another trim has cut further, and has more to remove.
    own = {**session, LOG_BEGINS: cut}
    done = Update("sessions", own, {"$unset": {TRIMMING: ""}})
    log, removed = queries.events_after(key, 0, cut), 0
    with suppress(RefusedError):  # it was deleted meanwhile
        fence = Update("sessions", session, {})
        async for count in storage.remove("events", log, fence):
            removed += count
        # By itself: others append, and the steps write nothing that they do.
        await storage.commit(done)
    return removed
