"""Consumer status: lease, lag and dead letters of every consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mongo_session_service._public import public
from mongo_session_service.model.records import Document
from mongo_session_service.storage import oplog
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.lease import renewed_at_condition

_CHECKPOINTS: Final[list[Document]] = [
    {"$sort": {"_id": 1}},
    {"$set": {"age": {"$subtract": ["$$NOW", "$saved_at"]}}},
]
_DEAD_LETTERS: Final[list[Document]] = [
    {"$group": {"_id": "$_id.consumer", "count": {"$sum": 1}}}
]


@public
@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer's status, according to its checkpoint, lease and dead letters."""

    name: str
    app_name: str | None
    """The app whose changes it receives; None for all."""
    is_active: bool
    """Whether a reader holds its lease."""
    owner: str | None
    """That reader: host, process ID and a random part."""
    epoch: int
    """How many readers it has had."""
    is_replaying: bool
    """Whether it is still reading the log from the beginning."""
    lag_seconds: float | None
    """How far its checkpoint is behind MongoDB; None without a checkpoint. An idle
    consumer saves every 15 seconds."""
    checkpoint_age_seconds: float | None
    """Seconds since that was saved; None without a checkpoint."""
    dead_letters: int
    is_locked_out: bool = False
    """Whether a transactional handler waits for a lock of a dead process, which MongoDB
    ends 60 to 90 seconds after that."""


async def load_statuses(connection: Connection) -> list[ConsumerStatus]:
    """Load the status of every consumer, by name."""
    now = await oplog.latest_time(connection)
    checkpoints = await connection.aggregate(connection.checkpoints, _CHECKPOINTS)
    held = {"holder": {"$ne": None}, "$expr": renewed_at_condition(connection, "$gte")}
    leases = await connection.aggregate(connection.leases, [{"$match": held}])
    letters = await connection.aggregate(connection.dead_letters, _DEAD_LETTERS)
    holders = {each["_id"]: each["holder"] for each in leases}
    counts = {each["_id"]: each["count"] for each in letters}
    return [_status(each, now.time, holders, counts) for each in checkpoints]


def _status(
    checkpoint: Document,
    now: int,
    holders: dict[str, Document],
    letters: dict[str, int],
) -> ConsumerStatus:
    position, age = checkpoint["position"], checkpoint.get("age")
    holder = holders.get(checkpoint["_id"], {})
    owner = "{host}:{pid}:{token:.8}".format_map(holder) if holder else None
    return ConsumerStatus(
        name=checkpoint["_id"],
        app_name=checkpoint["app_name"],
        is_active=owner is not None,
        owner=owner,
        epoch=checkpoint["epoch"],
        is_replaying=bool(position and position["is_replaying"]),
        lag_seconds=float(now - position["at"].time) if position else None,
        checkpoint_age_seconds=age / 1000 if age is not None else None,
        dead_letters=letters.get(checkpoint["_id"], 0),
        is_locked_out=holder.get("is_locked_out", False),
    )
