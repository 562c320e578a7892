"""Reading a page of a search, of one point in time."""

from __future__ import annotations

from typing import Any, NamedTuple

from mongo_session_service.codec.documents import decode_sessions
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.results import SessionSummary, summary

from . import queries
from .queries import Document
from .search import Place, Search


class Page(NamedTuple):
    """A part of what a search finds."""

    summaries: list[SessionSummary]
    last: Place | None
    """The last one's place; None if there is nothing after it."""


async def load_page(
    connection: Connection,
    search: Search,
    after: Place | None,
    limit: int,
    now: float,
    *,
    with_state: bool,
) -> Page:
    """The sessions that come after a place.

    Raises:
        StorageUnavailableError: MongoDB has been away for a minute.
        StorageError: a document is not as this package stores it, or the application's
            hook failed.
    """
    stages = search.stages(after, limit + 1, now, with_state=with_state)
    documents, shared = await persistently(
        lambda: _load(connection, stages, with_state=with_state)
    )
    has_more = len(documents) > limit
    shown = documents[:limit]
    states: dict[SessionKey, dict[str, Any]] = {}
    if with_state:
        mixed = [*shown, *shared]
        decoded = decode_sessions(mixed, now, connection.hooks)
        states = {each.key: each.state for each in decoded}
    summaries = [summary(each, states.get(SessionKey(**each["_id"]))) for each in shown]
    return Page(summaries, Place.of(shown[-1]) if has_more else None)


async def _load(
    connection: Connection, stages: list[Document], *, with_state: bool
) -> tuple[list[Document], list[Document]]:
    """Sessions, and the state they share as it was then."""
    at, shared = connection, list[Document]()
    if not at.has_transactions:
        documents = await at.aggregate(at.sessions, stages)
        if with_state and documents:
            for each in _shared_by(documents):
                cursor = each.find(getattr(at, each.collection))
                shared += await cursor.to_list(None)
        return documents, shared
    found = await snapshots.snapshot(at, at.sessions, stages)
    if with_state and found.documents:
        first, other = _shared_by(found.documents)
        union = {"coll": at.user_states.name, "pipeline": other.stages()}
        both = [*first.stages(), {"$unionWith": union}]
        read = await snapshots.snapshot_at(at, at.app_states, both, at=found.at)
        shared = read.documents
    return found.documents, shared


def _shared_by(documents: list[Document]) -> list[queries.Wanted]:
    return queries.shared_states(SessionKey(**each["_id"]) for each in documents)
