"""Filling in what waits for people, in sessions that earlier releases have stored."""

from __future__ import annotations

from collections.abc import Callable

from mongo_session_service.model.validation import check_callable
from mongo_session_service.schema.setup import record_waiting
from mongo_session_service.service import MongoSessionService, connection_of
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.waiting_log import (
    refresh_waiting,
    sessions_that_asked,
)

_FILLED_PER_PAGE = 1000
"""Sessions whose logs are looked through at once."""


async def fill_waiting(
    service: MongoSessionService, progress: Callable[[int], object] | None = None
) -> int:
    """Have each session name the calls that wait, as its log tells them.

    Appends since this release keep that up by themselves, and may go on meanwhile. The
    call may be interrupted and repeated: sessions that are right stay as they are.

    Args:
        service: Where they are stored.
        progress: Called after each thousand sessions, with how many were looked at.

    Returns:
        How many sessions were changed.
    """
    if progress is not None:
        check_callable("progress", progress)
    changed = seen = 0
    last = None
    async with connection_of(service, sets_up=True) as connection:
        while True:
            wanted = connection.routed(queries.of_app(None, last))
            page = (
                connection.sessions.find(wanted, {"_id": 1})
                .sort("_id", 1)
                .limit(_FILLED_PER_PAGE)
            )
            ids = [each["_id"] for each in await page.to_list(None)]
            if not ids:
                break
            for key in await sessions_that_asked(connection, ids[0], ids[-1]):
                changed += await connection.retry(refresh_waiting, connection, key)
            last, seen = ids[-1], seen + len(ids)
            if progress is not None:
                progress(seen)
        await record_waiting(connection)
    return changed
