"""Turn status: what the field ``turn`` of a session says of its turn, and of the last.

Beside the lease's fields and those of the line, it has:

- ``first_revision``: of the first event that was appended within the turn. It goes when
  the turn is released; so who acquires the turn knows whether it was abandoned.
- ``stop``: that somebody wants the turn to be stopped, and why.
- ``resumed``: the invocation that was resumed last after its turn was abandoned.
- ``ended``: status, begin, host, reason and error of the last turn that was released.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from mongo_session_service.codec.document_size import cut_by_id_size
from mongo_session_service.codec.partials import decode_turn
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import TurnInfo, TurnPhase
from mongo_session_service.sessions import queries
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import lease_is_free
from mongo_session_service.storage.statements import Query, Update

HELD: Final = "turn.holder"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def first_revision(storage: Storage, key: SessionKey) -> int:
    """Load the revision of the turn's first event; 0 if it has none."""
    fields = (queries.TURN_FIRST_REVISION,)
    session = await storage.find_one(Query("sessions", {"_id": key.id}, fields=fields))
    revision: int = ((session or {}).get("turn") or {}).get("first_revision", 0)
    return revision


async def forget_first_revision(storage: Storage, key: SessionKey) -> None:
    """Note that the calls which an abandoned turn has left open are sealed."""
    gone = {queries.TURN_FIRST_REVISION: ""}
    await storage.commit(Update("sessions", {"_id": key.id}, {"$unset": gone}))


async def note_resumption(
    storage: Storage, key: SessionKey, invocation_id: str
) -> bool:
    """Note that an invocation is resumed; False if it was before."""
    new = {"_id": key.id, "turn.resumed": {"$ne": invocation_id}}
    change = {"$set": {"turn.resumed": invocation_id}}
    return await storage.commit(Update("sessions", new, change)) == [1]


async def request_stop(storage: Storage, key: SessionKey, reason: str | None) -> bool:
    """Note that the turn of a session is to be stopped; False if none runs."""
    stop = {"turn.stop": {} if reason is None else {"reason": reason}}
    running = {"_id": key.id, HELD: {"$exists": True}}
    is_held = {"$expr": {"$not": lease_is_free(storage, "turn.")}}
    stopping = Update("sessions", {**running, **is_held}, {"$set": stop})
    turn = storage.lease("sessions", key.id, "turn.")
    return await turn.write_past_dead_holder(storage.commit(stopping)) == [1]


async def requested_stops(
    storage: Storage, keys: Iterable[SessionKey]
) -> dict[SessionKey, tuple[int, str | None]]:
    """Find epoch and reason of the turns, of some sessions, that are to be stopped."""
    stops: dict[SessionKey, tuple[int, str | None]] = {}
    for some in cut_by_id_size(keys):
        ids = {"$in": [each.id for each in some]}
        where = {"_id": ids, "turn.stop": {"$exists": True}}
        query = Query("sessions", where, fields=("turn.epoch", "turn.stop"))
        (found,) = await storage.read(query)
        for each in found:
            turn = each["turn"]
            stops[SessionKey(**each["_id"])] = turn["epoch"], turn["stop"].get("reason")
    return stops


async def find_turns(
    storage: Storage,
    app_name: str | None,
    user_id: str | None,
    status: TurnPhase | None,
) -> list[TurnInfo]:
    """Find turns, in the order of app, user and session."""
    where = turns_filter(app_name, user_id, status, storage.clock.now())
    fields = {"turn": 1, "is_free": lease_is_free(storage, "turn.")}
    stages: list[Document] = [{"$project": fields}]
    if status == "abandoned":
        stages.append({"$match": {"is_free": True}})
    (found,) = await storage.read(Query("sessions", where, then=tuple(stages)))
    turns = [_turn_info(each) for each in found]
    return sorted(each for each in turns if status in {None, each.status})


def turns_filter(
    app_name: str | None, user_id: str | None, status: TurnPhase | None, now: float
) -> Document:
    """The filter of sessions whose turns may have a status."""
    where: Document = {**queries.visible_filter(now)}
    if app_name is not None:
        where["_id.app_name"] = app_name
    if user_id is not None:
        where["_id.user_id"] = user_id
    if status in {None, "running", "stopping", "abandoned"}:
        # All of them are in an index, in the order of their begin.
        return {**where, HELD: {"$exists": True}, "turn.since": {"$gt": _LONG_AGO}}
    return {**where, "turn.ended.status": status}


def _turn_info(session: Document) -> TurnInfo:
    turn = session["turn"]
    fields = turn.get("ended")
    if "holder" in turn:
        stop = turn.get("stop")
        running = "running" if stop is None else "stopping"
        fields = {
            "status": "abandoned" if session["is_free"] else running,
            "since": turn["since"],
            "host": turn["holder"]["host"],
            **(stop or {}),
        }
    return decode_turn(SessionKey(**session["_id"]), turn["epoch"], fields)
