"""Filters, pipelines and updates, built from records and nothing else.

All reads are ranges of ``_id``. Documents compare field by field, so a shorter one is
the lower bound of all that begin with it. The upper bound has one more field, holding
an empty document, which sorts after every string and number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.adk.sessions.base_session_service import GetSessionConfig

from .records import Append, NewSession, PlannedAppend, SessionKey
from .scopes import ScopedState

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


class Update(NamedTuple):
    """One change of one document."""

    filter: Document
    change: Document


def session_updates(planned: Iterable[PlannedAppend]) -> list[Update]:
    """What appends change in their sessions: one update for each session.

    The filter is the first append's expectation, so that an update that matches nothing
    tells a session that has moved on.
    """
    updates: dict[SessionKey, Update] = {}
    for append, expected in planned:
        first = {"_id": append.key.id, **expected._asdict()}
        update = updates.setdefault(append.key, Update(first, {"$set": {}}))
        update.change["$set"] |= {
            **_paths(append.delta.session),
            "revision": expected.revision + 1,
            "update_time": append.timestamp,
        }
    return list(updates.values())


def app_updates(changes: Iterable[tuple[SessionKey, ScopedState]]) -> list[Update]:
    """What deltas change in app state: one update for each app, later deltas last."""
    return _scope_updates((key.app_name, delta.app) for key, delta in changes)


def user_updates(changes: Iterable[tuple[SessionKey, ScopedState]]) -> list[Update]:
    """What deltas change in user state: one update for each user, later deltas last."""
    return _scope_updates(
        (user_state_id(key.app_name, key.user_id), delta.user) for key, delta in changes
    )


def _scope_updates(deltas: Iterable[tuple[Any, Document]]) -> list[Update]:
    updates: dict[str, Update] = {}
    for id_, delta in deltas:
        if delta:
            empty = Update({"_id": id_}, {"$set": {}, "$inc": {"revision": 0}})
            update = updates.setdefault(repr(id_), empty)
            update.change["$set"] |= _paths(delta)
            update.change["$inc"]["revision"] += 1
    return list(updates.values())


def _paths(delta: Document) -> Document:
    return {f"state.{name}": value for name, value in delta.items()}
