"""Details: the title, labels and expiry of a session, set and announced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mongo_session_service.codec.waiting_calls import WAITING_FIELDS
from mongo_session_service.model.metadata import DETAILS
from mongo_session_service.model.records import ANNOUNCES_DETAILS, Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.reads import missing_session_error
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Delete,
    Insert,
    Query,
    Statement,
    Update,
)
from mongo_session_service.storage.transactions import Transaction

ANNOUNCED: Final = (*DETAILS, *WAITING_FIELDS, "create_time")
"""The fields of a session that are announced when one of them is changed."""


async def update_details(
    storage: Storage, key: SessionKey, fields: Mapping[str, Any]
) -> Document:
    """Set fields of a session, remove those that are None; return it without state.

    It is finished even if the caller is cancelled.

    Raises:
        SessionNotFoundError: it is not stored, or has expired.
    """

    async def update_session(tx: Transaction) -> Document | None:
        where = {"_id": key.id, **queries.writable_filter(storage)}
        change = queries.fields_update(fields)
        if await tx.write(Update("sessions", where, change)) == [0]:
            return None
        query = Query("sessions", {"_id": key.id}, without=("state",))
        found = await tx.find_one(query)
        if found is not None:
            await tx.write(*details_announcement(storage, found))
        return found

    found = await storage.run(update_session)
    if found is None:
        raise await missing_session_error(storage, key)
    return found


def details_announcement(storage: Storage, session: Document) -> list[Statement]:
    """Inform the change feed of a session's details, in the transaction that sets them.

    It looks at no updates of sessions: each append is one. Without transactions nobody
    can follow it.
    """
    if not storage.has_transactions:
        return []
    id_ = queries.announcement_id(session["_id"], ANNOUNCES_DETAILS)
    details: Document = {name: session[name] for name in ANNOUNCED if name in session}
    return [
        Insert("sessions", [details | {"_id": id_}]),
        Delete("sessions", {"_id": id_}),
    ]
