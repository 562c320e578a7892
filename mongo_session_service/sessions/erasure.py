"""Erasure: removes everything of an app, or of a user, whatever has stored it."""

from __future__ import annotations

from itertools import islice
from typing import Final

from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import Erased
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.deletion import removals, remove_some
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.retries import retry_soon
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction
from mongo_session_service.storage.translation import reporting_partial_removal

_AFTER_EVERY_EVENT: Final = SessionKey("\U0010ffff", "", "").event_id(0)
"""After every event, as MongoDB compares strings: by their bytes."""


async def erase_owner(
    connection: Connection, app_name: str, user_id: str | None
) -> Erased:
    """Remove an app, or a user of it: sessions, states, and progress of all kinds."""
    wanted = queries.all_sessions(app_name, user_id)
    removal = await remove_some(connection, wanted)
    sessions, events = removal.sessions, removal.events
    owner = {"app_name": app_name} | ({} if user_id is None else {"user_id": user_id})
    of_owner = {f"_id.{name}": id_ for name, id_ in owner.items()}
    states = queries.all_user_states(app_name, user_id)
    notes: Document = {"_id": {"of": owner}}
    if user_id is None:
        notes = {"$or": [{"_id": {"of": app_name}}, {"_id.of.app_name": app_name}]}
    with reporting_partial_removal():
        if not removal.is_last:
            async for step in removals(connection, wanted):
                sessions, events = sessions + step.sessions, events + step.events
        events += await _remove_orphans(connection, wanted)
        users = await retry_soon(
            connection.user_states.delete_many, connection.routed(states)
        )
        await retry_soon(connection.imports.delete_many, notes)
        await retry_soon(
            connection.leases.delete_many, wanted
        )  # whom turns keep waiting
        letters = await connection.dead_letters.delete_many(of_owner)
        apps = consumers = 0
        if user_id is None:
            app = await retry_soon(connection.app_states.delete_one, {"_id": app_name})
            apps = app.deleted_count
            consumers = await _remove_consumers(connection, app_name)
        positions = await _erase_from_checkpoints(connection, owner)
    return Erased(
        sessions=sessions,
        events=events,
        user_states=users.deleted_count,
        app_states=apps,
        dead_letters=letters.deleted_count,
        checkpoints=consumers + positions,
    )


async def _remove_consumers(connection: Connection, app_name: str) -> int:
    """Remove the consumers of an app's changes, and count them."""
    found = connection.checkpoints.find({"app_name": app_name}, {"_id": 1})
    names = [each["_id"] for each in await found.to_list(None)]
    await connection.dead_letters.delete_many({"_id.consumer": {"$in": names}})
    for collection in (connection.checkpoints, connection.leases):
        await collection.delete_many({"_id": {"$in": names}})
    return len(names)


async def _erase_from_checkpoints(connection: Connection, owner: Document) -> int:
    """Remove ids of an app, or of a user, from checkpoints; count those that had some.

    No consumer receives anything twice, or misses anything that is not erased.
    """
    changed = 0
    cursor = connection.checkpoints.find({"position": {"$ne": None}}, {"_id": 1})
    for name in [each["_id"] for each in await cursor.to_list(None)]:
        while (
            checkpoint := await connection.checkpoints.find_one({"_id": name})
        ) is not None:
            before = checkpoint["position"]
            after = await _position_without(connection, before, owner)
            if after == before:
                break
            saved = await connection.checkpoints.update_one(
                {"_id": name, "position": before}, {"$set": {"position": after}}
            )
            if saved.matched_count:
                changed += 1
                break
    return changed


async def _position_without(
    connection: Connection, position: Document, owner: Document
) -> Document:
    """Move a stored position behind the events of an owner."""
    replayed = position["replayed"]
    if not (replayed and owner.items() <= replayed.items()):
        return position
    return position | {"replayed": await _id_after(connection, owner)}


async def _id_after(connection: Connection, owner: Document) -> Document:
    """Find an ``_id`` right before the first event after all of an owner's."""
    # A document is greater than any text.
    upper = owner | {SessionKey._fields[len(owner)]: {}}
    following = connection.events.find({"_id": {"$gt": upper}}, {"_id": 1}).sort(
        "_id", 1
    )
    for each in await following.limit(1).to_list(None):
        return {**each["_id"], "revision": each["_id"]["revision"] - 1}
    return _AFTER_EVERY_EVENT


async def _remove_orphans(connection: Connection, wanted: Document) -> int:
    """Remove events without a session, as a crash may leave them; return how many."""
    # The _id of an event begins with that of its session.
    most = connection.limits.removed_events
    removed = 0

    # In one transaction, or the events may belong to a new session by then.
    async def remove_page(txn: Txn) -> tuple[list[Document], int]:
        where = connection.routed(wanted)
        cursor = connection.events.find(where, {"_id": 1}, session=txn).sort("_id", 1)
        found = [each["_id"] for each in await cursor.limit(most).to_list(None)]
        orphans = await _select_orphans(connection, found, txn) if found else []
        if orphans:
            which = connection.routed({"_id": {"$in": orphans}})
            await connection.events.delete_many(which, session=txn)
        return found, len(orphans)

    while True:
        found, gone = await uninterrupted(run_transaction(connection, remove_page))
        removed += gone
        if len(found) < most:
            return removed
        wanted = {"_id": {**wanted["_id"], "$gt": found[-1]}}


async def _select_orphans(
    connection: Connection, events: list[Document], txn: Txn
) -> list[Document]:
    keys = {SessionKey(*islice(each.values(), 3)) for each in events}
    ids = [key.id for key in keys]
    wanted = connection.routed({"_id": {"$in": ids}})
    found = connection.sessions.find(wanted, {"_id": 1}, session=txn)
    keys -= {SessionKey(**each["_id"]) for each in await found.to_list(None)}
    return [each for each in events if SessionKey(*islice(each.values(), 3)) in keys]
