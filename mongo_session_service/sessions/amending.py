"""Changing a stored session's details, and telling whoever watches when it expires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.model.records import SessionKey

from . import queries
from .queries import Document
from .refused import not_found


async def amend(
    connection: Connection, key: SessionKey, fields: Mapping[str, Any], now: float
) -> Document:
    """Set fields of a session, remove those that are None; its document, stateless.

    It is finished even if the caller is cancelled.

    Raises:
        SessionNotFoundError: it is not stored, or has expired.
    """

    async def work(txn: Txn) -> Document | None:
        where = {"_id": key.id, **queries.visible(now)}
        change = queries.fields_update(fields)
        updated = await connection.sessions.update_one(where, change, session=txn)
        if not updated.matched_count:
            return None
        if txn and "expire_time" in fields:
            # The change feed looks at no updates of sessions: each append is one.
            announcement = {"_id": queries.announcement_id(key.id, queries.EXPIRES)}
            await connection.sessions.insert_one(announcement, session=txn)
            await connection.sessions.delete_one(announcement, session=txn)
        found: Document | None = await connection.sessions.find_one(
            {"_id": key.id}, {"state": 0}, session=txn
        )
        return found

    found = await uninterrupted(connection.transaction(work))
    if found is None:
        raise not_found(key.session_id)
    return found
