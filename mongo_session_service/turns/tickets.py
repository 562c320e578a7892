"""Tickets: the order of those who wait for the turn of a session.

A turn is a lease in the field ``turn`` of the session's document, which has two more
fields once somebody has waited: ``ticket``, the latest number that was drawn, and
``is_awaited`` while somebody may be waiting: then only a waiter acquires the turn.

A waiter has a document in ``leases``, whose ``_id`` is the session's and the number of
the ticket, and renews it as a lease is renewed. Neither revision nor update time of the
session changes, so no loaded ``Session`` becomes stale.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from mongo_session_service.codec.document_size import cut_by_id_size
from mongo_session_service.driver.calls import repeat
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.lease import lease_is_free, renewal
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries

_NUMBER: Final = "ticket"
"""Extra field of the ``_id`` of a waiter's document, beside its session's."""
_RENEWAL: Final = {"$currentDate": {"renewed_at": True}}


class Ticket(NamedTuple):
    """A place in the line for the turn of a session."""

    key: SessionKey
    number: int
    create_time: float
    """The session's; one that is deleted and created again has another line."""

    @property
    def id(self) -> Document:
        """The ``_id`` of its document."""
        return {**self.key.id, _NUMBER: self.number}


class TurnStatus(NamedTuple):
    """The turn of a stored session."""

    create_time: float
    """The session's."""
    is_free: bool


async def draw_ticket(connection: Connection, key: SessionKey) -> Ticket:
    """Draw a ticket; from now on nobody acquires the turn who has none.

    Raises:
        SessionNotFoundError: the session is not stored.
    """
    session = await repeat(
        connection.plain(connection.sessions).find_one_and_update,
        stored_session_filter(connection, key),
        {"$inc": {"turn.ticket": 1}, "$set": {"turn.is_awaited": True}},
        projection={"turn.ticket": 1, "create_time": 1},
        return_document=True,
    )
    if session is None:
        raise session_not_found_error(key.session_id)
    ticket = Ticket(key, session["turn"]["ticket"], session["create_time"])
    renew = connection.leases.update_one
    await repeat(renew, {"_id": ticket.id}, _RENEWAL, upsert=True)
    return ticket


async def return_ticket(connection: Connection, ticket: Ticket) -> None:
    """Leave the line."""
    await repeat(connection.leases.delete_one, {"_id": ticket.id})


async def renew_tickets(connection: Connection, tickets: Iterable[Ticket]) -> None:
    """Note that these waiters are still there."""
    for some in cut_by_id_size(tickets):
        ids = {"_id": {"$in": [each.id for each in some]}}
        await connection.leases.update_many(ids, _RENEWAL)


async def load_turn_states(
    connection: Connection, keys: Iterable[SessionKey]
) -> dict[SessionKey, TurnStatus]:
    """The turns of some sessions, without those that are not stored."""
    now = connection.clock.now()
    fields = {"create_time": 1, "is_free": lease_is_free(connection, "turn.")}
    turns: dict[SessionKey, TurnStatus] = {}
    for some in cut_by_id_size(keys):
        ids = queries.routed(connection, {"_id": {"$in": [each.id for each in some]}})
        wanted = {**ids, **queries.visible(now)}
        pipeline: list[Document] = [{"$match": wanted}, {"$project": fields}]
        for each in await connection.aggregate(connection.sessions, pipeline):
            turn = TurnStatus(each["create_time"], each["is_free"])
            turns[SessionKey(**each["_id"])] = turn
    return turns


async def first_tickets(
    connection: Connection, keys: Iterable[SessionKey]
) -> dict[SessionKey, int]:
    """The lowest ticket in the line of each session that has waiters."""
    is_alive = {"$expr": renewal(connection, "$gte")}
    owner = {name: f"$_id.{name}" for name in SessionKey._fields}
    first = {"$group": {"_id": owner, "first": {"$min": f"$_id.{_NUMBER}"}}}
    numbers: dict[SessionKey, int] = {}
    for some in cut_by_id_size(keys):
        waiting = {
            "$match": {"$or": [_waiters_filter(key) for key in some], **is_alive}
        }
        for each in await connection.aggregate(connection.leases, [waiting, first]):
            numbers[SessionKey(**each["_id"])] = each["first"]
    return numbers


async def end_line(connection: Connection, last: Ticket) -> None:
    """Note that nobody waits any more, unless somebody has come after the last."""
    gone = {**_waiters_filter(last.key), **_silent_filter(connection)}
    await repeat(connection.leases.delete_many, gone)
    await repeat(
        connection.sessions.update_one,
        {"_id": last.key.id, "turn.ticket": last.number},
        {"$unset": {"turn.is_awaited": ""}},
    )


async def remove_silent_waiters(connection: Connection) -> None:
    """Remove the documents of waiters whose process has died."""
    silent = {f"_id.{_NUMBER}": {"$gte": 0}, **_silent_filter(connection)}
    await repeat(connection.leases.delete_many, silent)


def stored_session_filter(connection: Connection, key: SessionKey) -> Document:
    """The filter of a session that is stored."""
    return {"_id": key.id, **queries.writable(connection)}


def _waiters_filter(key: SessionKey) -> Document:
    return {"_id": {"$gt": key.id, "$lt": {**key.id, _NUMBER: {}}}}


def _silent_filter(connection: Connection) -> Document:
    """The filter of waiters that have not renewed their documents."""
    return {"$expr": renewal(connection, "$lt")}
