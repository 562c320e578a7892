"""Deletion: removing sessions in steps of bounded size, and reserving their ids.

One transaction cannot delete 200,000 events. So a transaction replaces a long session
with a *tombstone*, further ones remove its events, and the last one removes the
tombstone: a document with the session's ``_id``, but without revision and state. No
read returns it, and no session can be created beside it. A removal that is interrupted
is resumed by the next delete of the session, by the sweep, by pruning, or by creating a
session with its id.

Each step updates the tombstone in the transaction that removes the events: a step that
comes late finds no tombstone, and cannot remove events of a new session with the same
id.

A *reservation* holds the id of a session that a fork or an import is storing. It is
such a document too, but names its holder, who renews its ``expire_time``. The session's
own document replaces it at the end, so that no reader sees a part of the session.
Removing it makes it a tombstone first: its holder cannot store the session any more.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

from mongo_session_service.codec.documents import LOG_BEGINS, TRIMMING, log_begins
from mongo_session_service.model.records import ANNOUNCES_REMOVAL, Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.storage.compat import Driver
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.retries import retry_soon
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction
from mongo_session_service.storage.translation import reporting_partial_removal

FORK: Final = "held_by"
"""The field of a reservation that names the fork that holds it."""

IMPORT: Final = "claimed_by"
"""The field of a reservation that names the import that holds it."""

TOMBSTONE_TIME: Final = 0.0
"""The ``expire_time`` of a tombstone; a reservation that is held has a later one."""

SESSIONS_AT_ONCE: Final = 50
"""Short sessions removed in one transaction."""

LENGTH: Final = dict.fromkeys(("revision", LOG_BEGINS, TRIMMING), 1)
"""The fields that tell how many events a session has."""
_REMAINS: Final = {**LENGTH, queries.TURN_EPOCH: 1}
"""And whether it has had a turn, in which something may have been said."""

MAKE_TOMBSTONE: Final = {"$set": {"expire_time": TOMBSTONE_TIME}, "$inc": {"steps": 1}}
"""The update that makes a reservation a tombstone, and counts a step of its removal.

It changes the document each time, so that concurrent transactions conflict.
"""

PLACE_ATTEMPTS: Final = 10
"""How often an id that was found free may turn out to be taken."""


@dataclass(frozen=True, slots=True)
class Reservations:
    """The reservations of one fork or import."""

    holder_field: Literal["held_by", "claimed_by"]
    lifetime: float
    """Seconds until a reservation expires, unless it is renewed."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    def new_document(self, connection: Connection, id_: Document) -> Document:
        """Build a reservation of the session with this ``_id``."""
        expire_time = connection.clock.now() + self.lifetime
        return {"_id": id_, **self._fields(expire_time)}

    def renewal_update(self, connection: Connection) -> Document | list[Document]:
        """The update that renews a reservation, or takes over another holder's."""
        if connection.driver is Driver.MOCK:
            expire_time: Any = connection.clock.now() + self.lifetime
            return {"$set": self._fields(expire_time)}
        # By the server's clock, which decides when a reservation is removed.
        return [{"$set": self._fields({"$add": [queries.SERVER_TIME, self.lifetime]})}]

    def held_filter(self, key: SessionKey, holder: str | None = None) -> Document:
        """The filter for a session's reservation, as long as its holder has it.

        The holder is another import's, if it is to be taken over.
        """
        own = {"_id": key.id, self.holder_field: holder or self.holder}
        return {**own, "expire_time": {"$gt": TOMBSTONE_TIME}}

    def _fields(self, expire_time: Any) -> Document:
        return {"expire_time": expire_time, "steps": 0, self.holder_field: self.holder}


class Removal(NamedTuple):
    """The sessions and events that one step removed."""

    sessions: int
    events: int
    is_last: bool
    """Whether nothing is left to remove."""


def deletable(connection: Connection) -> Document:
    """The filter for what a delete may remove.

    That is all but a fork that has not expired: the server may be copying events.
    """
    return {
        "$or": [
            {FORK: {"$exists": False}},
            queries.expired_on_server_filter(connection),
        ]
    }


def is_session(document: Document) -> bool:
    """Tell a session from a tombstone and a reservation, which have no revision."""
    return "revision" in document


def tombstone_filter(id_: Document) -> Document:
    """The filter for the tombstone of the session with this ``_id``."""
    return {"_id": id_, **queries.expired_filter(TOMBSTONE_TIME)}


def _placeholder_filter(id_: Document) -> Document:
    """The filter for the tombstone or the reservation with this ``_id``."""
    return {"_id": id_, "revision": {"$exists": False}}


async def remove_session(connection: Connection, key: SessionKey) -> None:
    """Remove a session and its events; do nothing if it is not stored.

    No reader sees it after the first step. If this is cancelled, the next removal of
    the session, or pruning, resumes it.
    """
    removal = await remove_some(connection, {"_id": key.id, **deletable(connection)})
    if not removal.is_last:
        # Only the tombstone: by now there may be a new session with the same id.
        with reporting_partial_removal():
            await remove_tombstone(connection, key)


async def remove_tombstone(connection: Connection, key: SessionKey) -> None:
    """Remove a session's tombstone, if there is one, and the events left with it."""
    async for _ in removals(connection, tombstone_filter(key.id)):
        pass


async def remove_expired(connection: Connection, key: SessionKey) -> bool:
    """Remove a session if it has expired or is being removed; True if its id is free.

    The id is free as well if another process removed the session meanwhile.
    """
    async for _ in removals(
        connection, {"_id": key.id, **queries.expired_on_server_filter(connection)}
    ):
        pass
    found = await retry_soon(connection.sessions.find_one, {"_id": key.id}, {"_id": 1})
    return found is None


async def removals(
    connection: Connection, wanted: Document, *, limit: float | None = None
) -> AsyncIterator[Removal]:
    """Remove sessions that match, and yield each step, until none is left.

    A step is given up after ``limit`` seconds, as if a session is locked.
    """
    is_last = False
    while not is_last:
        removal = await remove_some(connection, wanted, limit=limit)
        is_last = removal.is_last
        yield removal


async def remove_some(
    connection: Connection, wanted: Document, *, limit: float | None = None
) -> Removal:
    """Remove a few sessions, or a part of one, in one transaction.

    The transaction ends even if the caller is cancelled. Other processes may remove the
    same sessions at the same time.
    """

    async def remove_step(txn: Txn) -> Removal:
        where = connection.routed(wanted)
        cursor = connection.sessions.find(where, _REMAINS, session=txn)
        found = await cursor.limit(SESSIONS_AT_ONCE).to_list(None)
        if not found:
            return Removal(0, 0, is_last=True)
        for each in found:
            if not is_session(each):
                return await _remove_oldest_events(connection, each["_id"], txn)
        totals = accumulate(map(stored_events, found))
        most = connection.limits.removed_events
        short = [
            each for each, events in zip(found, totals, strict=True) if events <= most
        ]
        # Without transactions, a crash in between would leave events without a session.
        if not txn or not short:
            return await _replace_with_tombstone(connection, found[0], wanted, txn)
        is_last = len(short) == len(found) < SESSIONS_AT_ONCE
        return await _remove_short(connection, short, txn, is_last=is_last)

    return await uninterrupted(run_transaction(connection, remove_step, limit=limit))


async def _remove_short(
    connection: Connection, short: list[Document], txn: Txn, *, is_last: bool
) -> Removal:
    ids = [each["_id"] for each in short]
    which = connection.routed({"_id": {"$in": ids}})
    await connection.sessions.delete_many(which, session=txn)
    logs = [queries.all_events(SessionKey(**each["_id"])) for each in short]
    which = queries.any_of([connection.routed(log) for log in logs])
    await connection.events.delete_many(which, session=txn)
    await _remove_partials(connection, short, txn)
    return Removal(len(short), sum(map(stored_events, short)), is_last)


async def _remove_partials(
    connection: Connection, sessions: list[Document], txn: Txn
) -> None:
    keys = [SessionKey(**each["_id"]) for each in sessions if "turn" in each]
    if keys:
        ranges = [queries.partials_of_session(key) for key in keys]
        which = queries.any_of([connection.routed(it) for it in ranges])
        await connection.partials.delete_many(which, session=txn)


def stored_events(session: Document) -> int:
    """Count a session's stored events, at most, by its document.

    An unfinished trim (``TRIMMING``) has left some from before the log's begin.
    """
    removed: int = session.get(TRIMMING, log_begins(session))
    return int(session["revision"]) - removed


async def _replace_with_tombstone(
    connection: Connection, session: Document, wanted: Document, txn: Txn
) -> Removal:
    id_ = session["_id"]
    tombstone = {"_id": id_, "expire_time": TOMBSTONE_TIME, "steps": 0}
    if txn:
        # A delete rather than a replace: the change feed reports deletes.
        await connection.sessions.delete_one({"_id": id_}, session=txn)
        await connection.sessions.insert_one(tombstone, session=txn)
        await _remove_partials(connection, [session], txn)
        return Removal(1, 0, is_last=False)
    still = {"$and": [{"_id": id_}, wanted]}
    done = await connection.sessions.replace_one(still, tombstone)
    return Removal(done.matched_count, 0, is_last=False)


async def _remove_oldest_events(
    connection: Connection, id_: Document, txn: Txn
) -> Removal:
    """Remove events of a tombstone; with the last ones, the tombstone itself."""
    found = await connection.sessions.find_one_and_update(
        _placeholder_filter(id_), MAKE_TOMBSTONE, session=txn
    )
    if found is None:
        # Only without transactions: another process has removed the rest.
        return Removal(0, 0, is_last=False)
    most = connection.limits.removed_events
    log = connection.routed(queries.all_events(SessionKey(**id_)))
    cursor = connection.events.find(log, {"_id": 1}, session=txn).sort("_id", 1)
    oldest = [each["_id"] for each in await cursor.limit(most + 1).to_list(None)]
    if len(oldest) > most:
        log = {**log, "_id": {"$gte": oldest[0], "$lt": oldest[-1]}}
    if oldest:
        await connection.events.delete_many(log, session=txn)
    # A large initial state is kept beside the events.
    events = sum(each["revision"] > 0 for each in oldest[:most])
    if len(oldest) > most:
        return Removal(0, events, is_last=False)
    if events and (FORK in found or IMPORT in found):
        # Subscribers received these events, so they receive a "deleted" too.
        await connection.sessions.delete_one(_placeholder_filter(id_), session=txn)
    else:
        await remove_silently(connection, id_, txn)
    return Removal(0, events, is_last=False)


async def remove_silently(connection: Connection, id_: Document, txn: Txn) -> None:
    """Remove a tombstone or reservation; the feed reports no deleted session.

    All that a change stream contains of a delete is the ``_id``. A second document,
    inserted and deleted in the same transaction, says that this was no session.
    """
    announcement = {"_id": queries.announcement_id(id_, ANNOUNCES_REMOVAL)}
    if txn:
        await connection.sessions.insert_one(announcement, session=txn)
    await connection.sessions.delete_one(_placeholder_filter(id_), session=txn)
    if txn:
        await connection.sessions.delete_one(announcement, session=txn)
