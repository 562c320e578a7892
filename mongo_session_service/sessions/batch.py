"""Batch: the documents that one transaction writes, and why it was refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from google.adk.errors.already_exists_error import AlreadyExistsError

from mongo_session_service import telemetry
from mongo_session_service.codec import documents
from mongo_session_service.codec.documents import needs_initial_document
from mongo_session_service.codec.record import INITIAL, LOG_BEGINS, SessionRecord
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
from mongo_session_service.sessions.details import announcement
from mongo_session_service.sessions.queries import (
    TURN_EPOCH,
    TURN_FIRST_REVISION,
    TURN_RENEWED,
    user_state_id,
)
from mongo_session_service.sessions.reads import (
    find_event_document,
    find_session,
    head_query,
)
from mongo_session_service.sessions.waiting_log import pending_calls_after_batch
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Insert,
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
        time_limit: float,
        attempts: int | None,
    ) -> None:
        """Store sessions, events and their effect on state, as one transaction.

        It is given up after ``time_limit`` seconds, and tried ``attempts`` times while
        another transaction holds a document; then it raises ``LockedError``. Without
        that, a new session is stored without a transaction: it takes one round trip,
        but waits while another transaction holds it. If a session is not as expected,
        or something is stored already, it raises ``RefusedError``. Then nothing was
        written; of several writes others may succeed alone, of a single one
        :meth:`judge_refused` finds the cause.
        """
        storage = self._storage
        if not (storage.has_transactions and storage.has_event_index):
            await self._refuse_known_events(planned)
        most = attempts if storage.has_transactions else None
        if any(map(_needs_session, planned)):
            write = partial(self._write_with_sessions, planned)
            kept = storage.client_sessions
            await storage.run(write, time_limit=time_limit, attempts=most, kept=kept)
        else:
            statements = batch_statements(storage, planned, {})
            await storage.commit(*statements, time_limit=time_limit, attempts=most)
        telemetry.record_size(
            telemetry.BATCH_SIZES, storage.database.name, len(planned)
        )

    async def _write_with_sessions(
        self, planned: Sequence[PlannedWrite], tx: Transaction
    ) -> None:
        """Write a batch whose statements depend on what its sessions hold."""
        storage = self._storage
        waiting = await pending_calls_after_batch(storage, planned, tx)
        await tx.write(*batch_statements(storage, planned, waiting))
        renamed = {
            it.write.key
            for it in planned
            if isinstance(it.write, Append) and it.write.title is not NOT_GIVEN
        }
        for key in renamed if storage.has_transactions else ():
            if found := await tx.find_one(head_query(key)):
                await tx.write(*announcement(storage, SessionRecord.read(found)))

    async def _refuse_known_events(self, planned: Sequence[PlannedWrite]) -> None:
        for write in (each.write for each in planned):
            if isinstance(write, Append) and await find_event_document(
                self._storage, write.key, write.event["id"]
            ):
                raise RefusedError

    async def judge_refused(
        self, planned: PlannedWrite, *, time_limit: float, may_retry: bool
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

        async def find(tx: Transaction) -> tuple[SessionRecord, Document | None]:
            session = await find_session(self._storage, write.key, tx)
            event = await find_event_document(tx, write.key, write.event["id"])
            return session, event

        # A primary may show what it has not replicated, and lose it when it is deposed.
        # What a transaction has read is on a majority once it is committed.
        session, stored = await self._storage.run(find, time_limit=time_limit)
        marker = session.marker
        if stored is None:
            epoch = session.turn.get("epoch")
            if write.fence not in {None, (epoch, marker.create_time)}:
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


def _needs_session(planned: PlannedWrite) -> bool:
    """True if what a write stores depends on what its session holds."""
    write = planned.write
    return isinstance(write, Append) and (
        write.title is not NOT_GIVEN or write.waiting.has_effect
    )


def batch_statements(
    storage: Storage,
    planned: Sequence[PlannedWrite],
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
    statements: list[Statement] = []
    if created:
        statements.append(
            Insert("sessions", [*map(documents.session_document, created)])
        )
    updates = initial_updates(created) if created else []
    if appends:
        updates += session_updates(storage, planned, waiting)
    # Shared state ends as the last append has it, which is what subscribers who see the
    # events receive. It is last, since all users of an app meet here: what is locked
    # late is free soon.
    shared = shared_state_updates([*created, *appends])
    if is_real:
        updates, shared = (
            [*map(fastest_update, updates)],
            [*map(fastest_update, shared)],
        )
    inserts = [Insert("events", events)] if events else []
    return [*statements, *updates, *inserts, *shared]


def initial_updates(sessions: Iterable[NewSession]) -> list[Update]:
    """Build the updates that store large initial states apart, at revision 0 of a log.

    A document is of one session only, and not of a later one of the same id.
    """
    return [
        Update(
            "events",
            {"_id": each.key.event_id(0)},
            {"$set": _initial(each)},
            upsert=True,
        )
        for each in sessions
        if needs_initial_document(each)
    ]


def _initial(session: NewSession) -> Document:
    fields = {INITIAL: session.delta.session, "create_time": session.create_time}
    return fields | ({LOG_BEGINS: session.log_begins} if session.log_begins else {})


def session_updates(
    storage: Storage,
    planned: Iterable[PlannedWrite],
    waiting: Mapping[tuple[SessionKey, int], Document],
) -> list[Update]:
    """Build the updates of appends to their sessions: one for each session.

    The filter is the first append's expectation, so that an update that matches nothing
    means a session that has moved on, has expired, or has got another time to live. An
    append within a turn expects that nobody has taken the turn since, and renews it.
    Given are the fields of what waits after an append, if it changes that, by its
    session and revision.
    """
    updates: dict[SessionKey, Update] = {}
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
                **queries.NEEDS_KNOWN,
                **(queries.alive_filter(storage) if expires else {"expire_time": None}),
            }
            update = Update("sessions", expectation, {"$set": {}}, expected=1)
            updates[append.key] = update
        change: Document = update.change  # type: ignore[assignment]
        if append.fence is not None:
            epoch, create_time = append.fence
            held = {TURN_EPOCH: epoch, "create_time": create_time}
            wanted = update.filter.setdefault("$and", [])
            wanted += [held] if held not in wanted else []
            change["$currentDate"] = {TURN_RENEWED: True}
            # The least is that of the turn's first event.
            first = {TURN_FIRST_REVISION: expected.revision + 1}
            change.setdefault("$min", first)
        changes = change["$set"]
        for name, value in append.delta.session.items():
            changes[_STATE + name] = value
        changes["revision"] = expected.revision + 1
        changes["update_time"] = append.timestamp
        if expected.ttl is not None:
            # No clock that was set back shortens a life.
            change["$max"] = {"expire_time": each.now + expected.ttl}
        if append.title is not NOT_GIVEN:
            _set_or_remove(change, {"title": append.title})
        if after := waiting.get((append.key, expected.revision + 1)):
            _set_or_remove(change, after)
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


def shared_state_updates(writes: Iterable[Append | NewSession]) -> list[Update]:
    """Build the updates of users' and then apps' states; later deltas come last."""
    deltas: dict[tuple[str, ...], list[Document]] = {}
    for write in writes:
        if write.delta.user:
            deltas.setdefault(write.key[:2], []).append(write.delta.user)
        if write.delta.app:
            deltas.setdefault(write.key[:1], []).append(write.delta.app)
    updates = []
    for owner in sorted(deltas, key=len, reverse=True):
        several = deltas[owner]
        fields = {_STATE + name: it for delta in several for name, it in delta.items()}
        change = {"$set": fields, "$inc": {"revision": len(several)}}
        is_app = len(owner) == 1
        id_: Any = owner[0] if is_app else user_state_id(*owner)
        collection = "app_states" if is_app else "user_states"
        updates.append(Update(collection, {"_id": id_}, change, upsert=True))
    return updates


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
    return update._replace(change=[{"$set": stage}])


_STATE: Final = "state."
