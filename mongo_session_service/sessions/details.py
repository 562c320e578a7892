"""Details: the title, labels and expiry of a session, set and announced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mongo_session_service.codec.record import RecordUpdate, SessionRecord
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions.families import join_one
from mongo_session_service.sessions.reads import read_writable
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Delete,
    Insert,
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

    async def update_session(tx: Transaction) -> SessionRecord:
        found = await join_one(await read_writable(storage, key, tx), tx)
        change = found.change(fields)
        await tx.write(*change_statements(storage, change, is_announced=True))
        return change.after

    return await storage.run(update_session)


def change_statements(
    storage: Storage,
    change: RecordUpdate,
    where: Document | None = None,
    *,
    is_announced: bool = False,
) -> list[Statement]:
    """Change a session, in one transaction with what its subscribers receive of it.

    With ``where`` it is refused unless the session matches that as well.
    """
    expected = None if where is None else 1
    wanted = {"_id": change.before.key.id, **(where or {})}
    updates: list[Statement] = []
    if change.update:
        updates.append(Update("sessions", wanted, change.update, expected=expected))
    if change.family_update and (family := change.before.family_key):
        updates.append(Update("families", {"_id": family.id}, change.family_update))
    if is_announced or change.before.announced != change.after.announced:
        updates += announced(storage, [change.after.announcement])
    return updates


def announced(
    storage: Storage, announcements: Sequence[Document], *writes: Statement
) -> list[Statement]:
    """Put documents that only change streams see around writes of one transaction.

    They look at no updates of sessions, since each append is one. Without transactions
    nobody can follow them.
    """
    if not storage.has_transactions or not announcements:
        return [*writes]
    gone = [Delete("sessions", {"_id": it["_id"]}, expected=1) for it in announcements]
    return [Insert("sessions", announcements), *writes, *gone]
