"""Shapes of what is asked and answered over HTTP, for FastAPI's schema and checks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import Header, Path
from google.adk.events.event import Event
from google.genai import types
from pydantic import BaseModel, ConfigDict, Field

from mongo_session_service.changes.change import Change
from mongo_session_service.model.results import TurnPhase, WaitingCall
from mongo_session_service.model.validation import MAX_ID_BYTES

MAX_PAGE: Final = 200
"""Sessions, or events, on a page."""

AppName: TypeAlias = Annotated[str, Path(max_length=MAX_ID_BYTES, examples=["chat"])]
UserId: TypeAlias = Annotated[str, Path(max_length=MAX_ID_BYTES, examples=["ada"])]
SessionId: TypeAlias = Annotated[
    str, Path(max_length=MAX_ID_BYTES, examples=["monday"])
]

Revision: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""Number of events appended to a session."""

LastEventId: TypeAlias = Annotated[
    str | None, Header(pattern=r"^[0-9]{1,18}(-[0-9]{1,18}-[0-9]{1,18})?$")
]
"""A revision, and if there is one the place of a partial: its turn and its position."""


class _Shape(BaseModel):
    """A model whose attributes' docstrings are their descriptions in the schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class SessionRow(_Shape):
    """A session without its events and state. Times are seconds since 1970."""

    app_name: str = Field(examples=["chat"])
    user_id: str = Field(examples=["ada"])
    session_id: str = Field(examples=["monday"])
    title: str | None = Field(examples=["A trip to Turin"])
    labels: dict[str, str] = Field(examples=[{"env": "prod"}])
    revision: int = Field(examples=[12])
    """How many events were appended."""
    log_begins: int
    """How many of these were trimmed."""
    create_time: float
    last_update_time: float
    """Of the last event, or the creation."""
    ttl: float | None
    """Seconds that it lives after an append."""
    expire_time: float | None
    """When it expires, unless renewed."""
    waiting: tuple[WaitingCall, ...]
    """The calls that wait for a person, the longest first."""
    waiting_more: int
    """How many wait beside these."""


class SessionList(_Shape):
    """A page of sessions."""

    sessions: list[SessionRow]
    next_page_token: str | None
    """None on the last page."""


class EventRow(_Shape):
    """An event, and where it stands in its session's log."""

    revision: int = Field(examples=[3])
    event: Event


class EventList(_Shape):
    """A page of a session's events."""

    events: list[EventRow]
    has_more: bool
    """Whether more follow: ask for what is after, or newest first before, the last
    revision of this page."""


class TurnRow(_Shape):
    """A running turn of a session, or one that has ended."""

    app_name: str
    user_id: str
    session_id: str
    epoch: int
    """Its number; a later turn has a higher one."""
    status: TurnPhase
    since: datetime
    host: str
    reason: str | None = None
    """Why it was stopped."""
    error_type: str | None = None


class SessionChange(Change):
    """The ``data`` of a server-sent event, whose ``event`` is the ``kind``.

    What is not there is left out; an outline has no event, state and state_delta.
    """

    turn: TurnRow | None = None  # type: ignore[assignment]  # an object in JSON
    """The running turn, in a ``partial`` and a ``turn``."""


class SessionQuery(_Shape):
    """Which of the sessions are listed, and how many."""

    title: str | None = None
    """Exactly this title."""
    label: list[Annotated[str, Field(pattern="=")]] = []
    """Exactly this label, as name=value; repeatable."""
    session_id: str | None = None
    """Exactly this session."""
    waiting: bool = False
    """Only those that wait for a person."""
    order_by: Literal["create_time", "update_time"] | None = None
    """The latest first; of their creation, unless given."""
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    page_token: str | None = None
    """The next_page_token of a page."""
    include_eval: bool = False
    """Also those that ADK's evaluations made."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels that a session is to have."""
        return dict(each.split("=", 1) for each in self.label)


class EventQuery(_Shape):
    """Which of a session's events are listed, and how many."""

    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    after_revision: Revision = 0
    before_revision: Revision | None = None
    newest_first: bool = False


class SessionRead(_Shape):
    """Which of a session's events are shown, and at which of its revisions."""

    at_revision: Revision | None = None
    """The session as it was after so many events, 0 for its creation. State of the app
    and the user is as it is now."""
    num_recent_events: int | None = Field(default=None, ge=0, alias="numRecentEvents")
    """Only the last events."""
    after_timestamp: float | None = Field(
        default=None, allow_inf_nan=False, alias="afterTimestamp"
    )
    """Only events from this time on."""


class StreamQuery(_Shape):
    """What every stream may have."""

    partials: bool = False
    """Also how turns stand, and of a session what they say before it is stored."""


class OutlineQuery(StreamQuery):
    """What a stream of several sessions may have."""

    include_eval: bool = False
    """Also what ADK's evaluations do."""


class StreamStart(StreamQuery):
    """Where the stream of a session begins; by a snapshot, unless given."""

    after_revision: Revision | None = None
    """By the events after this revision, however old."""
    history: Literal["all", "newest_first"] | None = None
    """all: by a snapshot without an id, and then every event. newest_first: by a
    snapshot, and beside what happens from then on the events before it as 'earlier',
    the latest first; 'beginning' ends these."""
    before_revision: Revision | None = None
    """With newest_first and Last-Event-ID: 'earlier' goes on before it."""

    @property
    def has_beginning(self) -> bool:
        """Tell whether a beginning is given."""
        return {self.after_revision, self.before_revision, self.history} != {None}


class UserStreamStart(OutlineQuery, StreamStart):
    """What the stream of a user's sessions has."""

    session_id: str | None = None
    """Also the whole content of this session."""


class SessionUpdate(_Shape):
    """What is changed; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    title: str | None = Field(default=None, examples=["A trip to Turin"])
    """None for no title."""
    labels: dict[str, str] | None = Field(default=None, examples=[{"env": "prod"}])
    """All its labels; None for none."""


class TurnRequest(_Shape):
    """What an agent is asked; the fields of ADK's own ``/run_sse`` that fit."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    new_message: types.Content | None = Field(
        default=None,
        alias="newMessage",
        examples=[{"role": "user", "parts": [{"text": "What time is it?"}]}],
    )
    state_delta: dict[str, Any] | None = Field(default=None, alias="stateDelta")
    invocation_id: str | None = Field(default=None, alias="invocationId")
    """Of an invocation to resume, if ADK's app is resumable."""
    streaming: bool = True
    """Whether the model answers piece by piece."""
    interrupt: bool = False
    """Stop the turn that runs; else it is answered by 409."""


class TurnBegun(_Shape):
    """A turn that runs from now on, whoever reads it."""

    epoch: int
    """Its number, as the session's stream shows it."""


class TurnStop(BaseModel):
    """Why a turn is stopped."""

    reason: str | None = Field(default=None, max_length=1000)


class ProblemDetails(_Shape):
    """A refusal, as problem details (RFC 9457)."""

    type: str = "about:blank"
    """The status says what it is."""
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no such session."])
    errors: list[dict[str, Any]] = []
    """With 422: each mistake of the request; its loc, msg and type."""


class ForkRequest(_Shape):
    """Where a session is forked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at_revision: Revision | None = None
    """After so many events; after all, unless given."""
