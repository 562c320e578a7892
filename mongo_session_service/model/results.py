"""What lists show of sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.adk.events.event import Event
from pydantic import BaseModel, ConfigDict

from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.errors import quoted
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import SessionKey


class SessionSummary(BaseModel):
    """A session without its events. Times are seconds since 1970."""

    model_config = ConfigDict(frozen=True)

    id: str
    app_name: str
    user_id: str
    title: str | None = None
    labels: dict[str, str] = {}
    state: dict[str, Any] | None = None
    """With that of its app and user, as ADK shows it; None if it was not asked for."""
    revision: int
    """How many events were appended."""
    create_time: float
    last_update_time: float
    """Of the last event, or of the creation."""
    ttl: float | None = None
    """Seconds that it lives after its last append."""
    expire_time: float | None = None
    """When it is gone, unless something is appended; None for never."""


class SessionPage(BaseModel):
    """A page of what was looked for."""

    model_config = ConfigDict(frozen=True)

    sessions: list[SessionSummary]
    next_page_token: str | None = None
    """For the next page; None if this is the last."""


def summary(
    document: Mapping[str, Any], state: dict[str, Any] | None
) -> SessionSummary:
    """The summary of a stored session, with its state if that is known.

    Raises:
        UnreadableError: another tool has written what is no session's.
    """
    try:
        return _summary(document, state)
    except (AttributeError, LookupError, TypeError, ValueError):
        # The original may quote what is stored.
        name = quoted(str(document["_id"]["session_id"]))
        raise UnreadableError(f"Session {name}") from None


def _summary(
    document: Mapping[str, Any], state: dict[str, Any] | None
) -> SessionSummary:
    key, details = SessionKey(**document["_id"]), Details.of(document)
    return SessionSummary(
        id=key.session_id,
        app_name=key.app_name,
        user_id=key.user_id,
        title=details.title,
        labels=dict(details.labels),
        state=state,
        revision=document["revision"],
        create_time=document["create_time"],
        last_update_time=document["update_time"],
        ttl=details.ttl,
        expire_time=details.expire_time,
    )


class UserEvent(NamedTuple):
    """An event of a user, and where it stands."""

    session_id: str
    revision: int
    event: Event


@dataclass(frozen=True, slots=True)
class Pruned:
    """What :meth:`MongoSessionService.prune` has removed, or would remove."""

    sessions: int = 0
    """Those whose removal began here."""
    events: int = 0


@dataclass(frozen=True, slots=True)
class Erased:
    """What a call has removed; what an interrupted one removed before is not in it."""

    sessions: int
    """Those whose removal began here."""
    events: int
    user_states: int
    app_states: int
    dead_letters: int
    checkpoints: int
    """Of consumers: removed with their app, or no longer naming who is erased."""
