"""Deletion: removing sessions and their events in steps of bounded size.

One transaction cannot delete 200,000 events. So a transaction replaces a long session
with a tombstone, further ones remove its events, and the last one removes the
tombstone. A removal that is interrupted is resumed by the next delete of the session,
by pruning, or by creating a session with its id.

Each step updates the tombstone in the transaction that removes the events: a step that
comes late finds no tombstone, and cannot remove events of a new session with the same
id.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate, islice
from typing import Final, NamedTuple

from pymongo.errors import ExecutionTimeout, OperationFailure
from pymongo.read_concern import ReadConcern

from mongo_session_service.codec.documents import LOG_BEGINS, OVER, TRIMMING, log_begins
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn, run_transaction
from mongo_session_service.driver.translation import in_parts
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import placeholders, queries

STEP: Final = 1000
"""Events removed in one transaction: about 30 ms, and 200 kB in MongoDB's oplog."""

_SESSIONS: Final = 50
"""Short sessions removed in one transaction."""

_MARK_MS: Final = 100
"""The server's time limit for marking expired sessions, of which some may be locked."""

_MARK_PART_MS: Final = 20
"""The same for a part of them, once one has turned out to be locked."""

_MARK_TIMES: Final = 20
"""How often a limit may be reached before the rest is left for later."""

LENGTH: Final = dict.fromkeys(("revision", LOG_BEGINS, TRIMMING), 1)
"""What tells how many events a session has."""

_UNAUTHORIZED: Final = 13

ATTEMPTS: Final = 10
"""How often an id that was found free may turn out to be taken."""


class Step(NamedTuple):
    """What one step removed."""

    sessions: int
    events: int
    is_last: bool
    """Whether nothing is left to remove."""


async def remove_session(connection: Connection, key: SessionKey, now: float) -> None:
    """Remove a session and its events; do nothing if it is not stored.

    No reader sees it after the first step. If this is cancelled, the next removal of
    the session, or pruning, resumes it.
    """
    wanted = {"_id": key.id, **placeholders.deletable(now)}
    step = await remove_some(connection, wanted)
    if not step.is_last:
        # Only the tombstone: by now there may be a new session with the same id.
        with in_parts():
            await remove_tombstone(connection, key)


async def remove_tombstone(connection: Connection, key: SessionKey) -> None:
    """Remove a session's tombstone, if there is one, and the events left with it."""
    await _remove_all(connection, placeholders.buried_at(key))


async def remove_expired(connection: Connection, key: SessionKey, now: float) -> bool:
    """Remove a session if it has expired or is being removed; whether its id is free.

    The id is free as well if another process removed the session meanwhile.
    """
    await _remove_all(connection, {"_id": key.id, **queries.expired(now)})
    return await connection.sessions.find_one({"_id": key.id}, {"_id": 1}) is None


async def ended(
    connection: Connection, ids: list[Document], now: float
) -> list[Document]:
    """Which sessions have expired for good, by their ``_id``.

    An append that began in time, and renews its session, may not be committed yet. So a
    session that has expired is marked. The mark waits for such an append, which then
    has renewed the session; an append that comes later finds the mark, and no session.
    A session that cannot be marked at once is not among the result.
    """
    parts, limit, times = deque([ids]), _MARK_MS, _MARK_TIMES
    while parts and times:
        part = parts.popleft()
        try:
            await _mark(connection, part, now, limit)
        except ExecutionTimeout:
            # A session is locked, which the others need not wait for.
            parts += [part[::2], part[1::2]] if len(part) > 1 else []
            limit, times = _MARK_PART_MS, times - 1
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            return ids  # a user who may only read cannot find out more
    marked = {"_id": {"$in": ids}, **queries.expired(now), "ttl": OVER}
    sessions = connection.sessions.with_options(read_concern=ReadConcern("majority"))
    return [it["_id"] for it in await sessions.find(marked, {"_id": 1}).to_list(None)]


async def _mark(
    connection: Connection, ids: list[Document], now: float, limit: int
) -> None:
    """Mark those of some sessions that have expired, within milliseconds."""
    which = {"_id": {"$in": ids}, **queries.expired(now), "ttl": {"$ne": OVER}}
    mark = {"q": which, "u": {"$set": {"ttl": OVER}}, "multi": True}
    command = {
        "update": connection.sessions.name,
        "updates": [mark],
        "writeConcern": connection.sessions.write_concern.document,
        "maxTimeMS": limit,
    }
    await connection.database.command(command)


async def _remove_all(connection: Connection, wanted: Document) -> None:
    while not (await remove_some(connection, wanted)).is_last:
        pass


async def remove_some(connection: Connection, wanted: Document) -> Step:
    """Remove a few sessions, or a part of one, in one transaction.

    The transaction ends even if the caller is cancelled. Other processes may remove the
    same sessions at the same time.

    Args:
        connection: The database.
        wanted: The filter for the sessions to remove.
    """

    async def work(txn: Txn) -> Step:
        where = queries.routed(connection, wanted)
        cursor = connection.sessions.find(where, LENGTH, session=txn)
        found = await cursor.limit(_SESSIONS).to_list(None)
        if not found:
            return Step(0, 0, is_last=True)
        for each in found:
            if placeholders.is_placeholder(each):
                return await _shorten(connection, each["_id"], txn)
        totals = accumulate(map(stored_events, found))
        short = [
            each for each, events in zip(found, totals, strict=True) if events <= STEP
        ]
        # Without transactions, a crash in between would leave events without a session.
        if not txn or not short:
            return await _bury(connection, found[0]["_id"], wanted, txn)
        is_last = len(short) == len(found) < _SESSIONS
        return await _remove_short(connection, short, txn, is_last=is_last)

    return await uninterrupted(run_transaction(connection, work))


async def _remove_short(
    connection: Connection, short: list[Document], txn: Txn, *, is_last: bool
) -> Step:
    ids = [each["_id"] for each in short]
    which = queries.routed(connection, {"_id": {"$in": ids}})
    await connection.sessions.delete_many(which, session=txn)
    logs = [queries.all_events(SessionKey(**each["_id"])) for each in short]
    which = queries.any_of([queries.routed(connection, log) for log in logs])
    await connection.events.delete_many(which, session=txn)
    return Step(len(short), sum(map(stored_events, short)), is_last)


def stored_events(session: Document) -> int:
    """How many events of a session are stored, at most."""
    removed: int = session.get(TRIMMING, log_begins(session))
    return int(session["revision"]) - removed


async def _bury(
    connection: Connection, id_: Document, wanted: Document, txn: Txn
) -> Step:
    """Replace a session with a tombstone, if it is still wanted."""
    tombstone = placeholders.tombstone(id_)
    if txn:
        # A delete rather than a replace: the change feed reports deletes.
        await connection.sessions.delete_one({"_id": id_}, session=txn)
        await connection.sessions.insert_one(tombstone, session=txn)
    else:
        still = {"$and": [{"_id": id_}, wanted]}
        done = await connection.sessions.replace_one(still, tombstone)
        return Step(done.matched_count, 0, is_last=False)
    return Step(1, 0, is_last=False)


async def _shorten(connection: Connection, id_: Document, txn: Txn) -> Step:
    """Remove a placeholder's oldest events; with the last ones, the placeholder."""
    found = await connection.sessions.find_one_and_update(
        placeholders.at(id_), placeholders.BURY, session=txn
    )
    if found is None:
        # Only without transactions: another process has removed the rest.
        return Step(0, 0, is_last=False)
    log = queries.routed(connection, queries.all_events(SessionKey(**id_)))
    cursor = connection.events.find(log, {"_id": 1}, session=txn).sort("_id", 1)
    oldest = [each["_id"] for each in await cursor.limit(STEP + 1).to_list(None)]
    if len(oldest) > STEP:
        log = {**log, "_id": {"$gte": oldest[0], "$lt": oldest[-1]}}
    if oldest:
        await connection.events.delete_many(log, session=txn)
    if len(oldest) > STEP:
        return Step(0, STEP, is_last=False)
    events = sum(each["revision"] > 0 for each in oldest)
    if events and placeholders.was_reserved(found):
        # Subscribers received these events, so they receive a "deleted" too.
        await connection.sessions.delete_one(placeholders.at(id_), session=txn)
    else:
        await placeholders.remove_silently(connection, id_, txn)
    return Step(0, events, is_last=False)


async def remove_events(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove events of an app or user that have no session; how many."""
    # The _id of an event begins with that of its session.
    wanted = queries.all_sessions(app_name, user_id)
    removed = 0

    # In one transaction, or the events may belong to a new session by then.
    async def work(txn: Txn) -> tuple[list[Document], int]:
        where = queries.routed(connection, wanted)
        cursor = connection.events.find(where, {"_id": 1}, session=txn).sort("_id", 1)
        found = [each["_id"] for each in await cursor.limit(STEP).to_list(None)]
        orphans = await _orphans(connection, found, txn) if found else []
        if orphans:
            which = queries.routed(connection, {"_id": {"$in": orphans}})
            await connection.events.delete_many(which, session=txn)
        return found, len(orphans)

    while True:
        found, gone = await uninterrupted(run_transaction(connection, work))
        removed += gone
        if len(found) < STEP:
            return removed
        wanted = {"_id": {**wanted["_id"], "$gt": found[-1]}}


async def _orphans(
    connection: Connection, events: list[Document], txn: Txn
) -> list[Document]:
    """The ``_id``s of the events that have neither session nor placeholder."""
    keys = {SessionKey(*islice(each.values(), 3)) for each in events}
    ids = [key.id for key in keys]
    wanted = queries.routed(connection, {"_id": {"$in": ids}})
    found = connection.sessions.find(wanted, {"_id": 1}, session=txn)
    keys -= {SessionKey(**each["_id"]) for each in await found.to_list(None)}
    return [each for each in events if SessionKey(*islice(each.values(), 3)) in keys]


async def erase_logs(
    connection: Connection, app_name: str, user_id: str | None
) -> Step:
    """Remove all sessions, and events without one that a crash may have left."""
    wanted = queries.all_sessions(app_name, user_id)
    step = await remove_some(connection, wanted)
    sessions, events = step.sessions, step.events
    with in_parts():
        while not step.is_last:
            step = await remove_some(connection, wanted)
            sessions, events = sessions + step.sessions, events + step.events
        events += await remove_events(connection, app_name, user_id)
    return Step(sessions, events, is_last=True)
