"""Details: the title, labels and expiry of a stored session, which can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn, run_transaction
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.batch import announce_details


async def update_details(
    connection: Connection,
    key: SessionKey,
    fields: Mapping[str, Any],
) -> Document:
    """Set fields of a session, remove those that are None; return it without state.

    It is finished even if the caller is cancelled.

    Raises:
        SessionNotFoundError: it is not stored, or has expired.
    """

    async def update_session(txn: Txn) -> Document | None:
        where = {"_id": key.id, **queries.writable(connection)}
        change = queries.fields_update(fields)
        updated = await connection.sessions.update_one(where, change, session=txn)
        if not updated.matched_count:
            return None
        found: Document = await connection.sessions.find_one(
            {"_id": key.id}, {"state": 0}, session=txn
        )
        if txn:
            await announce_details(connection, found, txn)
        return found

    found = await uninterrupted(run_transaction(connection, update_session))
    if found is None:
        raise session_not_found_error(key.session_id)
    return found
