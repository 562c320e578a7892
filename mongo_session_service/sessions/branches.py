"""Branches: the sessions that have the versions of an edited message.

To edit a message of a session makes a *branch*: a fork of it that ends before the
message, and is kept in the *family* of the session. Its document, and that of the
family's first session, the root, has a field ``branch``:

- ``family``: the id that all documents of a family have.
- ``root``: the root's session id.
- ``before``: of a branch, the invocation of its parent before which it parts from it.
- ``hidden``: True in all but the one that the family shows.

Its parent is the first that it names in ``forked_from``. Whoever makes, shows or
removes one writes the document that is shown by then as well. So of two such
transactions one waits for the other, and one session of a family is shown at any time.
Without transactions a crash may leave two of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from bson.timestamp import Timestamp

from mongo_session_service.codec.record import STATES, Origin, SessionRecord
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.metadata import BRANCH
from mongo_session_service.model.records import SHARD_KEY, Document, SessionKey
from mongo_session_service.model.results import Branch
from mongo_session_service.sessions.details import change_statements
from mongo_session_service.sessions.reads import (
    found_record,
    head_query,
    read_writable,
)
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query, Statement
from mongo_session_service.storage.transactions import Transaction

FAMILY: Final = "branch.family"
SHOWN: Final[Document] = {"branch.hidden": {"$exists": False}}
"""The filter for what is shown: one range of an index, which a comparison with null is
not."""


def _family(member: SessionRecord, *, shown: bool = False) -> Query:
    """The query for a family, the oldest first; or for those of it that are shown."""
    of_user = {f"_id.{name}": member.key.id[name] for name in SHARD_KEY}
    own = {FAMILY: member.family.get("family"), **(SHOWN if shown else {})}
    order = {"create_time": 1, "_id": 1}
    return Query("sessions", of_user | own, order, without=STATES)


async def find_branches(storage: Storage, key: SessionKey) -> list[Branch]:
    """Find the family of a session, the oldest first; itself, if it has none."""
    found = answer = await storage.read(head_query(key), patient=True)
    one = found_record(storage, key, *found)
    if not one.family:
        return [_as_branch(one, set(), shown=one)]
    (family,) = await storage.read(_family(one), as_of=answer.as_of)
    known, now = [*SessionRecord.read_all(family)], storage.clock.now()
    stored = [each for each in known if each.is_visible(now)]
    if not stored:  # without snapshots, it may be gone by now
        raise session_not_found_error(key.session_id)
    shown = [each for each in known if not each.is_hidden]
    visible = [each for each in shown if each in stored]
    # One that has expired has a successor already.
    only = visible[-1] if visible else _successor(shown, stored)
    there = {(each.key.session_id, each.created) for each in stored}
    return [_as_branch(each, there, shown=only) for each in stored]


def _as_branch(
    member: SessionRecord, there: set[Origin], shown: SessionRecord
) -> Branch:
    of_family = member.origins_in_family
    # What was between two versions may be deleted: it parts from the next, or the root.
    known = [shared for origin, shared in of_family.items() if origin in there]
    shared = max(known, default=min(of_family.values(), default=0))
    first = [id_ for (id_, _), it in of_family.items() if it == shared]
    return Branch(
        session_id=member.key.session_id,
        parent_id=member.parent_id,
        before_invocation_id=member.family.get("before"),
        revision=int(shared),
        version_of=first[-1] if first else None,
        create_time=member.created,
        last_update_time=member.updated,
        is_shown=member is shown,
    )


def _successor(
    removed: Sequence[SessionRecord], left: Sequence[SessionRecord]
) -> SessionRecord:
    """The parent of what was shown, or else the newest of those that are left."""
    for each in removed:
        for other in left:
            if other.key.session_id == each.parent_id:
                return other
    return left[-1]


async def count_families(
    storage: Storage, sessions: Iterable[SessionRecord], as_of: Timestamp | None = None
) -> dict[str, int]:
    """Count the stored members of the families of some sessions, by an index alone."""
    members = [each for each in sessions if each.family]
    if not members:
        return {}
    where: Document = {FAMILY: {"$in": [*{it.family["family"] for it in members}]}}
    for name in SHARD_KEY:
        owners = [*{each.key.id[name] for each in members}]
        where[f"_id.{name}"] = owners[0] if len(owners) == 1 else {"$in": owners}
    stages = ({"$group": {"_id": f"${FAMILY}", "size": {"$sum": 1}}},)
    (found,) = await storage.read(Query("sessions", where, then=stages), as_of=as_of)
    return {each["_id"]: each["size"] for each in found}


async def show_branch(
    storage: Storage, key: SessionKey, *, unless_another_is: bool = False
) -> None:
    """Have the family of a session show it alone; do nothing if that is so.

    It may stay hidden if another one is shown.
    """

    async def show(tx: Transaction) -> None:
        found = await read_writable(storage, key, tx)
        if not found.family:
            return
        shown = await _members(_family(found, shown=True), tx)
        before = [each for each in shown if each.key != found.key]
        if found.is_hidden:
            if before and unless_another_is:
                return
            await tx.write(*_show(storage, found, before))
        await tx.write(*_hide(storage, before, found.family))

    await storage.run(show)


async def _members(query: Query, tx: Transaction) -> list[SessionRecord]:
    return [*map(SessionRecord.read, await tx.find(query))]


async def show_successors(
    storage: Storage, removed: Iterable[SessionRecord], tx: Transaction
) -> None:
    """Show other sessions of families whose shown one the transaction has removed."""
    for each in removed:
        if not each.family or each.is_hidden:
            continue
        now = storage.clock.now()
        family = SessionRecord.read_all(await tx.find(_family(each)))
        left = [it for it in family if it.is_visible(now)]
        if left and all(it.is_hidden for it in left):
            successor = _successor([each], left)
            await tx.write(*_show(storage, successor, [each]))


async def join_family(
    storage: Storage,
    parent: SessionRecord,
    branch: Document,
    before: str,
    tx: Transaction,
) -> tuple[Document, list[Statement]]:
    """Make a document, about to be stored, the branch that its parent's family shows.

    Returns its document, and the statements that hide the one that was shown, which is
    the parent itself if it had no family yet.
    """
    place, shown = parent.family, [parent]
    if place:
        shown = await _members(_family(parent, shown=True), tx)
    else:
        place = {"family": uuid.uuid4().hex, "root": parent.key.session_id}
    own = {name: place[name] for name in ("family", "root")} | {"before": before}
    taken = shown[-1].conversation if shown else {}
    fields = branch | taken | {BRANCH: own}
    stored = {name: it for name, it in fields.items() if it is not None}
    return stored, _hide(storage, shown, place)


def _show(
    storage: Storage, session: SessionRecord, before: Sequence[SessionRecord]
) -> list[Statement]:
    place = {name: it for name, it in session.family.items() if name != "hidden"}
    taken = before[-1].conversation if before else {}
    return change_statements(storage, session.change(taken, family=place))


def _hide(
    storage: Storage, sessions: Iterable[SessionRecord], place: Document
) -> list[Statement]:
    """The statements that hide sessions; one without a family gets this place."""
    statements: list[Statement] = []
    for each in sessions:
        change = each.change(family={**(each.family or place), "hidden": True})
        statements += change_statements(storage, change)
    return statements
