"""Retention: sessions that have expired, or are old or idle, removed in small steps.

An idle session has had no sign of life for some time. Its ``update_time`` alone cannot
say so: it is that of its last event, by the caller's clock, and an event may be dated
back. So its creation, all its events and a turn that somebody has count as well.
Between that look and the removal, an append may come. So a session is removed only as
it was seen: at the same revision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from google.adk.platform import time

from mongo_session_service.codec.documents import LOG_BEGINS, log_begins
from mongo_session_service.driver.connection import Connection
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model import metadata
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.validation import check_id
from mongo_session_service.sessions import deletion, placeholders, queries
from mongo_session_service.sessions.deletion import Step
from mongo_session_service.sessions.search import Place, Search

_PAGE: Final = 1000
"""Sessions found by one query."""

_TOGETHER: Final = 40
"""Sessions examined, and removed, together: fewer than one removal takes at most."""


class Pruning(Protocol):
    """What one call of ``prune`` removes, or only counts."""

    async def step(self, connection: Connection) -> Step:
        """Remove or count some more."""


def new_pruning(
    app_name: object, idle_for: object, created_before: object, *, is_dry_run: bool
) -> Pruning:
    """The pruning that these arguments of ``prune`` ask for.

    Raises:
        InvalidInputError: one of them is invalid.
    """
    app = None if app_name is None else check_id("app_name", app_name)
    if idle_for is None and created_before is None:
        return _Expired(app, is_dry_run)
    now = time.get_time()
    wanted: Document = {"expire_time": {"$exists": False}, "create_time": {}}
    idle_since = None
    if created_before is not None:
        wanted["create_time"]["$lt"] = _past("created_before", created_before, now)
    if idle_for is not None:
        idle_since = now - metadata.check_duration("idle_for", idle_for)
        moment = datetime.fromtimestamp(max(0.0, idle_since), UTC)
        wanted["create_time"]["$lte"] = idle_since
        wanted["update_time"] = {"$lte": idle_since}
        wanted[queries.TURN_RENEWED] = {"$not": {"$gt": moment}}
    return _Unwanted(app, wanted, idle_since, is_dry_run)


def _past(what: str, value: object, now: float) -> float:
    seconds = metadata.check_moment(what, value)
    if not 0 < seconds <= now:
        message = f"{what} must be after 1970, and not in the future."
        raise InvalidInputError(message)
    return seconds


@dataclass(frozen=True, slots=True)
class _Expired:
    """Sessions that have expired, and what interrupted deletes have left."""

    app_name: str | None
    is_dry_run: bool

    async def step(self, connection: Connection) -> Step:
        wanted = queries.expired(time.get_time())
        if self.app_name is not None:
            wanted["_id.app_name"] = self.app_name
        if not self.is_dry_run:
            return await deletion.remove_some(connection, wanted)
        counting = queries.counting(wanted)
        found = await connection.aggregate(connection.sessions, counting)
        counts = found[0] if found else {"sessions": 0, "events": 0}
        return Step(counts["sessions"], counts["events"], is_last=True)


@dataclass(slots=True)
class _Unwanted:
    """Sessions that are idle, old, or both; those that expire by themselves are not.

    The index of creation is walked once, one app after the other.
    """

    app_name: str | None
    wanted: Document
    idle_since: float | None
    is_dry_run: bool
    _app: str | None = None
    """The app whose sessions are walked."""
    _walked: str | None = None
    """The app that was walked before."""
    _after: Place | None = None
    """The last session that was found."""
    _removals: deque[Document] = field(default_factory=deque)
    """Filters for what is removed next."""

    async def step(self, connection: Connection) -> Step:
        if self._removals:
            step = await deletion.remove_some(connection, self._removals[0])
            if step.is_last:
                self._removals.popleft()
            return step._replace(is_last=False)
        if self._app is None:
            self._app = await self._next_app(connection)
        if self._app is None:
            return Step(0, 0, is_last=True)
        return await self._look(connection, self._app)

    async def _next_app(self, connection: Connection) -> str | None:
        if self.app_name is not None:
            return None if self._walked else self.app_name
        stages: list[Document] = [
            {"$match": {"_id.app_name": {"$gt": self._walked or ""}}},
            {"$sort": {"_id.app_name": 1}},
            {"$limit": 1},
            {"$project": {"_id": 1}},
        ]
        found = await connection.aggregate(connection.sessions, stages)
        return found[0]["_id"]["app_name"] if found else None

    async def _look(self, connection: Connection, app: str) -> Step:
        """Find some more sessions of an app; count them, or note them for removal."""
        search = Search({"_id.app_name": app, **self.wanted}, newest_first=False)
        *stages, _ = search.stages(
            self._after, _PAGE, time.get_time(), with_state=False
        )
        stages.append({"$project": {"create_time": 1, "revision": 1, LOG_BEGINS: 1}})
        page = await connection.aggregate(connection.sessions, stages)
        if len(page) < _PAGE:
            self._app, self._walked, self._after = None, app, None
        else:
            self._after = search.place_of(page[-1])
        sessions = events = 0
        for first in range(0, len(page), _TOGETHER):
            found = await self._lifeless(connection, page[first : first + _TOGETHER])
            if self.is_dry_run:
                sessions += len(found)
                events += sum(it["revision"] - log_begins(it) for it in found)
            elif found:
                self._removals += self._filters(found)
        return Step(sessions, events, is_last=False)

    async def _lifeless(
        self, connection: Connection, found: Sequence[Document]
    ) -> list[Document]:
        """Those of some sessions none of whose events is of a later time."""
        if self.idle_since is None:
            return list(found)
        later = {"event.timestamp": {"$gt": self.idle_since}}
        logs = [queries.all_events(SessionKey(**each["_id"])) for each in found]
        wanted = [queries.routed(connection, {**log, **later}) for log in logs]
        key = {name: f"$_id.{name}" for name in SessionKey._fields}
        stages: list[Document] = [
            {"$match": queries.any_of(wanted)},
            {"$group": {"_id": key}},
        ]
        alive = await connection.aggregate(connection.events, stages)
        keys = {SessionKey(**each["_id"]) for each in alive}
        return [each for each in found if SessionKey(**each["_id"]) not in keys]

    def _filters(self, found: Sequence[Document]) -> list[Document]:
        """What removes sessions as they were found, and what long ones leave."""
        as_found = [{"_id": it["_id"], "revision": it["revision"]} for it in found]
        left = [placeholders.buried_at(SessionKey(**each["_id"])) for each in found]
        wanted = {**queries.any_of(as_found), **self.wanted}
        return [wanted, queries.any_of(left)]
