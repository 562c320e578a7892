"""Forks: new sessions with another's first events, which the server copies.

A reservation holds the new session's place until all events are copied. Each step
renews it; if it expires, whoever removes it removes the copied events as well, and the
fork fails.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.platform import time as platform_time
from pymongo.errors import (
    ConnectionFailure,
    DuplicateKeyError,
    ExecutionTimeout,
    PyMongoError,
)

from mongo_session_service.codec.documents import INITIAL, session_document
from mongo_session_service.codec.limits import check_initial_state
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.compat import Driver
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import StorageUnavailableError
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, NewSession, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.deletion import (
    ATTEMPTS,
    remove_expired,
    remove_tombstone,
)
from mongo_session_service.sessions.history import (
    Beginning,
    checked,
    deltas,
    fold,
    initial_state,
    recorded,
)
from mongo_session_service.sessions.placeholders import (
    BURY,
    FORK,
    Reservations,
    remove_silently,
)
from mongo_session_service.sessions.queries import initial_updates
from mongo_session_service.sessions.store import SessionStore, already_exists, not_found

LIFETIME: Final = 60.0
"""Seconds that a step may take before the fork counts as interrupted."""

STEP: Final = 2000
"""Events copied in one step: about 0.1 s."""

_STEP_MS: Final = 40_000
"""The server's time limit for a step: it ends before the reservation expires."""

_LOST: Final = (
    "The fork took too long: its reservation expired and was removed. Try again."
)


class Copy(NamedTuple):
    """A new session that begins with the events of another."""

    source: SessionKey
    target: SessionKey
    reservations: Reservations

    @property
    def reservation(self) -> Document:
        """The filter for the target's reservation, as long as it is held."""
        return self.reservations.held(self.target)


async def copy_session(
    connection: Connection,
    store: SessionStore,
    source: SessionKey,
    target: SessionKey,
    revision: int | None,
) -> None:
    """Store a session with another's events up to a revision, and the state they give.

    Raises:
        SessionNotFoundError: the source is not stored, or is deleted meanwhile.
        AlreadyExistsError: the target is stored.
        InvalidInputError: the source has fewer events.
        StorageUnavailableError: the copy took too long; it was removed.
    """
    beginning = await Beginning.load(store, source)
    if beginning is None:
        raise not_found(source.session_id)
    revision = checked(beginning.session, revision)
    copy = Copy(source, target, Reservations(FORK, LIFETIME))
    try:
        await _reserve(connection, copy)
        await _copy_log(connection, copy, revision)
        await _renew(connection, copy)
        session = await _session(connection, copy, beginning, revision)
        await uninterrupted(_settle(connection, copy, beginning, session))
    except AlreadyExistsError:
        raise  # there is no reservation to give up
    except ConnectionFailure:
        raise  # the server may still be copying: the reservation must expire
    except BaseException:
        await uninterrupted(_give_up(connection, copy))
        raise


async def _reserve(connection: Connection, copy: Copy) -> None:
    for left in reversed(range(ATTEMPTS)):
        reservation = copy.reservations.new(copy.target.id)
        try:
            await uninterrupted(connection.sessions.insert_one(reservation))
        except DuplicateKeyError:
            now = platform_time.get_time()
            if not (await remove_expired(connection, copy.target, now) and left):
                raise already_exists(copy.target.session_id) from None
        else:
            return


async def _renew(connection: Connection, copy: Copy) -> None:
    held = await connection.sessions.update_one(
        copy.reservation, copy.reservations.renewal()
    )
    if not held.matched_count:
        raise StorageUnavailableError(_LOST)


async def _copy_log(connection: Connection, copy: Copy, revision: int) -> None:
    after, step = 0, STEP
    while after < revision:
        await _renew(connection, copy)
        until = min(after + step, revision)
        try:
            await uninterrupted(_copy_events(connection, copy, after, until))
        except ExecutionTimeout:
            if step == 1:
                raise
            step = max(step // 8, 1)  # large events; those copied are kept
        else:
            after = until


async def _copy_events(
    connection: Connection, copy: Copy, after: int, until: int
) -> None:
    wanted = queries.events_until(copy.source, until, after)
    events = connection.events
    if connection.driver is Driver.MOCK:  # mongomock has no $merge
        found = await events.find(wanted).to_list(None)
        for each in found:
            each["_id"]["session_id"] = copy.target.session_id
        await events.insert_many(found)
        return
    stages: list[dict[str, Any]] = [
        {"$match": wanted},
        {"$set": {"_id.session_id": {"$literal": copy.target.session_id}}},
        {"$merge": {"into": events.name, "whenMatched": "keepExisting"}},
    ]
    await connection.driver.results(events.aggregate(stages, maxTimeMS=_STEP_MS))


async def _session(
    connection: Connection, copy: Copy, beginning: Beginning, revision: int
) -> tuple[Document, list[queries.Update]]:
    """The new session's document, and updates that store a large initial state."""
    head = beginning.session
    known, state = recorded(*beginning), head["state"]
    if revision < head["revision"]:
        log = await deltas(connection, copy.source, revision)
        known = await initial_state(connection, copy.source, beginning, log)
        state = fold(known, log)
    now = platform_time.get_time()
    details = Details.of(head)
    if details.ttl is not None:
        details = replace(details, expire_time=now + details.ttl)
    new = NewSession(
        copy.target,
        now,
        ScopedState(session=known or {}),
        check_initial_state(known or {}),
        details,
    )
    document = {**session_document(new), "state": state, "revision": revision}
    if known is None:
        del document[INITIAL]
    return document, initial_updates([new])


async def _settle(
    connection: Connection,
    copy: Copy,
    beginning: Beginning,
    session: tuple[Document, list[queries.Update]],
) -> None:
    """Replace the reservation with the session, if the source still exists."""
    document, apart = session
    held = copy.reservation
    source = {
        "_id": copy.source.id,
        **queries.visible(platform_time.get_time()),
        "create_time": beginning.session["create_time"],
    }

    async def work(txn: Txn) -> None:
        if not await connection.sessions.find_one(source, {"_id": 1}, session=txn):
            raise not_found(copy.source.session_id)
        if not await connection.sessions.find_one(held, {"_id": 1}, session=txn):
            raise StorageUnavailableError(_LOST)
        for update in apart:
            await connection.events.update_one(*update, upsert=True, session=txn)
        if txn:
            await remove_silently(connection, copy.target.id, txn)
            await connection.sessions.insert_one(document, session=txn)
        else:
            await connection.sessions.replace_one(held, document)

    await connection.transaction(work)


async def _give_up(connection: Connection, copy: Copy) -> None:
    with suppress(PyMongoError):
        # A tombstone even if the reservation was lost: events were copied since.
        await connection.sessions.update_one(copy.reservation, BURY, upsert=True)
        await remove_tombstone(connection, copy.target)
