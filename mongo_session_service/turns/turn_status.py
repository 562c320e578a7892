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
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.lease import Lease, lease_is_free
from mongo_session_service.storage.retries import retry_soon

HELD: Final = "turn.holder"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def first_revision(connection: Connection, key: SessionKey) -> int:
    """Load the revision of the turn's first event; 0 if it has none."""
    fields = {queries.TURN_FIRST_REVISION: 1}
    session = await retry_soon(connection.sessions.find_one, {"_id": key.id}, fields)
    revision: int = ((session or {}).get("turn") or {}).get("first_revision", 0)
    return revision


async def forget_first_revision(connection: Connection, key: SessionKey) -> None:
    """Note that the calls which an abandoned turn has left open are sealed."""
    gone = {queries.TURN_FIRST_REVISION: ""}
    await retry_soon(connection.sessions.update_one, {"_id": key.id}, {"$unset": gone})


async def note_resumption(
    connection: Connection, key: SessionKey, invocation_id: str
) -> bool:
    """Note that an invocation is resumed; False if it was before."""
    new = {"_id": key.id, "turn.resumed": {"$ne": invocation_id}}
    change = {"$set": {"turn.resumed": invocation_id}}
    found = await retry_soon(connection.sessions.update_one, new, change)
    return bool(found.matched_count)


async def request_stop(
    connection: Connection, key: SessionKey, reason: str | None
) -> bool:
    """Note that the turn of a session is to be stopped; False if none runs."""
    stop = {"turn.stop": {} if reason is None else {"reason": reason}}
    running = {"_id": key.id, HELD: {"$exists": True}}
    is_held = {"$expr": {"$not": lease_is_free(connection, "turn.")}}
    where, sessions = {**running, **is_held}, connection.sessions
    stopping = retry_soon(sessions.update_one, where, {"$set": stop})
    turn = Lease(connection, sessions.name, key.id, "turn.")
    found = await turn.write_past_dead_holder(stopping)
    return bool(found.matched_count)


async def requested_stops(
    connection: Connection, keys: Iterable[SessionKey]
) -> dict[SessionKey, tuple[int, str | None]]:
    """Find epoch and reason of the turns, of some sessions, that are to be stopped."""
    stops: dict[SessionKey, tuple[int, str | None]] = {}
    for some in cut_by_id_size(keys):
        ids = {"$in": [each.id for each in some]}
        where = connection.routed({"_id": ids})
        where["turn.stop"] = {"$exists": True}
        fields = {"turn.epoch": 1, "turn.stop": 1}
        async for each in connection.sessions.find(where, fields):
            turn = each["turn"]
            stops[SessionKey(**each["_id"])] = turn["epoch"], turn["stop"].get("reason")
    return stops


async def find_turns(
    connection: Connection,
    app_name: str | None,
    user_id: str | None,
    status: TurnPhase | None,
) -> list[TurnInfo]:
    """Find turns, in the order of app, user and session."""
    now = connection.clock.now()
    where = turns_filter(app_name, user_id, status, now)
    fields = {"turn": 1, "is_free": lease_is_free(connection, "turn.")}
    pipeline: list[Document] = [{"$match": where}, {"$project": fields}]
    if status == "abandoned":
        pipeline.append({"$match": {"is_free": True}})
    with connection.contact.asking():  # who looks often may take a turn over at once
        found = await connection.aggregate(connection.sessions, pipeline)
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
