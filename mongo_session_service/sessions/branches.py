"""Branches: the sessions that have the versions of an edited message.

To edit a message of a session makes a *branch*: a fork of it that ends before the
message, and is kept in the *family* of the session, see
:mod:`~mongo_session_service.codec.family_record`. It is *unborn* until its first event
is stored, which adds it to the family in the same transaction: before that it is a
reservation, which nobody sees, and which expires once its turn is not renewed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from mongo_session_service.codec.family_record import FamilyRecord, Member
from mongo_session_service.codec.record import (
    FAMILY,
    STATES,
    Origin,
    SessionRecord,
    is_placeholder,
    readable,
)
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.metadata import CONVERSATION
from mongo_session_service.model.records import (
    SHARD_KEY,
    Birth,
    Document,
    FamilyKey,
    SessionKey,
)
from mongo_session_service.model.results import Branch
from mongo_session_service.sessions.details import announced, change_statements
from mongo_session_service.sessions.families import find_family, join_one
from mongo_session_service.sessions.reads import (
    found_record,
    head_query,
    read_writable,
)
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Delete,
    Query,
    RefusedError,
    Update,
)
from mongo_session_service.storage.transactions import Transaction

_CHANGED: Final = (
    "The session was trimmed or redacted during the fork, which was removed. Try again."
)


async def find_branches(storage: Storage, key: SessionKey) -> list[Branch]:
    """Find the family of a session, the oldest first; itself, if it has none."""
    found = answer = await storage.read(head_query(key), patient=True)
    one, now = found_record(storage, key, *found), storage.clock.now()
    there = {one.origin: one}
    family = None
    if one.family_key is not None:
        own = {f"_id.{name}": key.id[name] for name in SHARD_KEY} | {FAMILY: one.family}
        families, stored = await storage.read(
            Query("families", {"_id": one.family_key.id}),
            Query("sessions", own, without=STATES),
            as_of=answer.as_of,
            patient=True,
        )
        records = [it for it in SessionRecord.read_all(stored) if it.is_visible(now)]
        there |= {it.origin: it for it in records}
        family = next(map(FamilyRecord, families), None)
    if family is None or all(it.origin != one.origin for it in family.left):
        family = FamilyRecord.begin(FamilyKey(*key[:2], ""), one)
    shown = family.shown_of(there)
    return [
        Branch(
            session_id=each.id,
            parent_id=family.parent_id(each),
            before_invocation_id=each.before,
            revision=each.revision,
            version_of=version_of,
            create_time=each.created,
            last_update_time=there[each.origin].updated,
            is_shown=each.id == shown,
        )
        for each, version_of in family.versions(there)
    ]


async def show_branch(storage: Storage, key: SessionKey) -> None:
    """Have the family of a session show it; do nothing if that is so."""

    async def show(tx: Transaction) -> None:
        found = await read_writable(storage, key, tx)
        if (of := found.family_key) is None:
            return
        id_ = key.session_id
        hidden = {"_id": of.id, "members.id": id_, "shown": {"$ne": id_}}
        flip = Update("families", hidden, {"$set": {"shown": id_}})
        if stored := await tx.find_and_update(flip, before=True):
            before = FamilyRecord(stored)
            family = before.changed(before.members, id_)
            both = await _find_members(family, (id_, before.shown), tx)
            await _announce(storage, family, both, tx)

    await storage.run(show)


async def _find_members(
    family: FamilyRecord, ids: Sequence[str], tx: Transaction
) -> list[SessionRecord]:
    """Find sessions of a family, in this order, as far as they are stored."""
    wanted = [family.key.session_key(each).id for each in ids]
    query = Query("sessions", {"_id": {"$in": wanted}}, without=STATES)
    found = SessionRecord.read_all(await tx.find(query))
    return sorted(found, key=lambda each: ids.index(each.key.session_id))


async def _announce(
    storage: Storage,
    family: FamilyRecord,
    members: Iterable[SessionRecord],
    tx: Transaction,
) -> None:
    """Inform subscribers of what sessions have of their family from now on."""
    # One that joins it now does not name it yet.
    own = {FAMILY: family.key.family}
    shown = [family.joined(each.replaced(own)).announcement for each in members]
    await tx.write(*announced(storage, shown))


async def bear(storage: Storage, birth: Birth, tx: Transaction) -> None:
    """Store a fork in place of its reservation; its family shows a branch from then on.

    It is refused if the reservation is lost, or its source is not as it was.
    """
    document = birth.document
    both = {"$or": [birth.source, {"_id": document["_id"]}]}
    found = await tx.find(Query("sessions", both, without=STATES))
    held = [each for each in found if each["_id"] == document["_id"]]
    if not (held and is_placeholder(held[0])):
        raise RefusedError  # it expired; or an earlier attempt has stored it
    source = next((SessionRecord.read(it) for it in found if it not in held), None)
    if source is None:
        raise session_not_found_error(birth.source["_id"]["session_id"])
    if (source.begins, source.redactions) != birth.log:
        raise RefusedError(_CHANGED)
    if birth.before is None:
        stored = Update("sessions", birth.held, document, expected=1)
        await tx.write(*birth.beside, stored)
        return
    # From now on whoever redacts or trims the source waits, and finds the copy.
    same = Update("sessions", birth.source, {"$inc": {"steps": 1}}, expected=1)
    birth = birth._replace(beside=[*birth.beside, same])
    reservation = SessionRecord.part(SessionKey(**document["_id"]), held[0])
    await _add_to_family(storage, birth, source, reservation.turn, tx)


async def _add_to_family(
    storage: Storage,
    birth: Birth,
    source: SessionRecord,
    turn: Document,
    tx: Transaction,
) -> None:
    """Store a branch, which its family shows from then on."""
    branch = SessionRecord(SessionKey(**birth.document["_id"]), birth.document)
    before = found = await find_family(source.family_key, tx)
    if before is None or all(it.origin != source.origin for it in before.members):
        key = FamilyKey(*source.key[:2], uuid.uuid4().hex)
        before = FamilyRecord.begin(key, source)
    place = [each.origin for each in before.members].index(source.origin)
    member = Member(*branch.origin, place, birth.before, branch.revision, birth.repeats)
    family = before.changed([*before.members, member], branch.key.session_id)
    own = {**dict.fromkeys(CONVERSATION), FAMILY: family.key.family, "turn": turn}
    new = Update("sessions", birth.held, branch.replaced(own).document, expected=1)
    joining = [_joining(source, family.key)] if before is not found else []
    whole = Update("families", {"_id": family.key.id}, family.document, upsert=True)
    await tx.write(*birth.beside, new, *joining, whole)
    is_other = before.shown != source.key.session_id
    others = await _find_members(family, [before.shown], tx) if is_other else [source]
    await _announce(storage, family, others, tx)


async def rename(storage: Storage, session: SessionRecord, tx: Transaction) -> None:
    """Have the title that an append has set be that of its family; announce it."""
    joined = await join_one(session, tx)
    title = {"title": session.details.title}
    if joined is not session:
        own = {"$unset": dict.fromkeys(title, "")}
        await tx.write(Update("sessions", {"_id": session.key.id}, own))
    change = joined.change(title if joined is not session else {})
    await tx.write(*change_statements(storage, change, is_announced=True))


async def leave_families(
    storage: Storage, removed: Iterable[SessionRecord], tx: Transaction
) -> None:
    """Take sessions that the transaction removes out of their families."""
    gone: dict[FamilyKey, set[Origin]] = {}
    for each in removed:
        if (key := each.family_key) is not None:
            gone.setdefault(key, set()).add(each.origin)
    for key, origins in gone.items():
        found = await tx.find(Query("families", {"_id": key.id}))
        for before in readable(FamilyRecord, found):
            await _take_out(storage, before, origins, tx)


async def _take_out(
    storage: Storage, before: FamilyRecord, gone: set[Origin], tx: Transaction
) -> None:
    members = [it._replace(gone=it.gone or it.origin in gone) for it in before.members]
    family, own = before.changed(members, before.shown), {"_id": before.key.id}
    if not family.left:
        await tx.write(Delete("families", own))
        return
    is_gone = all(each.id != family.shown for each in family.left)
    left = await find_versions(storage, family, tx) if is_gone else []
    shown = family.shown_of({each.origin for each in left}) or family.shown
    family = family.changed(members, shown)
    await tx.write(Update("families", own, family.document))
    new = [each for each in left if each.key.session_id == shown]
    await _announce(storage, family, new, tx)


async def find_versions(
    storage: Storage, family: FamilyRecord, tx: Transaction
) -> list[SessionRecord]:
    """Find those of its sessions that are stored and in no other family."""
    ids = [family.key.session_key(each.id).id for each in family.left]
    query = Query("sessions", {"_id": {"$in": ids}}, without=STATES)
    known, now = {each.origin for each in family.left}, storage.clock.now()
    return [
        each
        for each in SessionRecord.read_all(await tx.find(query))
        if each.is_visible(now) and each.origin in known
        if each.family in {None, family.key.family}
    ]


async def restore_family(storage: Storage, family: FamilyRecord) -> None:
    """Have sessions that an import has stored be the versions that they were.

    It adds what is missing, and may be repeated.
    """

    async def restore(tx: Transaction) -> None:
        versions = await find_versions(storage, family, tx)
        new = [each for each in versions if each.family is None]
        stored = await find_family(family.key, tx)
        if not new and (stored or not versions):
            return
        there = {each.origin for each in versions}
        whole = family.merged_with(stored, there, {each.origin for each in new})
        await tx.write(
            *(_joining(each, family.key) for each in new),
            Update("families", {"_id": family.key.id}, whole.document, upsert=True),
        )
        if stored is not None and stored.shown != whole.shown:
            new += await _find_members(whole, [stored.shown], tx)
        await _announce(storage, whole, new, tx)

    await storage.run(restore)


def _joining(session: SessionRecord, key: FamilyKey) -> Update:
    """Have a session be in a family, which has its title and labels from then on."""
    change = session.change({**dict.fromkeys(CONVERSATION), FAMILY: key.family})
    return Update("sessions", {"_id": session.key.id}, change.update, expected=1)
