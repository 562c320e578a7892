"""Making a session of another's beginning; the server copies the events.

Until all of them are there, the place is held by a document without revision, as a
session that is being removed leaves one: nobody is shown it, no session can be created
beside it, and once it has expired, whoever removes that removes the copy as far as it
has come. It is renewed with each step, and what was lost is not made a session.
"""

from __future__ import annotations

import uuid
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

from mongo_session_service.codec.limits import check_initial_state
from mongo_session_service.codec.shapes import (
    INITIAL,
    initial_updates,
    session_document,
)
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.compat import Driver, results_of
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
    remove_remnant,
)
from mongo_session_service.sessions.history import (
    Beginning,
    checked,
    deltas,
    fold,
    initial_state,
    recorded,
)
from mongo_session_service.sessions.store import SessionStore, already_exists, not_found

LIFETIME: Final = 60.0
"""Seconds a copy may take for a step before it is taken for broken off."""

STEP: Final = 2000
"""Events copied at once: some 0.1 s."""

_STEP_MS: Final = 40_000
"""What the server may take for it: it ends before anyone removes the copy."""

_LOST: Final = (
    "The fork took too long, and was removed as if it had been broken off. Try again."
)


class Copy(NamedTuple):
    """A session to be made of the beginning of another."""

    source: SessionKey
    target: SessionKey
    holder: str
    """Whose the place of the target is."""

    @property
    def claim(self) -> Document:
        """The filter for its place, as long as it is held."""
        # Who removes it sets its time to zero first.
        return {
            "_id": self.target.id,
            "held_by": self.holder,
            "expire_time": {"$gt": 0.0},
        }


async def copy_session(
    connection: Connection,
    store: SessionStore,
    source: SessionKey,
    target: SessionKey,
    revision: int | None,
) -> None:
    """Make a session of another's log up to a revision, and the state it folds to.

    Raises:
        SessionNotFoundError: the source is not stored, or is deleted meanwhile.
        AlreadyExistsError: the target is stored.
        InvalidInputError: the source has not come to that revision.
        StorageUnavailableError: the copy took too long; nothing is left of it.
    """
    beginning = await Beginning.load(store, source)
    if beginning is None:
        raise not_found(source.session_id)
    revision = checked(beginning.session, revision)
    copy = Copy(source, target, uuid.uuid4().hex)
    try:
        await _take_place(connection, copy)
        await _copy_log(connection, copy, revision)
        await _renew(connection, copy)
        session = await _session(connection, copy, beginning, revision)
        await uninterrupted(_settle(connection, copy, beginning, session))
    except AlreadyExistsError:
        raise  # the place is another's
    except ConnectionFailure:
        raise  # the server may be copying still, so its place is left to expire
    except BaseException:
        await uninterrupted(_give_up(connection, copy))
        raise


async def _take_place(connection: Connection, copy: Copy) -> None:
    for left in reversed(range(ATTEMPTS)):
        now = platform_time.get_time()
        place = {"_id": copy.target.id, "held_by": copy.holder, "steps": 0}
        try:
            await uninterrupted(
                connection.sessions.insert_one({**place, "expire_time": now + LIFETIME})
            )
        except DuplicateKeyError:
            if not (await remove_expired(connection, copy.target, now) and left):
                raise already_exists(copy.target.session_id) from None
        else:
            return


async def _renew(connection: Connection, copy: Copy) -> None:
    expire_time = platform_time.get_time() + LIFETIME
    held = await connection.sessions.update_one(
        copy.claim, {"$set": {"expire_time": expire_time}}
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
            step = max(step // 8, 1)  # they are large; what was copied is kept
        else:
            after = until


async def _copy_events(
    connection: Connection, copy: Copy, after: int, until: int
) -> None:
    wanted = queries.events_until(copy.source, until, after)
    events = connection.events
    if connection.driver is Driver.MOCK:  # which has no $merge
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
    aggregate = events.aggregate(stages, maxTimeMS=_STEP_MS)
    await results_of(aggregate, connection.driver)


async def _session(
    connection: Connection, copy: Copy, beginning: Beginning, revision: int
) -> tuple[Document, list[queries.Update]]:
    """The new session's document, and what stores its initial state apart."""
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
    """Put the session in its place, if that is held and the source still there."""
    document, apart = session
    source = {
        "_id": copy.source.id,
        **queries.visible(platform_time.get_time()),
        "create_time": beginning.session["create_time"],
    }

    async def work(txn: Txn) -> None:
        if not await connection.sessions.find_one(source, {"_id": 1}, session=txn):
            raise not_found(copy.source.session_id)
        if not await connection.sessions.find_one(copy.claim, {"_id": 1}, session=txn):
            raise StorageUnavailableError(_LOST)
        for update in apart:
            await connection.events.update_one(*update, upsert=True, session=txn)
        if txn:
            await remove_remnant(connection, copy.target.id, txn)
            await connection.sessions.insert_one(document, session=txn)
        else:
            await connection.sessions.replace_one(copy.claim, document)

    await connection.transaction(work)


async def _give_up(connection: Connection, copy: Copy) -> None:
    gone = {"$set": {"expire_time": 0.0}}
    with suppress(PyMongoError):
        # If the place was lost, it is taken again to remove what was copied since.
        await connection.sessions.update_one(copy.claim, gone, upsert=True)
        await remove_expired(connection, copy.target, 0.0)
