"""Consumer places: resets and removes consumers that are stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from bson.timestamp import Timestamp

from mongo_session_service.consumers.checkpoint import (
    Checkpoint,
    ConsumerSettings,
    ConsumerStatus,
    LogPlace,
)
from mongo_session_service.errors import (
    InvalidInputError,
    MongoSessionServiceError,
    quoted,
)
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.storage.statements import Query


async def start_place(
    service: MongoSessionService, to: Literal["now", "beginning"] | float
) -> LogPlace:
    """Make the place before all, before what is new, or before a time's changes."""
    storage = await backends_of(service).storage()
    now = await storage.latest_time()
    window = await storage.oplog_window_if_known()
    if to == "now":
        return LogPlace.at_end(now)
    if to == "beginning":
        return LogPlace.at_beginning(now)
    if window is not None and now.time - to > window:
        raise InvalidInputError(
            f"MongoDB's oplog reaches back {window:.0f} seconds, not to that time."
            " Choose a later one, or the beginning of the log."
        )
    start = Timestamp(int(to), 1)
    return LogPlace(start=start, reached=start)


async def count_log(service: MongoSessionService, app_name: str | None) -> int:
    """Count the events that a consumer reads from the beginning."""
    wanted = {} if app_name is None else {"_id.app_name": app_name}
    counting = Query("events", wanted, then=({"$count": "events"},))
    storage = await backends_of(service).storage()
    (found,) = await storage.read(counting)
    return found[0]["events"] if found else 0


@asynccontextmanager
async def claimed(
    service: MongoSessionService, status: ConsumerStatus
) -> AsyncIterator[Checkpoint]:
    """Claim a consumer's name, so that no other reader has it meanwhile."""
    storage = await backends_of(service).storage()
    settings = ConsumerSettings(status.name, status.app_name)
    checkpoint = Checkpoint(storage, settings)
    if not await checkpoint.claim():
        who = f"{quoted(status.name)} is run by {status.owner or 'another program'}"
        raise MongoSessionServiceError(f"{who}. Stop that program first.")
    try:
        yield checkpoint
    finally:
        await checkpoint.release()
