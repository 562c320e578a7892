"""Batch: new sessions and appends that one transaction writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from mongo_session_service import telemetry
from mongo_session_service.codec import documents
from mongo_session_service.codec.documents import needs_initial_document
from mongo_session_service.codec.record import (
    INITIAL,
    LOG_BEGINS,
    STATE_PATH,
    SessionRecord,
)
from mongo_session_service.model.metadata import NOT_GIVEN
from mongo_session_service.model.records import (
    Append,
    Document,
    NewSession,
    SessionKey,
)
from mongo_session_service.sessions import branches
from mongo_session_service.sessions.append import (
    session_updates,
    shared_state_updates,
)
from mongo_session_service.sessions.reads import find_event, head_query
from mongo_session_service.sessions.waiting_log import pending_calls_after_batch
from mongo_session_service.sessions.writer import QueuedWrite
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Insert,
    RefusedError,
    Statement,
    Update,
)
from mongo_session_service.storage.transactions import Transaction


async def commit_batch(
    storage: Storage,
    planned: Sequence[QueuedWrite],
    time_limit: float,
    attempts: int | None,
) -> None:
    """Store sessions, events and their effect on state, as one transaction.

    It is given up after ``time_limit`` seconds, and tried ``attempts`` times while
    another transaction holds a document; then it raises ``LockedError``. Without that,
    a new session is stored without a transaction: it takes one round trip, but waits
    while another transaction holds it. If a session is not as expected, or something is
    stored already, it raises ``RefusedError``. Then nothing was written; of several
    writes others may succeed alone, of a single one :func:`append.judge` finds the
    cause.
    """
    has_guard = storage.has_transactions and storage.has_event_index
    reads_sessions = False
    for each in planned:
        write = each.write
        if isinstance(write, NewSession):
            continue
        reads_sessions |= write.title is not NOT_GIVEN or write.waiting.has_effect
        reads_sessions |= write.birth is not None
        if not has_guard and await find_event(storage, write.key, write.event_id):
            raise RefusedError
    # The writer's task is its own shield: no caller's cancellation reaches it.
    most = attempts if storage.has_transactions else None
    how: Any = {"time_limit": time_limit, "attempts": most, "shielded": False}
    if reads_sessions:
        work = partial(_write_with_sessions, storage, planned)
        await storage.run(work, kept=storage.client_sessions, **how)
    else:
        await storage.commit(*batch_statements(storage, planned, {}), **how)
    telemetry.record_size(telemetry.BATCH_SIZES, storage.database.name, len(planned))


async def _write_with_sessions(
    storage: Storage, planned: Sequence[QueuedWrite], tx: Transaction
) -> None:
    """Write a batch whose statements depend on what its sessions hold."""
    appends = [it.write for it in planned if isinstance(it.write, Append)]
    for each in filter(None, (it.birth for it in appends)):
        await branches.bear(storage, each, tx)
    waiting = await pending_calls_after_batch(storage, planned, tx)
    await tx.write(*batch_statements(storage, planned, waiting))
    for key in {it.key for it in appends if it.title is not NOT_GIVEN}:
        if found := await tx.find_one(head_query(key)):
            await branches.rename(storage, SessionRecord.read(found), tx)


def batch_statements(
    storage: Storage,
    planned: Sequence[QueuedWrite],
    waiting: Mapping[tuple[SessionKey, int], Document],
) -> list[Statement]:
    """Build the statements of a batch.

    Given are the fields of what waits after an append, if it changes that, by its
    session and revision.
    """
    # Where there are no transactions, there may be neither pipelines nor raw BSON.
    is_real = storage.has_transactions
    created: list[NewSession] = []
    appends: list[Append] = []
    events: list[Document] = []
    for each in planned:
        write, revision = each.write, each.expected.revision + 1
        if isinstance(write, NewSession):
            created.append(write)
            continue
        appends.append(write)
        after = waiting.get((write.key, revision))
        events.append(
            documents.event_document(write, revision, encoded=is_real, waiting=after)
        )
    new = [*map(documents.session_document, created)]
    updates = initial_updates(created)
    if appends:
        updates += session_updates(storage, planned, waiting)
    # Shared state ends as the last append has it, which is what subscribers who see the
    # events receive. It is last, since all users of an app meet here: what is locked
    # late is free soon.
    shared = shared_state_updates([*created, *appends])
    if is_real:
        updates, shared = ([*map(fastest_update, it)] for it in (updates, shared))
    sessions = [Insert("sessions", new)] if new else []
    inserts = [Insert("events", events)] if events else []
    return [*sessions, *updates, *inserts, *shared]


def initial_updates(sessions: Iterable[NewSession]) -> list[Update]:
    """Build the updates that store large initial states apart, at revision 0 of a log.

    A document is of one session only, and not of a later one of the same id.
    """
    return [
        initial_update(each.key, each.delta.session, each.create_time, each.log_begins)
        for each in sessions
        if needs_initial_document(each)
    ]


def initial_update(
    key: SessionKey, state: Document, created: float, begins: int
) -> Update:
    fields = {INITIAL: state, "create_time": created}
    if begins:
        fields[LOG_BEGINS] = begins
    return Update("events", {"_id": key.event_id(0)}, {"$set": fields}, upsert=True)


_MANY: Final = 500
"""Paths of an update beyond which MongoDB is faster to merge two documents."""


def fastest_update(update: Update) -> Update:
    """Return an update of a state document in the form that MongoDB is fastest at.

    It looks for each path of a ``$set`` among all the fields there are. To set 100,000
    keys would take it 43 seconds, and a pipeline that merges them takes 0.1.
    """
    change: Document = update.change  # type: ignore[assignment]
    if len(change["$set"]) <= _MANY:
        return update
    fields: Document = {}
    stage: Document = {}
    for path, value in change["$set"].items():
        if path.startswith(STATE_PATH):
            fields[path.removeprefix(STATE_PATH)] = value
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
    return update._replace(change=[{"$set": stage}])
