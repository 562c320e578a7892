"""Filters, pipelines and updates, built from records and nothing else.

All reads are ranges of ``_id``. Documents compare field by field, so a shorter one is
the lower bound of all that begin with it. The upper bound has one more field, holding
an empty document, which sorts after every string and number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.adk.sessions.base_session_service import GetSessionConfig

from .records import Append, NewSession, SessionKey

Document = dict[str, Any]


def all_sessions(app_name: str, user_id: str | None) -> Document:
    """Every session of an app, or of one of its users."""
    if user_id is None:
        return _between({"app_name": app_name}, "user_id")
    return _between({"app_name": app_name, "user_id": user_id}, "session_id")


def all_user_states(app_name: str, user_id: str | None) -> Document:
    """The states of every user of an app, or of one."""
    if user_id is None:
        return _between({"app_name": app_name}, "user_id")
    return {"_id": user_state_id(app_name, user_id)}


def all_events(key: SessionKey) -> Document:
    """Every event of a session."""
    return _between(key.id, "revision")


def event_by_id(key: SessionKey, event_id: Any) -> Document:
    """The event of a session that has this id."""
    parts = {f"_id.{name}": part for name, part in key.id.items()}
    return {**parts, "event.id": event_id}


def user_state_id(app_name: str, user_id: str) -> Document:
    """The ``_id`` of a user's state."""
    return {"app_name": app_name, "user_id": user_id}


def _between(prefix: Document, next_field: str) -> Document:
    return {"_id": {"$gt": prefix, "$lt": {**prefix, next_field: {}}}}


@dataclass(frozen=True, slots=True)
class EventsWanted:
    """Which of a session's events to read, latest first."""

    filter: Document
    limit: int | None
    since: float | None

    def stages(self) -> list[Document]:
        """The pipeline that reads them."""
        stages: list[Document] = [{"$match": self.filter}, {"$sort": {"_id": -1}}]
        if self.limit is not None:
            stages.append({"$limit": self.limit})
        if self.since is not None:
            stages.append({"$match": {"event.timestamp": {"$gte": self.since}}})
        return stages

    def kept(self, documents: list[Document]) -> list[Document]:
        """What the last stage keeps, for drivers that have no pipeline."""
        since = float("-inf") if self.since is None else self.since
        return [stored for stored in documents if stored["event"]["timestamp"] >= since]


def events_wanted(key: SessionKey, config: GetSessionConfig) -> EventsWanted | None:
    """What a caller's config asks for; None for no events at all."""
    if config.num_recent_events == 0:
        return None
    return EventsWanted(
        all_events(key), config.num_recent_events, config.after_timestamp
    )


def union(collection: Any, stages: list[Document]) -> Document:
    """The stage that adds another collection's documents to the results."""
    return {"$unionWith": {"coll": collection.name, "pipeline": stages}}


def session_document(session: NewSession) -> Document:
    """A new session as it is stored."""
    return {
        "_id": session.key.id,
        "state": session.state.session,
        "revision": 0,
        "create_time": session.create_time,
        "update_time": session.create_time,
    }


def event_document(append: Append, revision: int) -> Document:
    """An event as it is stored."""
    document: Document = {"_id": append.key.event_id(revision), "event": append.event}
    if append.is_wrapped:
        document["wrapped"] = True
    return document


def session_update(append: Append, revision: int) -> Document:
    """What an append changes in its session, which it takes to ``revision``."""
    changed = {f"state.{name}": value for name, value in append.delta.session.items()}
    return {"$set": {**changed, "revision": revision, "update_time": append.timestamp}}


def scope_update(delta: Document) -> Document:
    """What a delta changes in the state of an app or a user."""
    changed = {f"state.{name}": value for name, value in delta.items()}
    return {"$set": changed, "$inc": {"revision": 1}}
