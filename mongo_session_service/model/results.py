"""Results of the service's calls: summaries, pages, events of a user, counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from google.adk.events.event import Event
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from mongo_session_service._public import public
from mongo_session_service.model.metadata import DESCRIBED, Details


@public
class WaitingCall(BaseModel):
    """A call that waits for a person: for a confirmation, a credential, an answer."""

    model_config = DESCRIBED

    call_id: str
    """The id that the function response has to have; empty if it is sealed, and the
    service has no ``after_load``."""
    name: str | None
    """The function's; None if the event does not name it, or it is sealed."""
    author: str | None
    """The agent that called it; None if it is sealed."""
    since: float
    """When it was called, in seconds since 1970."""
    revision: int
    """The revision of the event that called it."""


@public
class SessionSummary(Details):
    """A session without its events. Times are seconds since 1970."""

    id: str = Field(serialization_alias="session_id")
    app_name: str
    user_id: str
    state: SkipJsonSchema[dict[str, Any] | None] = None
    """With that of its app and user, as ADK shows it; None if it was not asked for."""
    revision: int
    """How many events were appended."""
    log_begins: int = 0
    """How many of these were trimmed."""
    create_time: float
    last_update_time: float
    """The time of the last event, or of the creation."""
    waiting: tuple[WaitingCall, ...] = ()
    """The calls that wait for a person, the longest first: up to 100."""
    waiting_more: int = 0
    """How many wait beside these."""
    root_id: str | None = None
    """The id of its family, which is no session's; None if no message was edited."""
    branches: int = 1
    """How many sessions are in its family: versions of one conversation."""

    @property
    def event_count(self) -> int:
        """Number of its events: those that were appended and not trimmed."""
        return self.revision - self.log_begins


@public
class Branch(BaseModel):
    """A session of a family: a version of a message. Times are seconds since 1970."""

    model_config = DESCRIBED

    session_id: str
    parent_id: str | None
    """The session whose message was edited; None for the first one of the family."""
    before_invocation_id: str | None
    """The invocation of the parent that it was made instead of."""
    revision: int
    """How many events it has in common with ``version_of``, and with its parent."""
    version_of: str | None
    """The session with the first version of the message that follows these events. All
    with the same ``version_of`` and ``revision`` have another version of it. A parent
    that was deleted is passed over."""
    create_time: float
    last_update_time: float
    is_shown: bool
    """True of exactly one."""


def summary_fields(summary: SessionSummary) -> dict[str, Any]:
    """Return a session's fields for JSON, without state that was not read."""
    is_read = summary.state is not None
    return summary.model_dump(by_alias=True, exclude=None if is_read else {"state"})


@public
class SessionPage(BaseModel):
    """A page of sessions that were found."""

    model_config = DESCRIBED

    sessions: list[SessionSummary]
    next_page_token: str | None = None
    """For the next page; None if this is the last."""


TurnPhase = Literal["running", "stopping", "ended", "stopped", "failed", "abandoned"]


@public
class TurnInfo(NamedTuple):
    """The turn that a session has, or had last."""

    app_name: str
    user_id: str
    session_id: str
    epoch: int
    """Its number: each turn of a session has a higher one."""
    status: TurnPhase
    """``abandoned``: the process that had it has ended, or is cut off."""
    since: datetime
    """When it began, by the server's clock, in UTC."""
    host: str
    """The name of the host that has it, or had it."""
    reason: str | None = None
    """Why it was stopped, as given to ``stop_turn``, or has failed."""
    error_type: str | None = None
    """The class of the error that ended a failed one."""
    session_create_time: float | None = None
    """When its session was created: a later one with the same id has other turns."""

    @property
    def is_cut_off(self) -> bool:
        """Whether its process has died: it is abandoned, or was only repaired since."""
        is_repaired = self.status == "failed" and self.error_type is None
        return self.status == "abandoned" or is_repaired


@public
class UserEvent(NamedTuple):
    """An event of a user, and where it stands."""

    session_id: str
    revision: int
    event: Event


class Redactable(NamedTuple):
    """Events and state that a redaction would replace."""

    events: int
    """Those that were not redacted before."""
    state_keys: tuple[str, ...]
    """Keys of state whose values come from the events and are not the replacement."""


@public
@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of what :meth:`MongoSessionService.prune` removed, or would remove."""

    sessions: int = 0
    """Those whose removal began here."""
    events: int = 0


@public
@dataclass(frozen=True, slots=True)
class Erased:
    """Numbers of what a call removed, without what an interrupted one did before."""

    sessions: int
    """Those whose removal began here."""
    events: int
    user_states: int
    app_states: int
    dead_letters: int
    checkpoints: int
    """Those of consumers: removed with their app, or naming the erased user no more."""
