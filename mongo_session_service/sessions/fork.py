"""Forks: new sessions with another's first events, which the server copies.

A reservation holds the new session's place until all events are copied. Each step
renews it. If it expires, its removal includes the copied events, and the fork fails.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time
from pymongo import errors

from mongo_session_service.codec.bson_values import decode_fields
from mongo_session_service.codec.document_size import check_initial_state
from mongo_session_service.codec.documents import (
    FORKED_FROM,
    LOG_BEGINS,
    REDACTIONS,
    log_begins,
    session_document,
)
from mongo_session_service.errors import (
    InvalidInputError,
    StorageUnavailableError,
    quoted,
    session_exists_error,
    session_not_found_error,
)
from mongo_session_service.model.metadata import ADK_METADATA, Details, display_name
from mongo_session_service.model.records import (
    Document,
    NewSession,
    ScopedState,
    SessionKey,
)
from mongo_session_service.sessions import deletion, history, queries, rewinds
from mongo_session_service.sessions.batch import DocumentUpdate, initial_updates
from mongo_session_service.sessions.deletion import FORK, Reservations
from mongo_session_service.sessions.waiting_log import waiting_fields_at
from mongo_session_service.storage.compat import Driver
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.retries import retry_soon
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction

MAX_ORIGINS: Final = 100
"""How many sessions a fork of forks names at most, the nearest."""

FORK_LIFETIME: Final = 60.0
"""Seconds that a step may take before the fork counts as interrupted."""

_STEP_MS: Final = 40_000
"""The server's time limit for a step: it ends before the reservation expires."""

_LOST: Final = (
    "The fork took too long: its reservation expired and was removed. Try again."
)


_CHANGED: Final = "The session was {} during the fork, which was removed. Try again."


async def copy_session(
    connection: Connection,
    source: SessionKey,
    target: SessionKey,
    until: int | str | None,
) -> None:
    """Store a session with another's events up to a point, and the state they give.

    The point is the last revision to copy, or the id of the invocation whose events,
    and all that follow, are left out; None for all events. If the copy took too long,
    or the source was trimmed meanwhile, it is removed, and ``StorageUnavailableError``
    raised.
    """
    origin = await history.SessionWithInitialState.load(connection, source)
    if isinstance(until, str):
        until = await _last_revision_before(connection, source, until, origin.session)
    revision = history.check_revision(origin.session, until)
    reservations = Reservations(FORK, FORK_LIFETIME)
    fork = Fork(connection, source, target, origin, revision, reservations)
    try:
        await fork.reserve()
        await fork.copy_log()
        await fork.renew()
        await uninterrupted(fork.store_session(*await fork.build_session()))
    except (AlreadyExistsError, errors.ConnectionFailure):
        # There is no reservation to give up, or the server may still be copying, and
        # the reservation must expire.
        raise
    except BaseException:
        await uninterrupted(fork.remove_copy())
        raise


async def _last_revision_before(
    connection: Connection, source: SessionKey, invocation_id: str, session: Document
) -> int:
    log = rewinds.LogAtRevision(source, log_begins(session), session["revision"])
    firsts = await rewinds.find_firsts(connection, log, {invocation_id})
    if invocation_id not in firsts:
        which = quoted(invocation_id)
        raise InvalidInputError(f"The session has no event of invocation {which}.")
    return firsts[invocation_id] - 1


@dataclass(frozen=True, slots=True)
class Fork:
    """A new session that begins with the events of another."""

    connection: Connection
    source: SessionKey
    target: SessionKey
    origin: history.SessionWithInitialState
    revision: int
    reservations: Reservations

    @property
    def reservation(self) -> Document:
        """Return the filter for the target's reservation, as long as it is held."""
        return self.reservations.held_filter(self.target)

    async def reserve(self) -> None:
        """Hold the target's place, unless a session is stored there."""
        connection, id_ = self.connection, self.target.id
        for left in reversed(range(deletion.PLACE_ATTEMPTS)):
            reservation = self.reservations.new_document(connection, id_)
            try:
                await uninterrupted(
                    retry_soon(connection.sessions.insert_one, reservation)
                )
            except errors.DuplicateKeyError:
                if not (
                    await deletion.remove_expired(connection, self.target) and left
                ):
                    raise session_exists_error(self.target.session_id) from None
            else:
                return

    async def renew(self) -> None:
        """Hold the place for longer."""
        renewal = self.reservations.renewal_update(self.connection)
        held = await retry_soon(
            self.connection.sessions.update_one, self.reservation, renewal
        )
        if not held.matched_count:
            raise StorageUnavailableError(_LOST)

    async def copy_log(self) -> None:
        """Copy all events, in steps."""
        after = log_begins(self.origin.session)
        step = self.connection.limits.fork_step
        while after < self.revision:
            await self.renew()
            until = min(after + step, self.revision)
            try:
                await uninterrupted(retry_soon(self.copy_events, after, until))
            except errors.ExecutionTimeout:
                if step == 1:
                    raise
                step = max(step // 8, 1)  # large events; those copied are kept
            else:
                after = until

    async def copy_events(self, after: int, until: int) -> None:
        """Copy the events of one step."""
        wanted = queries.events_until(self.source, until, after)
        wanted = self.connection.routed(wanted)
        events, driver = self.connection.events, self.connection.driver
        if driver is Driver.MOCK:  # mongomock has no $merge
            found = await events.find(wanted).to_list(None)
            for each in found:
                each["_id"]["session_id"] = self.target.session_id
            await events.insert_many(found)
            return
        stages: list[dict[str, Any]] = [
            {"$match": wanted},
            {"$set": {"_id.session_id": {"$literal": self.target.session_id}}},
            {"$merge": {"into": events.name, "whenMatched": "keepExisting"}},
        ]
        await driver.fetch_all(events.aggregate(stages, maxTimeMS=_STEP_MS))

    async def build_session(self) -> tuple[Document, list[DocumentUpdate]]:
        """Build the new session's document, and updates for a large initial state."""
        head = self.origin.session
        known, state = history.recorded_initial_state(*self.origin), head["state"]
        if self.revision < head["revision"]:
            connection, key, origin = self.connection, self.source, self.origin
            known, state = await history.states_at(
                connection, key, origin, self.revision
            )
        now = platform_time.get_time()
        details = self._copied_details(state).with_renewed_expiry(
            self.connection.clock.now()
        )
        size = check_initial_state(known)
        delta = ScopedState(session=known)
        begins = log_begins(head)
        new = NewSession(
            self.target, now, delta, size, details, begins, self._origins()
        )
        log = rewinds.LogAtRevision(self.source, begins, self.revision)
        waiting = await waiting_fields_at(self.connection, log, self.target)
        document = {
            **session_document(new),
            **waiting,
            "state": state,
            "revision": self.revision,
        }
        return document, initial_updates([new])

    def _origins(self) -> list[Document]:
        head, until = self.origin.session, self.revision
        created = {"create_time": head["create_time"], "revision": until}
        older = head.get(FORKED_FROM, ())
        cut = ({**each, "revision": min(each["revision"], until)} for each in older)
        return [{"session_id": self.source.session_id, **created}, *cut][:MAX_ORIGINS]

    def _copied_details(self, state: Document) -> Details:
        """Return the source's details, titled by the display name of a past state."""
        head, hooks = self.origin.session, self.connection.hooks
        named = state.get(ADK_METADATA)
        if named == head["state"].get(ADK_METADATA) or not hooks.is_missing:
            return Details.from_document(head)
        past = decode_fields({ADK_METADATA: named})
        return replace(Details.from_document(head), title=display_name(past))

    async def store_session(
        self, document: Document, apart: list[DocumentUpdate]
    ) -> None:
        """Replace the reservation with the session, if the source still exists."""
        connection, held = self.connection, self.reservation
        source = {
            "_id": self.source.id,
            **queries.writable_filter(connection),
            "create_time": self.origin.session["create_time"],
        }
        begins = log_begins(self.origin.session)
        redactions = self.origin.session.get(REDACTIONS)

        async def replace_reservation(txn: Txn) -> None:
            fields = dict.fromkeys((LOG_BEGINS, REDACTIONS), 1)
            found = await connection.sessions.find_one(source, fields, session=txn)
            if not found:
                raise session_not_found_error(self.source.session_id)
            if log_begins(found) != begins:
                raise StorageUnavailableError(_CHANGED.format("trimmed"))
            if found.get(REDACTIONS) != redactions:
                raise StorageUnavailableError(_CHANGED.format("redacted"))
            if not await connection.sessions.find_one(held, {"_id": 1}, session=txn):
                raise StorageUnavailableError(_LOST)
            for update in apart:
                await connection.events.update_one(*update, upsert=True, session=txn)
            if txn:
                await deletion.remove_silently(connection, self.target.id, txn)
                await connection.sessions.insert_one(document, session=txn)
            else:
                await connection.sessions.replace_one(held, document)

        await run_transaction(connection, replace_reservation)

    async def remove_copy(self) -> None:
        """Remove what was copied, as far as MongoDB can be reached."""
        connection, bury = self.connection, deletion.MAKE_TOMBSTONE
        with suppress(errors.PyMongoError):
            # A tombstone even if the reservation was lost: events were copied since.
            await connection.sessions.update_one(self.reservation, bury, upsert=True)
            await deletion.remove_tombstone(connection, self.target)
