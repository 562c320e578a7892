"""Removing sessions for good, in small steps, however many events they have.

A transaction cannot hold 200,000 deletes. So a long session is replaced, in one, by a
remnant: a document of the same ``_id`` without revision or state, which nobody is shown
and no session can be created beside. Its events are removed step by step, and at last
it is. Whoever meets a remnant goes on with it, so a removal can be broken off anywhere.

Every step writes to the remnant in the transaction that removes the events: a step that
comes late finds it gone, and cannot touch the events of a new session of the same id.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries

STEP: Final = 1000
"""Events removed in one transaction: some 30 ms, and 200 kB of MongoDB's log."""

_SESSIONS: Final = 50
"""Sessions removed in one transaction, if they are short."""

_HOLDERS: Final = {"held_by", "claimed_by"}
"""What a remnant has that was to become a session: by a fork, or an import."""

ATTEMPTS: Final = 10
"""How often an id that was found free may be refused as taken."""


class Step(NamedTuple):
    """What one step has removed."""

    sessions: int
    events: int
    is_last: bool
    """Whether nothing was left to remove."""


async def remove_session(connection: Connection, key: SessionKey, now: float) -> None:
    """Remove a session and its events; nothing happens if it is not stored.

    It is gone from the first step on. If this is cancelled, the next removal of the
    session, or of what has expired, goes on with it.
    """
    wanted = {"_id": key.id, **queries.deletable(now)}
    step = await remove_some(connection, wanted)
    if not step.is_last:
        # The remnant only: what may be there by then is a new session of the same id.
        await _remove_all(connection, {"_id": key.id, **queries.expired(0.0)})


async def remove_expired(connection: Connection, key: SessionKey, now: float) -> bool:
    """Remove a session if it has expired, or is being removed; tell if its id is free.

    So it may be because somebody else has just removed it.
    """
    await _remove_all(connection, {"_id": key.id, **queries.expired(now)})
    return await connection.sessions.find_one({"_id": key.id}, {"_id": 1}) is None


async def _remove_all(connection: Connection, wanted: Document) -> None:
    while not (await remove_some(connection, wanted)).is_last:
        pass


async def remove_some(connection: Connection, wanted: Document) -> Step:
    """Remove a few sessions, or a part of one, as one transaction.

    It is finished even if the caller is cancelled. Other processes may do the same.

    Args:
        connection: Where to.
        wanted: A filter of the sessions to remove.
    """

    async def work(txn: Txn) -> Step:
        cursor = connection.sessions.find(wanted, {"revision": 1}, session=txn)
        found = await cursor.limit(_SESSIONS).to_list(None)
        if not found:
            return Step(0, 0, is_last=True)
        for each in found:
            if "revision" not in each:
                return await _shorten(connection, each["_id"], txn)
        # Without transactions a crash in between would leave events without session.
        short = list(_short(found)) if txn else []
        if not short:
            return await _leave_remnant(connection, found[0]["_id"], txn)
        is_last = len(short) == len(found) < _SESSIONS
        return await _remove_short(connection, short, txn, is_last=is_last)

    return await uninterrupted(connection.transaction(work))


def _short(found: list[Document]) -> Iterator[Document]:
    """Those of the sessions found that one step can remove together."""
    events = 0
    for each in found:
        events += each["revision"]
        if events <= STEP:
            yield each


async def _remove_short(
    connection: Connection, short: list[Document], txn: Txn, *, is_last: bool
) -> Step:
    ids = [each["_id"] for each in short]
    await connection.sessions.delete_many({"_id": {"$in": ids}}, session=txn)
    logs = [queries.all_events(SessionKey(**each["_id"])) for each in short]
    await connection.events.delete_many({"$or": logs}, session=txn)
    return Step(len(short), sum(each["revision"] for each in short), is_last)


async def _leave_remnant(connection: Connection, id_: Document, txn: Txn) -> Step:
    remnant = {"_id": id_, "expire_time": 0.0, "steps": 0}
    if txn:
        # A delete, since that is what the change feed tells.
        await connection.sessions.delete_one({"_id": id_}, session=txn)
        await connection.sessions.insert_one(remnant, session=txn)
    else:
        await connection.sessions.replace_one({"_id": id_}, remnant)
    return Step(1, 0, is_last=False)


async def _shorten(connection: Connection, id_: Document, txn: Txn) -> Step:
    """Remove what has the remnant's oldest events, and the remnant after the last."""
    step = {"$set": {"expire_time": 0.0}, "$inc": {"steps": 1}}
    remnant = await connection.sessions.find_one_and_update(
        _remnant(id_), step, session=txn
    )
    if remnant is None:
        return Step(0, 0, is_last=False)  # who did the rest has no transactions either
    log = queries.all_events(SessionKey(**id_))
    cursor = connection.events.find(log, {"_id": 1}, session=txn).sort("_id", 1)
    oldest = [each["_id"] for each in await cursor.limit(STEP + 1).to_list(None)]
    if len(oldest) > STEP:
        log = {"_id": {"$gte": oldest[0], "$lt": oldest[-1]}}
    if oldest:
        await connection.events.delete_many(log, session=txn)
    if len(oldest) > STEP:
        return Step(0, STEP, is_last=False)
    events = sum(each["revision"] > 0 for each in oldest)
    if events and not _HOLDERS.isdisjoint(remnant):
        # Subscribers were told these events, and so are told that they are gone.
        await connection.sessions.delete_one(_remnant(id_), session=txn)
    else:
        await remove_remnant(connection, id_, txn)
    return Step(0, events, is_last=False)


async def remove_remnant(connection: Connection, id_: Document, txn: Txn) -> None:
    """Remove a document that is no session, without the change feed telling of it.

    All a change stream says of a delete is the ``_id``. An announcement in the same
    transaction says which of them is none.
    """
    announcement = {"_id": queries.announcement_id(id_, queries.REMOVED)}
    if txn:
        await connection.sessions.insert_one(announcement, session=txn)
    await connection.sessions.delete_one(_remnant(id_), session=txn)
    if txn:
        await connection.sessions.delete_one(announcement, session=txn)


def _remnant(id_: Document) -> Document:
    return {"_id": id_, "revision": {"$exists": False}}


async def remove_events(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove events of an app, or a user, whose sessions are gone; how many it were."""
    # Their _ids begin as those of sessions do.
    wanted = queries.all_sessions(app_name, user_id)
    removed = 0

    # As one transaction, or the events may be those of a new session by then.
    async def work(txn: Txn) -> tuple[list[Document], int]:
        cursor = connection.events.find(wanted, {"_id": 1}, session=txn).sort("_id", 1)
        found = [each["_id"] for each in await cursor.limit(STEP).to_list(None)]
        orphans = await _orphans(connection, found, txn)
        if orphans:
            which = {"_id": {"$in": orphans}}
            await connection.events.delete_many(which, session=txn)
        return found, len(orphans)

    while True:
        found, gone = await uninterrupted(connection.transaction(work))
        removed += gone
        if len(found) < STEP:
            return removed
        wanted = {"_id": {**wanted["_id"], "$gt": found[-1]}}


async def _orphans(
    connection: Connection, events: list[Document], txn: Txn
) -> list[Document]:
    """The ``_id``s of those events that belong to no session, nor to what is left."""
    sessions = [SessionKey(*islice(each.values(), 3)) for each in events]
    ids = [key.id for key in set(sessions)]
    found = connection.sessions.find({"_id": {"$in": ids}}, {"_id": 1}, session=txn)
    there = {SessionKey(**each["_id"]) for each in await found.to_list(None)}
    return [
        event
        for event, session in zip(events, sessions, strict=True)
        if session not in there
    ]


async def erase_logs(
    connection: Connection, app_name: str, user_id: str | None
) -> Step:
    """Remove all sessions, and events without one that a crash may have left."""
    sessions = events = 0
    step = None
    while step is None or not step.is_last:
        wanted = queries.all_sessions(app_name, user_id)
        step = await remove_some(connection, wanted)
        sessions, events = sessions + step.sessions, events + step.events
    events += await remove_events(connection, app_name, user_id)
    return Step(sessions, events, is_last=True)
