"""Taking out of consumers' documents what names somebody who is erased.

The stream's part of a checkpoint names nobody. The place of a replay does: it is the
``_id`` of an event. It is moved to the end of what is erased, which is as far.
"""

from __future__ import annotations

from typing import Any, Final

from bson.timestamp import Timestamp

from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions.queries import Document

_LAST: Final = SessionKey("\U0010ffff", "", "").event_id(0)
"""After every event, as MongoDB compares strings: by their bytes."""


async def forget_in_dead_letters(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove what handlers have failed on of an app, or of a user; how many it was."""
    wanted = {"_id.app_name": app_name}
    if user_id is not None:
        wanted["_id.user_id"] = user_id
    removed = await connection.dead_letters.delete_many(wanted)
    return int(removed.deleted_count)


async def forget_in_checkpoints(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Have no checkpoint name an app, or a user; how many there were to change.

    No consumer is told anything twice for it, or misses what is not erased.
    """
    changed = 0
    cursor = connection.checkpoints.find({"position": {"$ne": None}}, {"_id": 1})
    for name in [each["_id"] for each in await cursor.to_list(None)]:
        while True:
            checkpoint = await connection.checkpoints.find_one({"_id": name})
            if checkpoint is None:
                break
            before = checkpoint["position"]
            after = await _without(connection, before, app_name, user_id)
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
    """Remove the consumers of an app's changes; how many it were."""
    found = connection.checkpoints.find({"app_name": app_name}, {"_id": 1})
    names = [each["_id"] for each in await found.to_list(None)]
    await connection.dead_letters.delete_many({"_id.consumer": {"$in": names}})
    await connection.leases.delete_many({"_id": {"$in": names}})
    await connection.checkpoints.delete_many({"_id": {"$in": names}})
    return len(names)


async def _without(
    connection: Connection, position: Document, app_name: str, user_id: str | None
) -> Document:
    """A stored position, moved on from what is erased."""
    scope = {"app_name": app_name} | ({} if user_id is None else {"user_id": user_id})

    async def moved(id_: Document | None) -> Document | None:
        if id_ is None or not scope.items() <= id_.items():
            return id_
        return await _end_of(connection, app_name, user_id)

    segments = [
        {**each, "until": await moved(each["until"])} for each in position["segments"]
    ]
    return {
        **position,
        "replayed": await moved(position["replayed"]),
        "segments": segments,
        **_untokened(position, user_id or app_name),
    }


def _untokened(position: Document, id_: str) -> dict[str, Any]:
    """What an earlier release's resume token of a change becomes, if it has an id.

    It begins with the time of the change: a byte, then seconds and a counter.
    """
    token = bytes.fromhex((position["token"] or {}).get("_data", ""))
    if id_.encode() not in token:
        return {}
    time = Timestamp(int.from_bytes(token[1:5]), int.from_bytes(token[5:9]))
    return {"token": None, "start_at": time, "passed": None}


async def _end_of(
    connection: Connection, app_name: str, user_id: str | None
) -> Document:
    """An ``_id`` right before the first event after all of an app's, or of a user's."""
    upper = (
        {"app_name": app_name, "user_id": {}}
        if user_id is None
        else {"app_name": app_name, "user_id": user_id, "session_id": {}}
    )
    following = connection.events.find({"_id": {"$gt": upper}}, {"_id": 1})
    for each in await following.sort("_id", 1).limit(1).to_list(None):
        return {**each["_id"], "revision": each["_id"]["revision"] - 1}
    return _LAST
