"""Import: moving a source's sessions into a ``MongoSessionService``.

The next batch is read and encoded while one is being written. Sessions that the target
has are compared, not written again, so a repeated import completes an interrupted one,
and adds what has changed in the source since.

A new session's events are stored first, under a reservation; the session's document
replaces the reservation at the end, so that no reader sees a part of the session.
Removing or pruning sessions removes what an interrupted import has left, too. No
transaction holds them: one of an import that was killed would block the same documents
for the next import for a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from mongo_session_service.codec.family_record import FamilyRecord
from mongo_session_service.codec.record import EVENT_TIME, REDACTIONS, SessionRecord
from mongo_session_service.errors import ConflictError, StorageError, TransferError
from mongo_session_service.model.metadata import NOT_GIVEN
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.batch import initial_updates
from mongo_session_service.sessions.branches import restore_family
from mongo_session_service.sessions.deletion import (
    IMPORT,
    Reservations,
    remove_reserved,
)
from mongo_session_service.sessions.details import change_statements
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.waiting_log import (
    pending_call_fields,
    pending_calls_after,
)
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Delete,
    DuplicateError,
    Insert,
    Query,
    RefusedError,
    Statement,
    Update,
)
from mongo_session_service.transfer.batches import (
    Batch,
    EncodedSession,
    encoded_batches,
)
from mongo_session_service.transfer.comparison import (
    ComparisonResult,
    SessionPlan,
    StatePlan,
    StoreTarget,
)
from mongo_session_service.transfer.sources import (
    EVERYTHING,
    Problem,
    Selection,
    Source,
    session_text,
)

_IMPORT_ATTEMPTS: Final = 5
"""How often a batch is planned again because the target has changed."""

IMPORT_LIFETIME: Final = 3600.0
"""Seconds after which a reservation expires, unless an import resumes."""


@dataclass(slots=True)
class Moved:
    """The result of an import; counts are of sessions, if not otherwise noted."""

    started: float
    """Seconds since 1970."""
    new: int = 0
    caught_up: int = 0
    """Sessions whose first events the target had; the rest was added."""
    unchanged: int = 0
    ahead: int = 0
    """Sessions to which events were appended in the target; not changed."""
    skipped: int = 0
    """Sessions with other content in the target; not changed."""
    events: int = 0
    """Events written."""
    states: int = 0
    """Shared states written."""
    ahead_states: int = 0
    """Shared states that were changed in the target only; not changed."""
    skipped_states: int = 0
    """Shared states with other content in the target; not changed."""
    expired: int = 0
    """Expired sessions; left out."""
    problems: int = 0
    """Things that could not be read or stored; left out."""
    read: int = 0
    """Events read."""

    @property
    def sessions(self) -> int:
        """Sessions read."""
        known = self.caught_up + self.unchanged + self.ahead + self.skipped
        return self.new + known + self.expired

    @property
    def is_complete(self) -> bool:
        """Whether the target has everything that was selected."""
        return not (self.problems or self.skipped or self.skipped_states)


@dataclass(frozen=True, slots=True)
class Policies:
    """The reactions of an import to conflicts and problems."""

    on_conflict: Literal["fail", "skip"] = "fail"
    """If the target has other content under an id."""
    on_error: Literal["fail", "skip"] = "fail"
    """If something cannot be read or stored."""
    is_dry_run: bool = False
    """Whether to compare everything and write nothing."""


CAREFUL: Final = Policies()
"""Any conflict or problem ends the import."""


async def move(
    source: Source,
    service: MongoSessionService,
    selection: Selection = EVERYTHING,
    policies: Policies = CAREFUL,
    *,
    on_problem: Callable[[Problem], None] = lambda _: None,
    on_progress: Callable[[Moved], None] = lambda _: None,
) -> Moved:
    """Import the selected sessions of an open source; safe to interrupt and to repeat.

    Args:
        source: Where the sessions are; it is only read.
        service: The target.
        selection: Which sessions to import.
        policies: What to do about conflicts and problems.
        on_problem: Called with each problem and conflict that is skipped.
        on_progress: Called after each batch.

    Raises:
        ConflictError: the target has other content under an id, and ``on_conflict`` is
            ``fail``. What was imported before stays.
        TransferError: something cannot be read or stored, and ``on_error`` is ``fail``.
            A dry run reports such problems instead.
    """
    # Before setup: that would create indexes on another service's collections.
    storage = await backends_of(service).storage()
    target = ImportTarget(storage, is_read_only=policies.is_dry_run)
    importer = _Importer(target, policies, on_problem)
    await target.refuse_other_layouts()
    if not policies.is_dry_run:
        await service.setup()
    batches = encoded_batches(source, selection, target.hooks)
    try:
        async with aclosing(_read_ahead(batches)) as reading:
            async for batch in reading:
                await importer.store_batch(batch)
                on_progress(importer.moved)
    except TransferError:
        with suppress(StorageError):  # else it expires
            await target.release_places()
        raise
    return importer.moved


@dataclass(slots=True)
class _Importer:
    """Writes batches one by one, and counts the results."""

    target: ImportTarget
    policies: Policies
    on_problem: Callable[[Problem], None]
    moved: Moved = field(default_factory=lambda: Moved(time.time()))
    conflict: Problem | None = None
    """In an earlier part of the session whose parts are being imported."""

    async def store_batch(self, batch: Batch) -> None:
        """Store a batch in the target, as far as the target lacks it."""
        self.moved.read += batch.events_read
        self.moved.expired += batch.expired
        for problem in batch.problems:
            self._leave_out(problem, "on_error", TransferError)
            self.moved.problems += 1
        for conflict in batch.conflicts:
            self._leave_out(conflict, "on_conflict", ConflictError)
            self.moved.skipped += 1
        for _ in range(_IMPORT_ATTEMPTS):
            with suppress(DuplicateError, RefusedError):  # the target has changed
                await self._store(batch)
                return
        message = "Sessions in the target changed during the import; stop its writers."
        raise ConflictError(message)

    async def _store(self, batch: Batch) -> None:
        sessions = await self.target.plan_sessions([*batch.sessions.values()])
        # Some services store an empty row for each user.
        shared = [each for each in batch.states.values() if each.state]
        states = await self.target.plan_states(shared)
        if not self.policies.is_dry_run:
            if self.policies.on_conflict == "fail":
                _refuse_conflicts([*sessions, *states])
            await self.target.write(
                [each for each in sessions if self._is_written(each)],
                [each for each in states if each.is_lacking],
            )
            await self.target.write_families(batch.families)
        for session in sessions:
            self._count(session)
        for state in states:
            self._count_state(state)

    def _leave_out(
        self, problem: Problem, policy: str, kind: type[TransferError]
    ) -> None:
        """Leave out what cannot be moved, if the policy lets it."""
        if getattr(self.policies, policy) == "fail" and not self.policies.is_dry_run:
            raise kind(
                f"Cannot be moved: {problem}. What was moved before is kept.",
                hint=f"Policies({policy}='skip') continues without it.",
            )
        self.on_problem(problem)

    def _is_written(self, session: SessionPlan) -> bool:
        # After a conflict in one part, the other parts are left alone, too.
        return session.is_lacking and not self.conflict

    def _count(self, session: SessionPlan) -> None:
        if self._is_written(session):
            self.moved.events += len(session.incoming.appends) - session.matched
        if session.comparison is ComparisonResult.CONFLICT and not self.conflict:
            self.conflict = session.conflict
        if not session.incoming.is_last:
            return
        conflict, self.conflict = self.conflict, None
        if conflict:
            self.moved.skipped += 1
            self.on_problem(conflict)
        else:
            name = session.comparison.value
            setattr(self.moved, name, getattr(self.moved, name) + 1)

    def _count_state(self, state: StatePlan) -> None:
        match state.comparison:
            case ComparisonResult.CONFLICT:
                self.moved.skipped_states += 1
                self.on_problem(state.conflict)
            case ComparisonResult.AHEAD:
                self.moved.ahead_states += 1
            case ComparisonResult.NEW | ComparisonResult.BEHIND:
                self.moved.states += 1


def _refuse_conflicts(plans: Iterable[SessionPlan | StatePlan]) -> None:
    for planned in plans:
        if planned.comparison is ComparisonResult.CONFLICT:
            raise ConflictError(
                f"The target holds something else: {planned.conflict}. It was left as"
                " it is.",
                hint="Policies(on_conflict='skip') continues without it.",
            )


async def _read_ahead(batches: AsyncGenerator[Batch]) -> AsyncGenerator[Batch]:
    """Yield batches, each of which is read while the one before is in use."""

    async def following() -> Batch | None:
        return await anext(batches, None)

    reading = asyncio.create_task(following())
    try:
        while (batch := await reading) is not None:
            reading = asyncio.create_task(following())
            yield batch
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await batches.aclose()


class ImportTarget(StoreTarget):
    """The database that an import writes to."""

    def __init__(self, storage: Storage, *, is_read_only: bool) -> None:
        super().__init__(storage, is_read_only=is_read_only)
        self._reservations = Reservations(IMPORT, IMPORT_LIFETIME)
        self._held: set[SessionKey] = set()
        """The places that are reserved, until their sessions are stored."""
        self._in_clear: set[str] = set()
        """Apps whose events are known to be stored in clear."""

    async def refuse_other_layouts(self) -> None:
        """Refuse collections that another service writes."""
        other = await self._storage.find_one(Query("sessions", {}))
        is_own = other is None or (isinstance(other["_id"], dict) and "id" not in other)
        if not is_own:
            raise ConflictError(
                f"Collection {self._storage.prefix + 'sessions'!r} of database"
                f" {self._storage.database.name!r} holds another service's sessions."
                " Import into another database, or give the collections a prefix."
            )

    async def write(self, sessions: list[SessionPlan], states: list[StatePlan]) -> None:
        """Store sessions, or parts of them, and shared state, as planned.

        It raises ``RefusedError`` or ``DuplicateError`` if the target has changed since
        it was planned: what was written by then is found by the next attempt.
        """
        apps = {each.incoming.key.app_name for each in sessions}
        apps |= {each.state.shared.app_name for each in states}
        await self._refuse_sealing_apps(apps)
        await self._write_states(states)
        new = [it for it in sessions if it.comparison is ComparisonResult.NEW]
        for each in sessions:
            if each.found and each.comparison is ComparisonResult.BEHIND:
                await self._append_missing(each.incoming, each.found, each.matched)
        await self._store_new_sessions(new)

    async def write_families(self, families: Iterable[FamilyRecord]) -> None:
        """Have sessions that are stored be the versions that they were."""
        for each in families:
            await restore_family(self._storage, each)

    async def _refuse_sealing_apps(self, apps: set[str]) -> None:
        """Refuse to store in clear what an app seals, as one of its events shows."""
        if self.hooks.before_store is not None:
            return
        for app in apps - self._in_clear:
            log = Query("events", queries.app_documents_filter(app, None), order=-1)
            last = await self._storage.find_one(log)
            if last is not None and "hooked" in last:
                raise TransferError(
                    f"App {app!r} seals its events here, and an import would store"
                    " clear text. Give the service before_store and after_load, or the"
                    " command --before-store and --after-load MODULE:FUNCTION."
                )
        self._in_clear |= apps

    async def _store_new_sessions(self, entering: list[SessionPlan]) -> None:
        """Store new sessions; events that an interrupted import has stored stay."""
        await self._reserve(entering)
        events: list[Document] = []
        for each in entering:
            incoming = each.incoming
            after = incoming.offset + each.matched
            if each.matched < each.stored:
                await self._remove_events(incoming.key, after)
            begins = incoming.header.log_begins
            if each.found is not None and incoming.is_first and begins:
                await self._remove_events(incoming.key, 0, begins)
            events += incoming.documents(after)
        if events:
            await self._storage.commit(Insert("events", events), atomic=False)
        whole = [each for each in entering if each.incoming.is_last]
        await self._store_initial_states(whole)
        await self._store_sessions([each.incoming for each in whole])

    async def _reserve(self, wanted: list[SessionPlan]) -> None:
        """Reserve the places of sessions, or renew reservations."""
        new: list[Document] = []
        renewals: list[Update] = []
        fields = self._reservations.new_fields(self._storage)
        for each in wanted:
            key = each.incoming.key
            holder = self._check_holder(each.incoming, each.found)
            if holder is None:
                new.append({"_id": key.id, **fields})
            else:
                held = self._reservations.held_filter(key, holder)
                renewal = Update("sessions", held, {"$set": fields}, expected=1)
                renewals.append(renewal)
        inserts = [Insert("sessions", new)] if new else []
        await self._commit_apart(*inserts, *renewals)
        self._held.update(each.incoming.key for each in wanted)

    def _check_holder(
        self, incoming: EncodedSession, found: Document | None
    ) -> str | None:
        """Return the import that holds a session's place; None if it is free."""
        holder: str | None = found.get(IMPORT) if found else None
        what = session_text(incoming.key)
        if found is not None and holder is None:
            raise ConflictError(
                f"The target itself is forking or removing {what}. Run the import"
                " again."
            )
        was_held = not incoming.is_first or incoming.key in self._held
        if was_held and holder != self._reservations.holder:
            raise ConflictError(
                f"The imported part of {what} was removed meanwhile, or another import"
                " has taken it over. Run the import again."
            )
        return holder

    async def _remove_events(
        self, key: SessionKey, after: int, until: int | None = None
    ) -> None:
        """Remove events of a reserved session: after a revision, up to one."""
        log = queries.events_after(key, after, until)
        held = self._reservations.held_filter(key)
        fence = Update("sessions", held, {"$inc": {"steps": 1}})
        async for _ in self._storage.remove("events", log, fence):
            pass

    async def _store_initial_states(self, whole: list[SessionPlan]) -> None:
        """Store large initial states, not what an interrupted import has left."""
        left = [it.incoming.key.event_id(0) for it in whole if it.found is not None]
        gone = [Delete("events", {"_id": {"$in": left}}, many=True)] if left else []
        sessions = [each.incoming.as_new_session() for each in whole]
        await self._commit_apart(*gone, *initial_updates(sessions))

    async def _store_sessions(self, whole: list[EncodedSession]) -> None:
        """Replace reservations with their sessions, all of whose events are stored."""
        updates = []
        for each in whole:
            document = each.session_document()
            if each.asked:  # its events, which show what waits, are stored
                log = LogAtRevision(each.key, each.header.log_begins, each.revision)
                document |= await pending_call_fields(self._storage, log, each.key)
            held = self._reservations.held_filter(each.key)
            updates.append(Update("sessions", held, document, expected=1))
        await self._commit_apart(*updates)
        self._held.difference_update(each.key for each in whole)

    async def release_places(self) -> None:
        """Free the places of sessions that cannot be finished; remove their events."""
        for key in self._held:
            await remove_reserved(self._storage, self._reservations.held_filter(key))

    async def _append_missing(
        self, incoming: EncodedSession, stored: Document, matched: int
    ) -> None:
        """Add to a session its missing events."""
        session = SessionRecord.read(stored)
        missing = [*enumerate(incoming.appends, incoming.offset + 1)][matched:]
        if not missing:
            return
        fields: Document = {}
        for revision, each in missing:
            fields["revision"] = revision
            fields |= dict.fromkeys(("update_time", EVENT_TIME), each.timestamp)
            if each.title is not NOT_GIVEN:  # as every append sets it
                fields["title"] = each.title
        if incoming.is_last:
            header, details = incoming.header, incoming.details
            fields |= {"state": incoming.state, EVENT_TIME: header.update_time}
            fields["update_time"] = header.written or header.update_time
            if details.ttl and details.ttl == session.details.ttl:
                fields["expire_time"] = details.expire_time  # as every append renews it
        waiting = await pending_calls_after(self._storage, session, missing)
        last = waiting.get(max(waiting, default=0))
        change = session.change(fields, waiting=last)
        own = () if session.family else ("title",)
        unchanged = session.expected("revision", REDACTIONS, *own)
        events = [*incoming.documents(incoming.offset + matched, waiting)]
        await self._storage.commit(
            Insert("events", events),
            *change_statements(self._storage, change, unchanged | queries.NEEDS_KNOWN),
        )

    async def _write_states(self, states: list[StatePlan]) -> None:
        updates: list[Update] = []
        notes: list[Update] = []
        for each in states:
            wanted, before = each.state, each.revision
            after = before if each.lacks_note else (before or 0) + 1
            note = {"$set": {"revision": after, "digest": wanted.digest}}
            place = {"_id": {"of": wanted.id}}
            notes.append(Update("imports", place, note, upsert=True))
            if each.lacks_note:
                continue
            is_app = wanted.shared.user_id is None
            change = {"$set": {"state": wanted.state, "revision": after}}
            # Another revision than expected makes this insert, which then fails.
            where = {"_id": wanted.id, "revision": before}
            collection = "app_states" if is_app else "user_states"
            updates.append(Update(collection, where, change, upsert=True))
        await self._commit_apart(*updates)
        # Last: without its note, state counts as changed in the target.
        await self._commit_apart(*notes)

    async def _commit_apart(self, *statements: Statement) -> None:
        if statements:
            await self._storage.commit(*statements, atomic=False)
