"""Erasure: removes what consumers have stored of an app, or of a user."""

from __future__ import annotations

from typing import Final

from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document, SessionKey

_AFTER_EVERY_EVENT: Final = SessionKey("\U0010ffff", "", "").event_id(0)
"""After every event, as MongoDB compares strings: by their bytes."""


async def erase_dead_letters(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove the dead letters of an app, or of a user; how many there were."""
    wanted = {
        f"_id.{name}": id_ for name, id_ in _owner_fields(app_name, user_id).items()
    }
    removed = await connection.dead_letters.delete_many(wanted)
    return int(removed.deleted_count)


async def erase_from_checkpoints(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove the IDs of an app, or of a user, from checkpoints; how many had some.

    No consumer receives anything twice, or misses anything that is not erased.
    """
    changed = 0
    cursor = connection.checkpoints.find({"position": {"$ne": None}}, {"_id": 1})
    for name in [each["_id"] for each in await cursor.to_list(None)]:
        while True:
            checkpoint = await connection.checkpoints.find_one({"_id": name})
            if checkpoint is None:
                break
            before = checkpoint["position"]
            after = await _position_without(connection, before, app_name, user_id)
            if after == before:
                break
            saved = await connection.checkpoints.update_one(
                {"_id": name, "position": before}, {"$set": {"position": after}}
            )
            if saved.matched_count:
                changed += 1
                break
    return changed


async def remove_consumers(connection: Connection, app_name: str) -> int:
    """Remove the consumers of an app's changes; how many there were."""
    found = connection.checkpoints.find({"app_name": app_name}, {"_id": 1})
    names = [each["_id"] for each in await found.to_list(None)]
    await connection.dead_letters.delete_many({"_id.consumer": {"$in": names}})
    for collection in (connection.checkpoints, connection.leases):
        await collection.delete_many({"_id": {"$in": names}})
    return len(names)


async def _position_without(
    connection: Connection, position: Document, app_name: str, user_id: str | None
) -> Document:
    """A stored position, moved behind what is erased."""
    owner = _owner_fields(app_name, user_id)

    async def moved(id_: Document | None) -> Document | None:
        if id_ is None or not owner.items() <= id_.items():
            return id_
        return await _id_after(connection, owner)

    replayed = await moved(position["replayed"])
    segments = [
        each | {"until": await moved(each["until"])} for each in position["segments"]
    ]
    return position | {"replayed": replayed, "segments": segments}


def _owner_fields(app_name: str, user_id: str | None) -> Document:
    return {"app_name": app_name} | ({} if user_id is None else {"user_id": user_id})


async def _id_after(connection: Connection, owner: Document) -> Document:
    """An ``_id`` right before the first event after all of an app's, or of a user's."""
    # A document is greater than any text.
    upper = owner | {SessionKey._fields[len(owner)]: {}}
    following = connection.events.find({"_id": {"$gt": upper}}, {"_id": 1})
    for each in await following.sort("_id", 1).limit(1).to_list(None):
        return {**each["_id"], "revision": each["_id"]["revision"] - 1}
    return _AFTER_EVERY_EVENT
