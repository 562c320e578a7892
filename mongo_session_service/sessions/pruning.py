"""Pruning: sessions that have expired, or are old or idle, removed in small steps.

An idle session has had no sign of life for some time. Its ``update_time`` alone cannot
say so: it is that of its last event, by the caller's clock, and an event may be dated
back. So its creation, all its events and a turn that somebody has count as well.
Between that look and the removal, an append may come. So a session is removed only as
it was seen: at the same revision.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.documents import LOG_BEGINS, log_begins
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model import metadata
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.validation import check_id
from mongo_session_service.sessions import deletion, queries
from mongo_session_service.sessions.deletion import Removal
from mongo_session_service.sessions.search import PagePosition, Search
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.tasks import SwallowedCancellation


@dataclass(frozen=True, slots=True)
class PruneCriteria:
    """The sessions that one call of ``prune`` removes."""

    app_name: str | None
    wanted: Document | None
    """The filter for idle or old sessions; None for those that have expired."""
    idle_since: float | None = None
    """The time after which such a session has no event; None if events do not count."""


def prune_criteria(
    app_name: object, idle_for: object, created_before: object, now: float
) -> PruneCriteria:
    """Check the arguments of ``prune``, at a time by the server's clock."""
    app = None if app_name is None else check_id("app_name", app_name)
    if idle_for is None and created_before is None:
        return PruneCriteria(app, None)
    wanted: Document = {"expire_time": {"$exists": False}, "create_time": {}}
    idle_since = None
    if created_before is not None:
        seconds = metadata.check_moment("created_before", created_before)
        if not 0 < seconds <= now:
            message = "created_before must be after 1970, and not in the future."
            raise InvalidInputError(message)
        wanted["create_time"]["$lt"] = seconds
    if idle_for is not None:
        idle_since = now - metadata.check_duration("idle_for", idle_for)
        moment = datetime.fromtimestamp(max(0.0, idle_since), UTC)
        wanted["create_time"]["$lte"] = idle_since
        wanted["update_time"] = {"$lte": idle_since}
        wanted[queries.TURN_RENEWED] = {"$not": {"$gt": moment}}
    return PruneCriteria(app, wanted, idle_since)


async def prune_sessions(
    connection: Connection, criteria: PruneCriteria, *, is_dry_run: bool
) -> AsyncIterator[Removal]:
    """Remove sessions step by step, or only count them, and yield each step."""
    if criteria.wanted is None:
        expired = queries.expired_on_server_filter(connection)
        if criteria.app_name is not None:
            expired["_id.app_name"] = criteria.app_name
        steps = (
            _count_sessions(connection, expired)
            if is_dry_run
            else deletion.removals(connection, expired)
        )
        async for step in steps:
            yield step
        return
    async for found in _unwanted_sessions(connection, criteria, criteria.wanted):
        if is_dry_run:
            events = sum(each["revision"] - log_begins(each) for each in found)
            yield Removal(len(found), events, is_last=False)
        elif found:
            as_found = [{"_id": it["_id"], "revision": it["revision"]} for it in found]
            still = {**queries.any_of(as_found), **criteria.wanted}
            # Of long sessions this leaves tombstones.
            left = queries.any_of(
                [deletion.tombstone_filter(each["_id"]) for each in found]
            )
            for wanted in (still, left):
                async for step in deletion.removals(connection, wanted):
                    yield step


async def _count_sessions(
    connection: Connection, wanted: Document
) -> AsyncIterator[Removal]:
    counting = queries.count_pipeline(wanted)
    for counts in await connection.aggregate(connection.sessions, counting):
        yield Removal(counts["sessions"], counts["events"], is_last=True)


async def _unwanted_sessions(
    connection: Connection, criteria: PruneCriteria, wanted: Document
) -> AsyncIterator[list[Document]]:
    """Find idle or old sessions, and yield them in lists that can be removed at once.

    The index of creation is walked once, one app after the other.
    """
    limits, app = connection.limits, criteria.app_name
    if app is None:
        app = await _find_next_app(connection, "")
    while app is not None:
        search = Search({"_id.app_name": app, **wanted}, newest_first=False)
        after: PagePosition | None = None
        is_last = False
        while not is_last:
            page = await _find_page(connection, search, after)
            is_last = len(page) < limits.prune_page
            after = None if is_last else search.position_of(page[-1])
            for some in cut_by_size(page, limits.prune_batch):
                with SwallowedCancellation():
                    found = await _select_idle(connection, criteria.idle_since, some)
                yield found
        app = (
            await _find_next_app(connection, app) if criteria.app_name is None else None
        )


async def _find_next_app(connection: Connection, after: str) -> str | None:
    stages: list[Document] = [
        {"$match": {"_id.app_name": {"$gt": after}}},
        {"$sort": {"_id.app_name": 1}},
        {"$limit": 1},
        {"$project": {"_id": 1}},
    ]
    found = await connection.aggregate(connection.sessions, stages)
    return found[0]["_id"]["app_name"] if found else None


async def _find_page(
    connection: Connection, search: Search, after: PagePosition | None
) -> list[Document]:
    size = connection.limits.prune_page
    query = search.page_query(after, size, connection.clock.now(), with_state=False)
    query = replace(query, fields=("create_time", "revision", LOG_BEGINS))
    (found,) = await connection.read(query)
    return found


async def _select_idle(
    connection: Connection, idle_since: float | None, found: Sequence[Document]
) -> list[Document]:
    """Select the sessions none of whose events is of a later time."""
    if idle_since is None:
        return list(found)
    later = {"event.timestamp": {"$gt": idle_since}}
    logs = [queries.all_events(SessionKey(**each["_id"])) for each in found]
    wanted = [connection.routed({**log, **later}) for log in logs]
    key = {name: f"$_id.{name}" for name in SessionKey._fields}
    stages: list[Document] = [
        {"$match": queries.any_of(wanted)},
        {"$group": {"_id": key}},
    ]
    alive = await connection.aggregate(connection.events, stages)
    keys = {SessionKey(**each["_id"]) for each in alive}
    return [each for each in found if SessionKey(**each["_id"]) not in keys]
