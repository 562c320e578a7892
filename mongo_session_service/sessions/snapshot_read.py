"""Snapshot reads: queries of several collections, joined into one aggregation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bson.timestamp import Timestamp
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.driver.snapshots import NO_TIME, Snapshot
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries


@dataclass(frozen=True, slots=True)
class Query:
    """Documents of one collection that are read together with others."""

    collection: str
    filter: Document
    order: int | None = None
    """The direction of ``_id``: 1 or -1; None for any."""
    limit: int | None = None
    since: float | None = None
    """The earliest timestamp of an event; looked for after the limit."""
    fields: tuple[str, ...] = ()
    """The fields to read beside the ``_id``; all by default."""

    def stages(self, connection: Connection) -> list[Document]:
        """The pipeline that reads the documents."""
        routed = queries.routed(connection, self.filter)
        stages: list[Document] = [{"$match": routed}]
        if self.order is not None:
            stages.append({"$sort": {"_id": self.order}})
        if self.limit is not None:
            stages.append({"$limit": self.limit})
        if self.since is not None:
            stages.append({"$match": {"event.timestamp": {"$gte": self.since}}})
        if self.fields:
            stages.append({"$project": dict.fromkeys(self.fields, 1)})
        return stages


async def read_snapshot(
    connection: Connection,
    *several: Query,
    anywhere: bool = False,
    at: Timestamp | None = None,
    not_before: Timestamp | None = None,
    whole: bool = True,
    encoded: bool = False,
) -> Snapshot:
    """The documents of some queries, in their order, as of one time.

    Without transactions these are one query after another. See :func:`snapshots.read`
    for the other arguments.
    """
    if not connection.has_transactions:
        return Snapshot([], NO_TIME, few=await _read_each(connection, several))
    first, *others = several
    stages = first.stages(connection)
    for each in others:
        name = getattr(connection, each.collection).name
        union = {"coll": name, "pipeline": each.stages(connection)}
        stages.append({"$unionWith": union})
    return await snapshots.read(
        connection,
        getattr(connection, first.collection),
        stages,
        anywhere=anywhere,
        at=at,
        not_before=not_before,
        whole=whole,
        encoded=encoded,
    )


async def load_documents(
    connection: Connection, *several: Query, anywhere: bool = False
) -> list[Document]:
    """The documents of some queries, decoded."""
    found = await read_snapshot(connection, *several, anywhere=anywhere)
    return await in_slices(found.decoded())


async def _read_each(
    connection: Connection, several: Iterable[Query]
) -> list[Document]:
    documents: list[Document] = []
    for each in several:
        filter_ = queries.routed(connection, each.filter)
        cursor = getattr(connection, each.collection).find(filter_, each.fields or None)
        if each.order is not None:
            cursor = cursor.sort("_id", each.order)
        found = await cursor.limit(each.limit or 0).to_list(None)
        documents += (
            found
            if each.since is None
            else [it for it in found if it["event"]["timestamp"] >= each.since]
        )
    return documents


def session_queries(key: SessionKey) -> list[Query]:
    """A session's document, and the state that it shares with others."""
    # By its _id alone, which the server needs no plan for: a tenth faster.
    session = Query("sessions", {"_id": key.id})
    return [session, *shared_state_queries(key.app_name, key.user_id)]


def shared_state_queries(app_name: str, user_id: str | None) -> list[Query]:
    """The state that the sessions of an app, or of one of its users, share."""
    return [
        Query("app_states", {"_id": app_name}),
        Query("user_states", queries.all_user_states(app_name, user_id)),
    ]


def shared_state_queries_by_key(keys: Iterable[SessionKey]) -> list[Query]:
    """The state that some sessions share, of all their apps and users."""
    users = {key[:2] for key in keys}
    apps = sorted({app_name for app_name, _ in users})
    ids = [queries.user_state_id(*each) for each in sorted(users)]
    return [
        Query("app_states", {"_id": {"$in": apps}}),
        Query("user_states", {"_id": {"$in": ids}}),
    ]


def event_queries(
    key: SessionKey, config: GetSessionConfig | None, after_revision: int = 0
) -> list[Query]:
    """The events that a caller's config asks for, the latest first."""
    config = config or GetSessionConfig()
    limit, since = config.num_recent_events, config.after_timestamp
    if limit == 0:
        return []
    limit = None if limit is None else min(limit, 2**63 - 1)
    log = queries.events_after(key, after_revision)
    return [Query("events", log, order=-1, limit=limit, since=since)]
