"""Details: the title, labels and expiry of a session, set and told to subscribers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mongo_session_service.codec.waiting_fields import WAITING_FIELDS
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.metadata import DETAILS
from mongo_session_service.model.records import ANNOUNCES_DETAILS, Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction

ANNOUNCED: Final = (*DETAILS, *WAITING_FIELDS)
"""The fields of a session that subscribers receive when one of them is changed."""


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
        where = {"_id": key.id, **queries.writable_filter(connection)}
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


async def announce_details(connection: Connection, session: Document, txn: Txn) -> None:
    """Inform the change feed of a session's details, in the transaction that sets them.

    It looks at no updates of sessions: each append is one.
    """
    id_ = queries.announcement_id(session["_id"], ANNOUNCES_DETAILS)
    details: Document = {name: session[name] for name in ANNOUNCED if name in session}
    await connection.sessions.insert_one(details | {"_id": id_}, session=txn)
    await connection.sessions.delete_one({"_id": id_}, session=txn)
