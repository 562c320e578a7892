"""Batch: the documents that one transaction writes, and why it was refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from google.adk.errors.already_exists_error import AlreadyExistsError

from mongo_session_service import telemetry
from mongo_session_service.codec import documents
from mongo_session_service.codec.documents import (
    INITIAL,
    LOG_BEGINS,
    needs_initial_document,
)
from mongo_session_service.errors import (
    quoted,
    session_exists_error,
    stale_session_error,
    turn_lost_error,
)
from mongo_session_service.model.metadata import NOT_GIVEN
from mongo_session_service.model.records import (
    Append,
    Document,
    Marker,
    NewSession,
    PlannedWrite,
    SessionKey,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.details import ANNOUNCED, details_announcement
from mongo_session_service.sessions.queries import (
    TURN_EPOCH,
    TURN_FIRST_REVISION,
    TURN_RENEWED,
    user_state_id,
)
from mongo_session_service.sessions.reads import (
    find_event_document,
    find_session_document,
)
from mongo_session_service.sessions.waiting_log import waiting_after_batch
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Insert,
    Query,
    RefusedError,
    Statement,
    Update,
)
from mongo_session_service.storage.transactions import Transaction


def is_one_document(write: Append | NewSession) -> bool:
    """True if a write changes one document alone, and needs no transaction."""
    if not isinstance(write, NewSession):
        return False
    return not (write.delta.app or write.delta.user or needs_initial_document(write))


class BatchStore:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def commit_batch(
        self,
        planned: Sequence[PlannedWrite],
        *,
        limit: float,
        attempts: int,
        is_lone: bool,
    ) -> None:
        """Store sessions, events and their effect on state, as one transaction.

        It is given up after ``limit`` seconds, and tried ``attempts`` times while
        another transaction holds a document; then it raises ``LockedError``. A lone new
        session is stored without a transaction: it takes one round trip, but waits for
        as long as another transaction holds it. If a session is not as expected, or
        something is stored already, it raises ``RefusedError``. Then nothing was
        written; of several writes others may succeed alone, of a single one
        :meth:`judge_refused` finds the cause.
        """
        storage = self._storage
        if not (storage.has_transactions and storage.has_event_index):
            await self._refuse_known_events(planned)
        most = None if is_lone or not storage.has_transactions else attempts
        if any(map(_needs_session, planned)):
            write = partial(self._write_with_sessions, planned)
            kept = storage.client_sessions
            await storage.run(write, limit=limit, attempts=most, kept=kept)
        else:
            statements = batch_statements(storage, planned, {})
            await storage.commit(*statements, limit=limit, attempts=most)
        telemetry.record_size(
            telemetry.BATCH_SIZES, storage.database.name, len(planned)
        )

    async def _write_with_sessions(
        self, planned: Sequence[PlannedWrite], tx: Transaction
    ) -> None:
        """Write a batch whose statements depend on what its sessions hold."""
        storage = self._storage
        waiting = await waiting_after_batch(storage, planned, tx)
        await tx.write(*batch_statements(storage, planned, waiting))
        renamed = {it.write.key for it in planned if _renames(it.write)}
        for key in renamed if storage.has_transactions else ():
            query = Query("sessions", {"_id": key.id}, fields=ANNOUNCED)
            if found := await tx.find_one(query):
                await tx.write(*details_announcement(storage, found))

    async def _refuse_known_events(self, planned: Sequence[PlannedWrite]) -> None:
        for write in (each.write for each in planned):
            if isinstance(write, Append) and await find_event_document(
                self._storage, write.key, write.event["id"]
            ):
                raise RefusedError

    async def judge_refused(
        self, planned: PlannedWrite, *, limit: float, may_retry: bool
    ) -> tuple[Marker, int | None]:
        """Find out why a write was refused.

        Returns the session's marker, and the revision that the write is stored at:
        None if it is not stored, but would be with this marker, since only the time to
        live is another than expected, and it ``may_retry``. Otherwise it raises the
        error that the writer's caller gets.
        """
        write, expected = planned.write, planned.expected
        if isinstance(write, NewSession):
            raise session_exists_error(write.key.session_id)

        async def find(tx: Transaction) -> tuple[Document, Document | None]:
            session = await find_session_document(self._storage, write.key, tx)
            event = await find_event_document(tx, write.key, write.event["id"])
            return session, event

        # A primary may show what it has not replicated, and lose it when it is deposed.
        # What a transaction has read is on a majority once it is committed.
        session, stored = await self._storage.run(find, limit=limit)
        marker = Marker.of(session)
        if stored is None:
            turn = session.get("turn", {})
            if write.fence not in {None, (turn.get("epoch"), marker.create_time)}:
                raise turn_lost_error(write.key.session_id)
            # It may have changed to what was expected since, so that all looks well.
            seen = marker._replace(ttl=expected.ttl, expires=expected.expires)
            if may_retry and expected == seen:
                return marker, None
            database = self._storage.database.name
            telemetry.count(telemetry.STALE_APPENDS, database)
            raise stale_session_error(
                write.key.session_id, expected.describe_change(marker)
            )
        if not documents.is_same_event(write, stored["event"], self._storage.hooks):
            which = f"Another event with id {quoted(write.event['id'])}"
            raise AlreadyExistsError(f"{which} already exists.")
        return marker, stored["_id"]["revision"]


def _renames(write: Append | NewSession) -> bool:
    return isinstance(write, Append) and write.title is not NOT_GIVEN


def _needs_session(planned: PlannedWrite) -> bool:
    """True if what a write stores depends on what its session holds."""
    write = planned.write
    return isinstance(write, Append) and (write.waiting.has_effect or _renames(write))


def batch_statements(
    storage: Storage,
    planned: Sequence[PlannedWrite],
    waiting: Mapping[tuple[SessionKey, int], Document],
) -> list[Statement]:
    """Build the statements of a batch.

    Given are the fields of what waits after an append, if it changes that, by its
    session and revision.
    """
    created = [it.write for it in planned if isinstance(it.write, NewSession)]
    appends = [
        (it.write, it.expected.revision + 1)
        for it in planned
        if isinstance(it.write, Append)
    ]
    # Shared state ends as the last append has it, which is what subscribers who see the
    # events receive.
    writes: list[Append | NewSession] = [*created, *(append for append, _ in appends)]
    statements: list[Statement] = []
    # Where there are no transactions, there may be neither pipelines nor raw BSON.
    is_real = storage.has_transactions
    fastest = fastest_update if is_real else lambda change: change

    def upserts(collection: str, updates: Iterable[DocumentUpdate]) -> list[Update]:
        return [
            Update(collection, where, fastest(change), upsert=True)
            for where, change in updates
        ]

    if created:
        new = [documents.session_document(each) for each in created]
        statements.append(Insert("sessions", new))
        statements += upserts("events", initial_updates(created))
    if appends:
        alive = queries.alive_filter(storage)
        statements += [
            Update("sessions", where, fastest(change), expected=1)
            for where, change in session_updates(planned, waiting, alive)
        ]
        events = [
            documents.event_document(
                append,
                revision,
                encoded=is_real,
                waiting=waiting.get((append.key, revision)),
            )
            for append, revision in appends
        ]
        statements.append(Insert("events", events))
    statements += upserts("user_states", user_updates(writes))
    # Last, since all users of an app meet here: what is locked late is free soon.
    statements += upserts("app_states", app_updates(writes))
    return statements


class DocumentUpdate(NamedTuple):
    filter: Document
    change: Document


def initial_updates(sessions: Iterable[NewSession]) -> list[DocumentUpdate]:
    """Build the updates that store large initial states apart, at revision 0 of a log.

    A document is of one session only, and not of a later one of the same id.
    """
    return [
        DocumentUpdate({"_id": each.key.event_id(0)}, {"$set": _initial(each)})
        for each in sessions
        if needs_initial_document(each)
    ]


def _initial(session: NewSession) -> Document:
    fields = {INITIAL: session.delta.session, "create_time": session.create_time}
    return fields | ({LOG_BEGINS: session.log_begins} if session.log_begins else {})


def session_updates(
    planned: Iterable[PlannedWrite],
    waiting: Mapping[tuple[SessionKey, int], Document],
    alive: Document,
) -> list[DocumentUpdate]:
    """Build the updates of appends to their sessions: one for each session.

    The filter is the first append's expectation, so that an update that matches nothing
    means a session that has moved on, has expired, or has got another time to live. An
    append within a turn expects that nobody has taken the turn since, and renews it.
    Given are the fields of what waits after an append, if it changes that, by its
    session and revision, and the filter for what is ``alive``, if it is to expire.
    """
    updates: dict[SessionKey, DocumentUpdate] = {}
    for each in planned:
        append, expected = each.write, each.expected
        if not isinstance(append, Append):
            continue
        update = updates.get(append.key)
        if update is None:
            revision, create_time, ttl, expires = expected
            expectation = {
                "_id": append.key.id,
                "revision": revision,
                "create_time": create_time,
                "ttl": ttl,
                **(alive if expires else {"expire_time": None}),
            }
            update = updates[append.key] = DocumentUpdate(expectation, {"$set": {}})
        if append.fence is not None:
            epoch, create_time = append.fence
            held = {TURN_EPOCH: epoch, "create_time": create_time}
            wanted = update.filter.setdefault("$and", [])
            wanted += [held] if held not in wanted else []
            update.change["$currentDate"] = {TURN_RENEWED: True}
            # The least is that of the turn's first event.
            first = {TURN_FIRST_REVISION: expected.revision + 1}
            update.change.setdefault("$min", first)
        changes = update.change["$set"]
        for name, value in append.delta.session.items():
            changes[_STATE + name] = value
        changes["revision"] = expected.revision + 1
        changes["update_time"] = append.timestamp
        if expected.ttl is not None:
            # No clock that was set back shortens a life.
            update.change["$max"] = {"expire_time": each.now + expected.ttl}
        if append.title is not NOT_GIVEN:
            _set_or_remove(update.change, {"title": append.title})
        if after := waiting.get((append.key, expected.revision + 1)):
            _set_or_remove(update.change, after)
    return list(updates.values())


def _set_or_remove(change: Document, fields: Document) -> None:
    """Add fields to a change, which sets them, or removes those that are None."""
    changes, removed = change["$set"], change.pop("$unset", {})
    for name, value in fields.items():
        if value is None:
            changes.pop(name, None)
            removed[name] = ""
        else:
            removed.pop(name, None)
            changes[name] = value
    if removed:
        change["$unset"] = removed


def app_updates(writes: Iterable[Append | NewSession]) -> list[DocumentUpdate]:
    """Build the updates of app state: one for each app, later deltas last."""
    return _scope_updates((write.key.app_name, write.delta.app) for write in writes)


def user_updates(writes: Iterable[Append | NewSession]) -> list[DocumentUpdate]:
    """Build the updates of user state: one for each user, later deltas last."""
    return _scope_updates(
        (user_state_id(write.key.app_name, write.key.user_id), write.delta.user)
        for write in writes
    )


def _scope_updates(deltas: Iterable[tuple[Any, Document]]) -> list[DocumentUpdate]:
    updates: dict[str, DocumentUpdate] = {}
    for id_, delta in deltas:
        if delta:
            empty = DocumentUpdate({"_id": id_}, {"$set": {}, "$inc": {"revision": 0}})
            update = updates.setdefault(repr(id_), empty)
            update.change["$set"] |= {_STATE + name: it for name, it in delta.items()}
            update.change["$inc"]["revision"] += 1
    return list(updates.values())


_MANY: Final = 500
"""Paths of an update beyond which MongoDB is faster to merge two documents."""


def fastest_update(change: Document) -> Document | list[Document]:
    """Return a change of a state document in the form that MongoDB is fastest at.

    It looks for each path of a ``$set`` among all the fields there are. To set 100,000
    keys would take it 43 seconds, and a pipeline that merges them takes 0.1.
    """
    if len(change["$set"]) <= _MANY:
        return change
    fields: Document = {}
    stage: Document = {}
    for path, value in change["$set"].items():
        if path.startswith(_STATE):
            fields[path.removeprefix(_STATE)] = value
        else:
            stage[path] = {"$literal": value}
    stage |= dict.fromkeys(change.get("$unset", ()), "$$REMOVE")
    for name, count in change.get("$inc", {}).items():
        stage[name] = {"$add": [{"$ifNull": [f"${name}", 0]}, count]}
    stage |= dict.fromkeys(change.get("$currentDate", ()), "$$NOW")
    for operator in ("$min", "$max"):
        for name, value in change.get(operator, {}).items():
            stage[name] = {operator: [f"${name}", value]}
    stage["state"] = {"$mergeObjects": ["$state", {"$literal": fields}]}
    return [{"$set": stage}]


_STATE: Final = "state."
