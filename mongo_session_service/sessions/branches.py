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
from typing import Final, TypeAlias

from bson.timestamp import Timestamp

from mongo_session_service.codec.documents import (
    FORKED_FROM,
    NEEDS,
    check_needs,
    is_visible,
    with_known_needs,
)
from mongo_session_service.errors import session_not_found_error
from mongo_session_service.model.metadata import BRANCH, place_in_family
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import Branch
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.details import ANNOUNCED, details_announcement
from mongo_session_service.sessions.reads import missing_session_error
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query, Statement, Update
from mongo_session_service.storage.transactions import Transaction

Origin: TypeAlias = tuple[str, float]
"""A session that another is a fork of: its id and its creation time."""

FAMILY: Final = "branch.family"
SHOWN: Final[Document] = {"branch.hidden": {"$exists": False}}
"""The filter for what is shown: one range of an index, which a comparison with null is
not."""
MEMBER: Final = (*ANNOUNCED, FORKED_FROM, "revision", "update_time", NEEDS)
"""The fields of a session that its place in a family depends on."""

_CONVERSATION: Final = ("title", "labels")
"""The details that whichever session is shown takes over from the one before."""


def _family(member: Document, *, shown: bool = False) -> Query:
    """The query for a family, the oldest first; or for those of it that are shown."""
    of_user = {f"_id.{name}": member["_id"][name] for name in ("app_name", "user_id")}
    wanted = {**of_user, FAMILY: family_of(member), **(SHOWN if shown else {})}
    return Query("sessions", wanted, {"create_time": 1, "_id": 1}, fields=MEMBER)


def family_of(session: Document) -> str | None:
    return place_in_family(session).get("family")


def is_hidden(session: Document) -> bool:
    return "hidden" in place_in_family(session)


def _parent_id(member: Document) -> str | None:
    """The session that a branch was made of; None for the root."""
    return next((id_ for id_, _ in origins_in_family(member)), None)


async def find_branches(storage: Storage, key: SessionKey) -> list[Branch]:
    """Find the family of a session, the oldest first; itself, if it has none."""
    one = Query("sessions", {"_id": key.id}, fields=MEMBER)
    (found,) = answer = await storage.read(one, patient=True)
    now = storage.clock.now()
    if not found or not is_visible(found[0], now):
        raise session_not_found_error(key.session_id)
    if family_of(found[0]) is None:
        return [_as_branch(found[0], set(), shown=found[0])]
    (family,) = await storage.read(_family(found[0]), as_of=answer.as_of)
    known = [*with_known_needs(family)]
    stored = [each for each in known if is_visible(each, now)]
    if not stored:  # without snapshots, it may be gone by now
        raise session_not_found_error(key.session_id)
    shown = [each for each in known if not is_hidden(each)]
    visible = [each for each in shown if each in stored]
    # One that has expired has a successor already.
    only = visible[-1] if visible else _successor(shown, stored)
    there = {(each["_id"]["session_id"], each["create_time"]) for each in stored}
    return [_as_branch(each, there, shown=only) for each in stored]


def _as_branch(member: Document, there: set[Origin], shown: Document) -> Branch:
    of_family = origins_in_family(member)
    # What was between two versions may be deleted: it parts from the next, or the root.
    known = [shared for origin, shared in of_family.items() if origin in there]
    shared = max(known, default=min(of_family.values(), default=0))
    first = [id_ for (id_, _), it in of_family.items() if it == shared]
    return Branch(
        session_id=member["_id"]["session_id"],
        parent_id=_parent_id(member),
        before_invocation_id=place_in_family(member).get("before"),
        revision=int(shared),
        version_of=first[-1] if first else None,
        create_time=member["create_time"],
        last_update_time=member["update_time"],
        is_shown=member is shown,
    )


def origins(session: Document) -> dict[Origin, float]:
    """The sessions that one is a fork of, and how many events it has of each."""
    found = session.get(FORKED_FROM, ())
    try:
        return {(it["session_id"], it["create_time"]): it["revision"] for it in found}
    except (KeyError, TypeError):  # another tool has damaged it
        return {}


def origins_in_family(session: Document) -> dict[Origin, float]:
    """Those of a branch that are of its family, the nearest first."""
    found: dict[Origin, float] = {}
    root = place_in_family(session).get("root")
    if root in {None, session["_id"]["session_id"]}:
        return found
    for origin, shared in origins(session).items():
        found[origin] = shared
        if origin[0] == root:
            break
    return found


def _successor(removed: Sequence[Document], left: Sequence[Document]) -> Document:
    """The parent of what was shown, or else the newest of those that are left."""
    for each in removed:
        for other in left:
            if other["_id"]["session_id"] == _parent_id(each):
                return other
    return left[-1]


async def count_families(
    storage: Storage, sessions: Iterable[Document], as_of: Timestamp | None = None
) -> dict[str, int]:
    """Count the stored members of the families of some sessions, by an index alone."""
    members = [each for each in sessions if family_of(each) is not None]
    if not members:
        return {}
    where: Document = {FAMILY: {"$in": [*{family_of(each) for each in members}]}}
    for name in ("app_name", "user_id"):
        owners = [*{each["_id"][name] for each in members}]
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

    async def show(tx: Transaction) -> bool:
        where = {"_id": key.id, **queries.writable_filter(storage)}
        found = await tx.find_one(Query("sessions", where, fields=MEMBER))
        if found is None or family_of(found) is None:
            return found is not None
        shown = await tx.find(_family(found, shown=True))
        before = [each for each in shown if each["_id"] != found["_id"]]
        if is_hidden(found):
            if before and unless_another_is:
                return True
            await tx.write(*_show(storage, found, before))
        await tx.write(*_hide(storage, before, found[BRANCH]))
        return True

    if not await storage.run(show):
        raise await missing_session_error(storage, key)


async def show_successors(
    storage: Storage, removed: Iterable[Document], tx: Transaction
) -> None:
    """Show other sessions of families whose shown one the transaction has removed."""
    for each in removed:
        if family_of(each) is None or is_hidden(each):
            continue
        now = storage.clock.now()
        family = await tx.find(_family(each))
        left = [it for it in with_known_needs(family) if is_visible(it, now)]
        if left and all(map(is_hidden, left)):
            successor = _successor([each], left)
            await tx.write(*_show(storage, successor, [each]))


async def join_family(
    storage: Storage, parent: Document, branch: Document, before: str, tx: Transaction
) -> tuple[Document, list[Statement]]:
    """Make a document, about to be stored, the branch that its parent's family shows.

    Returns its document, and the statements that hide the one that was shown, which is
    the parent itself if it had no family yet.
    """
    place, shown = place_in_family(parent), [parent]
    if place:
        shown = await tx.find(_family(parent, shown=True))
    else:
        place = {"family": uuid.uuid4().hex, "root": parent["_id"]["session_id"]}
    own = {name: place[name] for name in ("family", "root")} | {"before": before}
    fields = branch | _taken_over(shown, branch) | {BRANCH: own}
    stored = {name: it for name, it in fields.items() if it is not None}
    return stored, _hide(storage, shown, place)


def _taken_over(before: Sequence[Document], session: Document) -> Document:
    """The details that a session takes over, None for those that it loses."""
    return {
        name: each.get(name) for each in before or [session] for name in _CONVERSATION
    }


def _show(
    storage: Storage, session: Document, before: Sequence[Document]
) -> list[Statement]:
    check_needs(session)
    place = {name: it for name, it in session[BRANCH].items() if name != "hidden"}
    fields = {**_taken_over(before, session), BRANCH: place}
    update = Update("sessions", {"_id": session["_id"]}, queries.fields_update(fields))
    now = {name: it for name, it in (session | fields).items() if it is not None}
    return [update, *details_announcement(storage, now)]


def _hide(
    storage: Storage, sessions: Iterable[Document], place: Document
) -> list[Statement]:
    """The statements that hide sessions; one without a family gets this place."""
    statements: list[Statement] = []
    for each in sessions:
        check_needs(each)
        hidden = {BRANCH: {**(place_in_family(each) or place), "hidden": True}}
        statements += [
            Update("sessions", {"_id": each["_id"]}, {"$set": hidden}),
            *details_announcement(storage, each | hidden),
        ]
    return statements
