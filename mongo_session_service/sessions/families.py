"""Families: what sessions have in common with the versions of the same conversation."""

from __future__ import annotations

from collections.abc import Sequence

from bson.timestamp import Timestamp

from mongo_session_service.codec.document_size import cut_by_id_size
from mongo_session_service.codec.family_record import FamilyRecord
from mongo_session_service.codec.record import SessionRecord, readable
from mongo_session_service.model.records import Document, FamilyKey
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.transactions import Transaction


async def find_family(
    key: FamilyKey | None, where: Storage | Transaction
) -> FamilyRecord | None:
    found = key and await where.find_one(Query("families", {"_id": key.id}))
    return FamilyRecord(found) if found else None


async def join_one(
    session: SessionRecord, where: Storage | Transaction
) -> SessionRecord:
    """Add to a session what it has of its family; mostly it has none."""
    family = await find_family(session.family_key, where)
    return session if family is None else family.joined(session)


async def join(
    storage: Storage,
    sessions: Sequence[SessionRecord],
    as_of: Timestamp | None = None,
    having: Document | None = None,
) -> list[SessionRecord]:
    """Add to sessions what they have of their families, where these are stored.

    If the families are to match a filter, those of others are left out.
    """
    keys = {key: 1 for each in sessions if (key := each.family_key)}
    families: dict[FamilyKey | None, FamilyRecord] = {}
    for some in cut_by_id_size(keys):
        where = {"_id": {"$in": [each.id for each in some]}, **(having or {})}
        (found,) = await storage.read(Query("families", where), as_of=as_of)
        families |= {each.key: each for each in readable(FamilyRecord, found)}
    known = {None, *families}
    left = [it for it in sessions if having is None or it.family_key in known]
    pairs = ((each, families.get(each.family_key)) for each in left)
    return [family.joined(each) if family else each for each, family in pairs]
