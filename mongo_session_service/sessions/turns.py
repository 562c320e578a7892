"""Turn store: who has the turn of a session, and who waits for it.

The ``turn`` of a session's document has these fields:

- ``epoch``: how often it was taken; it never falls. An append within a turn expects it.
- ``holder``, ``since``, ``renewed_at``: who has it, from when on, and when that was
  renewed last. It is free without a holder, and ``LEASE`` seconds after a renewal.
- ``ticket``: the latest number that was given to somebody who has to wait;
- ``is_awaited``: whether anybody may wait. If so, only the first of them takes it.

Neither revision nor update time changes, so no loaded ``Session`` becomes stale. Who
waits has a document in ``leases``, whose ``_id`` is the session's and the number of the
ticket. Who releases the turn calls the first of them by a change of that document,
which the change feed reads. All times are the server's.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.adk.platform import time as platform_time
from pymongo.errors import ExecutionTimeout

from mongo_session_service.driver.compat import Driver
from mongo_session_service.driver.connection import Connection
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries

LEASE: Final = 6.0
"""Seconds without a renewal after which another caller can take a turn over."""

CALLS: Final = "calls"
"""The field of a waiter's document that a call increments."""

TICKET: Final = "ticket"
"""What the ``_id`` of a waiter's document has beyond its session's."""

RENEW: Final = {"$currentDate": {queries.TURN_RENEWED: True}}
"""The update that renews a turn."""

_HOLDER: Final = ("turn.holder", "turn.since", queries.TURN_RENEWED)
_RELEASE: Final = {"$unset": dict.fromkeys(_HOLDER, "")}
_DRAW: Final = {"$inc": {"turn.ticket": 1}, "$set": {"turn.is_awaited": True}}
_STAY: Final = {"$currentDate": {"renewed_at": True}}
_SHORTEST_MS: Final = 1000
"""The server's time limit for taking a turn, of a session that is locked, at least."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One caller's claim to the turn of a session."""

    connection: Connection
    key: SessionKey
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def take(self, *, is_first: bool, limit: float) -> int | None:
        """Take the turn if it is free; its new epoch.

        Args:
            is_first: Whether the caller is the first of those who wait: nobody else
                takes it while somebody waits.
            limit: Seconds after which it is given up.
        """
        where = {**self._visible(), "$or": _free(self.connection)}
        if not is_first:
            where["turn.is_awaited"] = None
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        change = {
            "$inc": {queries.TURN_EPOCH: 1},
            "$set": {"turn.holder": {**holder, "token": self.token}},
            "$currentDate": {"turn.since": True, queries.TURN_RENEWED: True},
        }
        limit_ms = max(round(min(limit, LEASE) * 1000), _SHORTEST_MS)
        is_mock = self.connection.driver is Driver.MOCK
        options = {} if is_mock else {"maxTimeMS": limit_ms}
        try:
            taken = await self._change(where, change, **options)
        except ExecutionTimeout:  # another writer has locked the session
            return None
        return None if taken is None else taken["epoch"]

    async def release(self) -> Document | None:
        """Release the turn; what remains of it, or None if it is not this claim's."""
        where = {"_id": self.key.id, "turn.holder.token": self.token}
        return await self._change(where, _RELEASE)

    async def draw(self) -> int:
        """Draw a ticket; from now on nobody takes the turn who has none.

        Raises:
            SessionNotFoundError: the session is not stored.
        """
        turn = await self._change(self._visible(), _DRAW)
        if turn is None:
            raise session_not_found_error(self.key.session_id)
        ticket: int = turn["ticket"]
        return ticket

    async def queue_up(self, ticket: int) -> None:
        """Be among those who are called."""
        waiter = {"_id": {**self.key.id, TICKET: ticket}}
        await self.connection.leases.update_one(waiter, _STAY, upsert=True)

    async def leave(self, ticket: int) -> None:
        """Be no longer among them."""
        waiter = {"_id": {**self.key.id, TICKET: ticket}}
        await self.connection.leases.delete_one(waiter)

    async def look(self) -> Document:
        """The turn as it is; empty if nobody has ever taken it.

        Raises:
            SessionNotFoundError: the session is not stored.
        """
        sessions = self.connection.sessions
        found = await sessions.find_one(self._visible(), {"turn": 1})
        if found is None:
            raise session_not_found_error(self.key.session_id)
        turn: Document = found.get("turn", {})
        return turn

    async def call_next(self, turn: Document) -> int | None:
        """Call the first of those who wait for a turn that is free; its ticket."""
        at = self.connection
        if "holder" in turn or "is_awaited" not in turn:
            return None
        first = await at.plain(at.leases).find_one_and_update(
            {**_waiters(self.key), **_alive(at)},
            {"$inc": {CALLS: 1}},
            sort=[("_id", 1)],
            projection={"_id": 1},
        )
        if first is not None:
            ticket: int = first["_id"][TICKET]
            return ticket
        await at.leases.delete_many({**_waiters(self.key), **_silent(at)})
        # Unless somebody has come since, who will be called by the next release.
        where = {"_id": self.key.id, "turn.ticket": turn["ticket"]}
        await at.sessions.update_one(where, {"$unset": {"turn.is_awaited": ""}})
        return None

    def _visible(self) -> Document:
        return {"_id": self.key.id, **queries.visible(platform_time.get_time())}

    async def _change(
        self, where: Document, change: Document, **options: Any
    ) -> Document | None:
        """Change a session's turn; as it is afterwards, None if it was not found."""
        at = self.connection
        sessions = at.plain(at.sessions)

        async def write(session: Any = None) -> Document | None:
            in_session = {} if session is None else {"session": session}
            found: Document | None = await sessions.find_one_and_update(
                where,
                change,
                projection={"turn": 1},
                return_document=True,
                **in_session,
                **options,
            )
            return found

        acknowledged: Callable[..., Awaitable[Document | None]] = at.acknowledged
        found = await (acknowledged(write) if at.has_transactions else write())
        return None if found is None else found["turn"]


async def renew_waiters(
    connection: Connection, waiters: Iterable[tuple[SessionKey, int]]
) -> None:
    """Say that some waiters, by session and ticket, are still there."""
    ids = [{**key.id, TICKET: ticket} for key, ticket in waiters]
    await connection.leases.update_many({"_id": {"$in": ids}}, _STAY)


async def first_waiters(
    connection: Connection, keys: Iterable[SessionKey]
) -> dict[SessionKey, int]:
    """The ticket of each session's first waiter, of those that are still there."""
    if not keys:
        return {}
    wanted = {"$or": [_waiters(key) for key in keys], **_alive(connection)}
    found = await connection.leases.find(wanted, {"_id": 1}).to_list(None)
    first: dict[SessionKey, int] = {}
    for each in found:
        app_name, user_id, session_id, ticket = each["_id"].values()
        key = SessionKey(app_name, user_id, session_id)
        first[key] = min(first.get(key, ticket), ticket)
    return first


async def unheld(
    connection: Connection, keys: AbstractSet[SessionKey]
) -> set[SessionKey]:
    """Those of some sessions whose turn nobody has, or which are not stored."""
    where = {
        "_id": {"$in": [key.id for key in keys]},
        "turn.holder": {"$ne": None},
        **_since_lease(connection, "$gte", queries.TURN_RENEWED),
    }
    held = await connection.sessions.find(where, {"_id": 1}).to_list(None)
    return {*keys} - {SessionKey(**each["_id"]) for each in held}


async def forget_dead_waiters(connection: Connection) -> None:
    """Remove those who have been silent for longer than anybody would be."""
    dead = {f"_id.{TICKET}": {"$gte": 0}, **_silent(connection)}
    await connection.leases.delete_many(dead)


async def forget_waiters(
    connection: Connection, app_name: str, user_id: str | None
) -> None:
    """Remove all who wait for a turn of an app's sessions, or of one user's."""
    await connection.leases.delete_many(queries.all_sessions(app_name, user_id))


def _waiters(key: SessionKey) -> Document:
    """Those who wait for a session's turn."""
    return {"_id": {"$gt": key.id, "$lt": {**key.id, TICKET: {}}}}


def _free(connection: Connection) -> list[Document]:
    """What holds of a turn that may be taken, either of it."""
    return [
        {"turn.holder": None},
        _since_lease(connection, "$lt", queries.TURN_RENEWED),
    ]


def _alive(connection: Connection) -> Document:
    """What holds of a waiter that has renewed its document."""
    return _since_lease(connection, "$gte", "renewed_at")


def _silent(connection: Connection) -> Document:
    """What holds of a waiter that has not."""
    return _since_lease(connection, "$lt", "renewed_at")


def _since_lease(connection: Connection, operator: str, name: str) -> Document:
    """How a time compares with that of the oldest renewal that still counts."""
    if connection.driver is Driver.MOCK:  # which knows no $$NOW
        now = datetime.now(UTC).replace(tzinfo=None)
        return {name: {operator: now - timedelta(seconds=LEASE)}}
    oldest = {"$subtract": ["$$NOW", round(LEASE * 1000)]}
    return {"$expr": {operator: [f"${name}", oldest]}}
