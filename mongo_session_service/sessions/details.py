"""Details: the title, labels and expiry of a session, set and announced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mongo_session_service.codec.record import STATES, RecordChange, SessionRecord
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


async def update_details(
    storage: Storage, key: SessionKey, fields: Mapping[str, Any]
) -> SessionRecord:
    """Set fields of a session, remove those that are None; return it without state.

    It is finished even if the caller is cancelled.

    Raises:
        SessionNotFoundError: it is not stored, or has expired.
    """

    async def update_session(tx: Transaction) -> SessionRecord | None:
        where = {"_id": key.id, **queries.writable_filter(storage)}
        found = await tx.find_one(Query("sessions", where, without=STATES))
        if found is None:
            return None
        change = SessionRecord.read(found).change(fields)
        await tx.write(*change_statements(storage, change, is_told=True))
        return change.after

    record = await storage.run(update_session)
    if record is None:
        raise await missing_session_error(storage, key)
    return record


def change_statements(
    storage: Storage,
    change: RecordChange,
    where: Document | None = None,
    *,
    is_told: bool = False,
) -> list[Statement]:
    """Change a session, in one transaction with what its subscribers are told of it.

    With ``where`` it is refused unless the session matches that as well.
    """
    expected = None if where is None else 1
    wanted = {"_id": change.before.id, **(where or {})}
    update = Update("sessions", wanted, change.update, expected=expected)
    is_told |= change.before.announced() != change.after.announced()
    return [update, *(announcement(storage, change.after) if is_told else [])]


def announcement(storage: Storage, session: SessionRecord) -> list[Statement]:
    """Inform the change feed of a session's details, in the transaction that sets them.

    It looks at no updates of sessions: each append is one. Without transactions nobody
    can follow it.
    """
    if not storage.has_transactions:
        return []
    id_ = queries.announcement_id(session.id, ANNOUNCES_DETAILS)
    return [
        Insert("sessions", [session.announced() | {"_id": id_}]),
        Delete("sessions", {"_id": id_}),
    ]
