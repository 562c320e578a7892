"""Session routes: sessions as resources of any FastAPI application."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    cast,
    get_type_hints,
)
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.routing import APIRoute
from google.adk.agents.run_config import (  # type: ignore[attr-defined]
    RunConfig,
    StreamingMode,
)
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.state import State
from google.genai import types
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope
from typing_extensions import override

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import public_view
from mongo_session_service.codec.documents import json_state
from mongo_session_service.errors import (
    ConfigurationError,
    InvalidInputError,
    StorageUnavailableError,
    TrimmedError,
    session_not_found_error,
)
from mongo_session_service.feed.place import FORM
from mongo_session_service.feed.subscription import SessionSubscription
from mongo_session_service.http.change_stream import (
    PIECE,
    AnswerStream,
    ChangeStream,
    Frame,
    Frames,
    OneContent,
    content_frames,
    frame_of,
    outlines,
)
from mongo_session_service.http.refusals import (
    NO_STORE,
    REF,
    Action,
    Authorize,
    Episode,
    PermissionChecker,
    ProblemDetails,
    Refusal,
    SessionRoute,
    Shape,
    refusals,
)
from mongo_session_service.model import results
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    StoredDetails,
)
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.results import (
    SessionPage,
    SessionSummary,
    summary_fields,
)
from mongo_session_service.model.validation import MAX_ID_BYTES, check_id
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import search
from mongo_session_service.sessions.queries import NO_EVENTS
from mongo_session_service.storage.tasks import Pace
from mongo_session_service.turns.running_turns import RunningTurn
from mongo_session_service.turns.turn import find_last_turn, last_turn

logger = logging.getLogger(__name__)

_EVAL_PREFIXES: Final = ("adk-eval-session-", "___eval___session___")
"""What the ids of sessions begin with that ADK's evaluations make."""

_INTERRUPT_SECONDS: Final = 10.0
"""Seconds that a turn which is interrupted has to end."""

_NOT_OF_CLIENTS: Final = (
    *(State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX),
    ADK_METADATA,  # the title, which needs the permission to "update"
)
"""What the state keys begin with that no client sets unless it is allowed to."""

_ORIGIN: Final = re.compile(r"https?://[^/?#@\s]+")

_VERSIONS: Final = ("session_id", "parent_id", "version_of")
"""The sessions that a branch names."""

OF_USER: Final = "/apps/{app_name}/users/{user_id}"
_ONE: Final = "/sessions/{session_id}"

Row: TypeAlias = tuple[str, str, str, Any, Any, int]
"""A route: the actions it asks for, method, path, endpoint, model and status."""

MAX_PAGE: Final = 200
"""Sessions, or events, on a page."""

AppName: TypeAlias = Annotated[str, Path(max_length=MAX_ID_BYTES, examples=["chat"])]
UserId: TypeAlias = Annotated[str, Path(max_length=MAX_ID_BYTES, examples=["ada"])]
SessionId: TypeAlias = Annotated[
    str, Path(max_length=MAX_ID_BYTES, examples=["monday"])
]

Revision: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""Number of events appended to a session."""

PlaceText: TypeAlias = Annotated[str, Field(pattern=f"^{FORM}$")]
"""A revision, and the session it is of, as the ``id`` of a server-sent event."""

LastEventId: TypeAlias = Annotated[
    str | None,
    Header(pattern=r"^[0-9]{1,18}(-[0-9]{1,18}-[0-9]{1,18})?(-[0-9a-f]{16})?$"),
]
"""The place of a subscription; a revision alone is that of any session of the id."""


_SAMPLE: Final = (files(__package__) / "sample_stream.txt").read_text("utf-8")
_CHANGE: Final = {"$ref": REF.format("SessionChange")}
_DATA: Final = {"contentMediaType": "application/json", "contentSchema": _CHANGE}
_FRAME: Final = {"type": "object", "properties": {"data": _DATA}}
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "headers": {"Permitted-Actions": {"schema": {"type": "string"}}},
        "content": {"text/event-stream": {"example": _SAMPLE, "itemSchema": _FRAME}},
    }
}
"""A session's stream, with one of each event, for FastAPI's schema."""


class EventRow(Shape):
    """An event, and where it stands in its session's log."""

    revision: int = Field(examples=[3])
    event: Event


class EventList(Shape):
    """A page of a session's events."""

    events: list[EventRow]
    has_more: bool
    """True if more follow: after, or newest first before, this page's last revision."""


_TURN: Final[Any] = {
    name: (kind, results.TurnInfo._field_defaults.get(name, ...))
    for name, kind in get_type_hints(results.TurnInfo, vars(results)).items()
}
TurnFields: Any = create_model("TurnFields", **_TURN)


class SessionChange(Change):
    """The ``data`` of a server-sent event, whose ``event`` is the ``kind``.

    What is not there is left out; an outline has no event, state and state_delta.
    """

    turn: TurnFields | None = None  # an object in JSON
    """The running turn, in a ``partial`` and a ``turn``."""


_STREAMS: Final[dict[Any, type[Response]]] = {
    SessionChange: ChangeStream,
    Event: AnswerStream,
}


class SessionRow(SessionSummary):
    """A session in a list."""

    turn: TurnFields | None = None
    """The turn that it has, or had last."""


class SessionList(SessionPage):
    """A page of sessions."""

    sessions: list[SessionRow]  # type: ignore[assignment]


class SessionQuery(Shape):
    """Query parameters of a list of sessions."""

    title: str | None = None
    """Exactly this title."""
    label: list[Annotated[str, Field(pattern="=")]] = Field(default_factory=list)
    """Exactly this label, as name=value; repeatable."""
    session_id: str | None = None
    """Exactly this session."""
    waiting: bool = False
    """Only those that wait for a person."""
    order_by: Literal["create_time", "update_time"] = "create_time"
    """The latest first."""
    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    page_token: str | None = None
    """The next_page_token of a page."""
    families: bool = False
    """Of the versions of a conversation only the one that is shown."""
    include_eval: bool = False
    """Also those that ADK's evaluations made."""


class EventQuery(Shape):
    """Query parameters of a page of events."""

    limit: int = Field(default=50, ge=1, le=MAX_PAGE)
    after_revision: Revision | PlaceText = 0
    before_revision: Revision | PlaceText | None = None
    newest_first: bool = False
    rewound: bool = True
    """Whether events that rewinds have undone are listed too, and the rewinds."""


class SessionRead(Shape):
    """Query parameters of a session."""

    at_revision: Revision | PlaceText | None = None
    """The session as it was after so many events, 0 for its creation. State of the app
    and the user is as it is now."""
    num_recent_events: int | None = Field(default=None, ge=0, alias="numRecentEvents")
    """Only the last events."""
    after_timestamp: float | None = Field(
        default=None, allow_inf_nan=False, alias="afterTimestamp"
    )
    """Only events from this time on."""


class StreamQuery(Shape):
    """Query parameters of every stream."""

    partials: bool = False
    """Also the status of running turns, and of one session their partials."""


class OutlineQuery(StreamQuery):
    """Query parameters of a stream of several sessions."""

    include_eval: bool = False
    """Also what ADK's evaluations do."""


class StreamStart(StreamQuery):
    """Query parameters of a session's stream; by default it begins by a snapshot."""

    after_revision: Revision | None = None
    """By the events after this revision, however old."""
    history: Literal["all"] | None = None
    """By a snapshot without an id, and then every event."""


class UserStreamStart(OutlineQuery, StreamStart):
    """Query parameters of the stream of a user's sessions."""

    session_id: str | None = None
    """Also the whole content of this session."""


class _Forbidding(Shape):
    """Changes of a session's details; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SessionUpdate(_Forbidding):
    """What a conversation has in common; null for none."""

    title: str | None = None
    labels: dict[str, str] | None = None


class SessionStart(SessionUpdate):
    """A session that is to be created."""

    session_id: str | None = Field(default=None, alias="sessionId")
    """A random one, unless given."""
    ttl: float | None = None
    """Seconds that it lives after its last append, or turn."""
    state: dict[str, Any] | None = None
    """State of the session alone, unless the server allows others."""


class TurnRequest(Shape):
    """A request to an agent: the fields of ADK's own ``/run_sse`` that fit."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    new_message: types.Content | None = Field(
        default=None,
        alias="newMessage",
        examples=[{"role": "user", "parts": [{"text": "What time is it?"}]}],
    )
    state_delta: dict[str, Any] | None = Field(default=None, alias="stateDelta")
    """State of the session alone, unless the server allows others."""
    invocation_id: str | None = Field(default=None, alias="invocationId")
    """Of an invocation to resume, if ADK's app is resumable."""
    instead_of: str | None = Field(default=None, alias="insteadOf")
    """An invocation whose message is edited, or without a newMessage is asked again, on
    a new branch."""
    # Defaults in a schema would have clients in TypeScript send them.
    streaming: bool = Field(default_factory=lambda: True)
    """Whether the model answers piece by piece."""
    interrupt: bool = Field(default_factory=bool)
    """Stop the turn that runs, unless a later request does; else 409 is the answer."""

    @property
    def config(self) -> dict[str, Any]:
        """What it says of ADK's ``RunConfig``."""
        mode = StreamingMode.SSE if self.streaming else StreamingMode.NONE
        return {"streaming_mode": mode}

    @property
    def wait_seconds(self) -> float:
        """How long it waits for the turn that runs."""
        return _INTERRUPT_SECONDS if self.interrupt else 0


class TurnBegun(Shape):
    """A turn that runs from now on, whoever reads it."""

    session_id: str
    """The session that it runs in: with instead_of the new branch."""
    epoch: int
    """Its number, as the session's stream shows it."""


class BranchList(Shape):
    """The versions of a conversation."""

    branches: list[results.Branch]
    """The oldest first."""


class TurnStop(BaseModel):
    """Why a turn is stopped."""

    reason: str | None = Field(default=None, max_length=1000)


class ForkRequest(_Forbidding):
    """Where a session is forked."""

    at_revision: Revision | None = None
    """After so many events; after all, unless given."""


async def _key(app_name: AppName, user_id: UserId, session_id: SessionId) -> SessionKey:
    return session_key(app_name, user_id, session_id)


async def _scope(app_name: AppName, user_id: UserId) -> Scope:
    return Scope(check_id("app_name", app_name), check_id("user_id", user_id))


Key: TypeAlias = Annotated[SessionKey, Depends(_key)]
OfUser: TypeAlias = Annotated[Scope, Depends(_scope)]


def sessions_router(
    service: MongoSessionService,
    *,
    authorize: Authorize,
    runner: Runner | None = None,
    client_state: Collection[str] = (),
    run_config: RunConfig | None = None,
    trusted_origins: Collection[str] = (),
    max_body_bytes: int = 65_536,
) -> APIRouter:
    """Serves sessions as resources, in any FastAPI application, ADK's own too.

    ::

        app.include_router(sessions_router(service, authorize=may))

    Below ``/apps/{app_name}/users/{user_id}``, and in the application's ``/docs``:

    - ``GET /sessions``: a page of the user's sessions; ``POST`` creates one.
    - ``GET /sessions/{session_id}``: a session, as ADK's own server answers it.
    - ``GET /sessions/{session_id}/events``: a page of its events.
    - ``PATCH`` and ``DELETE /sessions/{session_id}``, and
      ``POST /sessions/{session_id}/fork``.
    - ``GET /sessions/{session_id}/branches``: the versions of a conversation;
      ``PUT /sessions/{session_id}/shown`` flips to one.
    - ``GET /sessions/{session_id}/changes``: server-sent events of the session.
    - ``GET /changes``: of all of the user's sessions, without events and state; with
      the query parameter ``session_id`` also the whole content of that one, so that a
      browser's tab needs one connection.
    - ``GET /sessions/{session_id}/turn``: the turn that it has, or had last;
      ``DELETE`` stops what runs in any process.
    - ``POST /sessions/{session_id}/turns``, with a ``runner``: runs its agent in a turn
      that goes on without the request, and answers by 202, its session and its epoch.
      With ``insteadOf`` it edits a message. The session's stream has its partials, with
      ``partials=true``.

    Before anything is read, and again at each heartbeat of a stream, ``authorize`` is
    asked. What is sent is the public view, as ADK's own server sends it: see
    :attr:`Change.json_text`. Requests are refused with problem details (RFC 9457): 403
    if ``authorize`` returns False, whether or not the session exists; 404; 413; 415;
    422; 503 with ``Retry-After`` while MongoDB is away. Unknown query parameters are
    ignored. Pages of another origin may not write: what a browser sends for them has a
    ``Sec-Fetch-Site`` other than ``same-origin`` and ``none``, or without one an
    ``Origin`` that is not the ``Host``. Clients that are no browsers send neither.

    Args:
        service: The ``MongoSessionService``.
        authorize: Decides whether a request is allowed: see :class:`Authorize`. It may
            be ``async``; a plain function is called in a thread. It may raise
            ``HTTPException``; if it raises anything else, the answer is 500, and after
            10 seconds without an answer 503. It is asked several questions at once. A
            plain one that hangs keeps at most 40 threads. There is no default:
            :func:`allow_everyone` lets everybody in.
        runner: An ADK ``Runner`` of the app whose sessions may be asked something. Its
            turns end with the process, or by ``service.close(grace=)``.
        run_config: The ``RunConfig`` of these turns, for example with a
            ``get_session_config``. Requests decide whether the model streams.
        client_state: Keys that the ``stateDelta`` of a request may set beside those of
            the session, each by its whole name, as ``("user:theme", "temp:city")``.
            State of the app and the user is shared, and instructions and tools believe
            ``temp:`` keys, so any other one is refused with 422.
        trusted_origins: Origins whose pages may use these routes as well, such as
            ``("https://app.example",)``: preflights are answered, and CORS headers are
            sent. The header fields allowed are ``Authorization``, ``Content-Type`` and
            ``Last-Event-ID``.
        max_body_bytes: The largest body of a request; a larger one is answered with
            413. A message with a picture in it needs more than the default: four bytes
            for each three of the picture.

    Raises:
        ConfigurationError: ``authorize`` cannot be called, ``client_state`` is no
            collection of names, or ``trusted_origins`` none of origins.
    """
    resources = SessionResources(
        service,
        authorize,
        runner,
        run_config=run_config,
        client_state=client_state,
        trusted_origins=trusted_origins,
    )
    resources.max_body_bytes = max_body_bytes
    return resources.router()


class SessionResources:
    """The answers of the session routes."""

    max_body_bytes = 65_536
    asks_of_each = False
    """Whether lists ask for each session; else who may list a user's may list all."""

    def __init__(
        self,
        service: MongoSessionService,
        authorize: Authorize,
        runner: Runner | None = None,
        *,
        run_config: RunConfig | None = None,
        within: Scope = Scope(),  # noqa: B008  it cannot be changed
        client_state: Collection[str] = (),
        trusted_origins: Collection[str] = (),
    ) -> None:
        if isinstance(client_state, str):
            message = "client_state must be a collection of names, such as a tuple."
            raise ConfigurationError(message)
        if not all(map(_ORIGIN.fullmatch, trusted_origins)):
            message = (
                "trusted_origins must be a collection of origins as browsers send them,"
                " such as https://app.example or http://localhost:3000."
            )
            raise ConfigurationError(message)
        self.client_state = frozenset(client_state)
        self.trusted_origins = frozenset(trusted_origins)
        self.service = service
        self.runners = {} if runner is None else {runner.app_name: runner}
        self.run_config = run_config or RunConfig()
        self.within = within
        self.limits = backends_of(service).limits
        seconds = self.limits.http_authorize_seconds
        self.permission = PermissionChecker(authorize, seconds, within)
        self._lists: WeakValueDictionary[Scope, asyncio.Lock] = WeakValueDictionary()

    def router(self) -> APIRouter:
        """Make the routes; see :func:`sessions_router`."""
        routes: list[Row] = [
            ("list", "GET", "/sessions", self.list_sessions, SessionList, 200),
            ("create", "POST", "/sessions", self.new_session, SessionSummary, 201),
            ("read", "GET", _ONE, self.get_session, Session, 200),
            ("update", "PATCH", _ONE, self.update_session, SessionSummary, 200),
            ("delete", "DELETE", _ONE, self.delete_session, None, 200),
            ("read", "GET", f"{_ONE}/events", self.list_events, EventList, 200),
            ("fork", "POST", f"{_ONE}/fork", self.fork_session, SessionSummary, 201),
            ("read", "GET", f"{_ONE}/branches", self.list_branches, BranchList, 200),
            ("update", "PUT", f"{_ONE}/shown", self.show_branch, None, 204),
            ("stop", "DELETE", f"{_ONE}/turn", self.stop_turn, None, 202),
            ("read", "GET", f"{_ONE}/turn", self.get_turn, TurnFields, 200),
            # Streams ask by themselves, for all that a page may offer.
            ("", "GET", f"{_ONE}/changes", self.stream_session, SessionChange, 200),
            ("", "GET", "/changes", self.stream_user, SessionChange, 200),
        ]
        if self.runners:
            turns = f"{_ONE}/turns"
            routes.append(("run", "POST", turns, self.start_turn, TurnBegun, 202))
        return self.router_of(OF_USER, routes)

    def router_of(self, prefix: str, routes: Iterable[Row]) -> APIRouter:
        """Make a router whose routes ask for permissions, and refuse, as all do."""

        class Route(SessionRoute):
            trusted_origins = self.trusted_origins
            max_body_bytes = self.max_body_bytes
            outage = Episode(logging.WARNING)

        router = APIRouter(
            route_class=Route,
            responses=refusals(403, 404, 422),
            tags=["sessions"],
            generate_unique_id_function=_operation_id,
        )
        for actions, method, path, endpoint, model, status in routes:
            is_stream = model in _STREAMS
            more = {} if method == "GET" else refusals(409, 413, 415)
            router.add_api_route(
                prefix + path,
                endpoint,
                methods=[method],
                # No answer has a stream's: it brings the models into the schema.
                response_model=model | ProblemDetails if is_stream else model,
                response_class=_STREAMS.get(model, JSONResponse),
                status_code=status,
                responses=_STREAM if model is SessionChange else more,
                dependencies=[*map(self._permission_check, actions.split())],
            )
        return router

    def _permission_check(self, action: Any) -> Any:
        """Make the dependency of a route that asks for the permission to it."""

        async def ask_of_user(request: Request, scope: OfUser) -> None:
            await self.permission.require(request, scope, action)

        async def ask_of_session(request: Request, key: Key) -> None:
            await self.permission.require(request, key, action)

        return Depends(ask_of_user if action in {"list", "create"} else ask_of_session)

    async def list_sessions(
        self, request: Request, scope: OfUser, query: Annotated[SessionQuery, Query()]
    ) -> Response:
        """Lists a user's sessions, a page at a time; the latest first."""
        async with self.reading(scope), self.answer_in_time():
            rows, token = await self.find_rows(request, scope, query)
            return self.listed({"sessions": rows, "next_page_token": token})

    async def new_session(
        self, scope: OfUser, asked: SessionStart | None = None
    ) -> Response:
        """Creates a session of a user, with state of its own alone."""
        given = asked.model_dump(exclude_none=True) if asked else {}
        self.check_delta((asked and asked.state) or {})
        new = await self.service.create_session(
            app_name=str(scope.app_name), user_id=str(scope.user_id), **given
        )
        return await self.created(new)

    async def get_session(
        self, key: Key, query: Annotated[SessionRead, Query()]
    ) -> Response:
        """Shows a session as ADK's own server does."""
        revision, since = query.at_revision, query.after_timestamp
        if revision is not None and since is not None:
            raise InvalidInputError("Give at_revision or afterTimestamp, not both.")
        config = GetSessionConfig(
            num_recent_events=query.num_recent_events, after_timestamp=since
        )
        asked: dict[str, Any] = {**key.id, "config": config}
        async with self.answer_in_time():
            if revision is None:
                session = await self.service.get_session(**asked)
            else:
                session = await self.service.get_session_at(**asked, revision=revision)
        if session is None:
            raise session_not_found_error(key.session_id)
        return self.answer(await session_json(session))

    async def list_events(
        self, key: Key, query: Annotated[EventQuery, Query()]
    ) -> Response:
        """Lists a session's events, a page at a time."""
        shown: list[bytes] = []
        size, has_more, pace = 0, False, Pace()
        found = self.service.iter_events(
            **key.id, **query.model_dump() | {"limit": query.limit + 1}
        )
        async with self.answer_in_time(), aclosing(found):
            async for revision, event in found:
                if len(shown) == query.limit or size > self.limits.http_page_bytes:
                    has_more = True
                    break
                shown.append(
                    f'{{"revision":{revision},"event":{event_json(event)}}}'.encode()
                )
                size += len(shown[-1])
                await pace.yield_to_loop()
        end = b"true" if has_more else b"false"
        return self.answer(b'{"has_more":%b,"events":[%b]}' % (end, b",".join(shown)))

    async def update_session(self, key: Key, update: SessionUpdate) -> Response:
        """Changes a session's title and labels; what is left out stays as it is."""
        fields = update.model_dump(exclude_unset=True)
        found = await self.service.update_session(**key.id, **fields)
        return json_response(summary_fields(found))

    async def fork_session(self, key: Key, fork: ForkRequest | None = None) -> Response:
        """Creates a session of the same user with the events up to a revision."""
        revision = None if fork is None else fork.at_revision
        forked = await self.service.fork_session(
            **key.id, at_revision=revision, config=NO_EVENTS
        )
        return await self.created(forked)

    async def created(self, new: Session) -> Response:
        """Answer with the row of a new session."""
        storage = (await backends_of(self.service).backend()).storage
        page = await search.find_by_id(storage, new.app_name, new.user_id, new.id)
        if not page.sessions:
            raise session_not_found_error(new.id)
        return json_response(summary_fields(page.sessions[0]), 201)

    async def list_branches(self, request: Request, key: Key) -> Response:
        """Lists those versions of a conversation that may be read.

        Any other that these are of has a random name.
        """
        async with self.reading(Scope(*key[:2])):
            async with self.answer_in_time():
                found = await self.service.find_branches(**key.id)
            ids = {getattr(each, name) for each in found for name in _VERSIONS}
            keys = [key._replace(session_id=it) for it in ids - {None}]
            may = await self.permission.which(request, keys, "read")
            known = {None} | {each.session_id for each in may}
            names = {it: it if it in known else uuid.uuid4().hex for it in ids}
            rows = [
                each.model_dump() | {it: names[getattr(each, it)] for it in _VERSIONS}
                for each in found
                if each.session_id in known
            ]
            return self.listed({"branches": rows})

    async def show_branch(self, request: Request, key: Key) -> Response:
        """Has its family show a session, in each list and tab."""
        await self._require_of_shown(request, key, "update")
        await self.service.show_branch(**key.id)
        return Response(None, 204, NO_STORE)

    async def _require_of_shown(
        self, request: Request, key: SessionKey, action: Action
    ) -> None:
        """Refuse to hide the version that is shown if the request may not do that."""
        for each in await self.service.find_branches(**key.id):
            if each.is_shown:
                shown = key._replace(session_id=each.session_id)
                await self.permission.require(request, shown, action)

    async def delete_session(self, key: Key) -> Response:
        """Deletes a session, if it is stored."""
        await self.service.delete_session(**key.id)
        return json_response(None)

    async def start_turn(
        self, request: Request, key: Key, asked: TurnRequest
    ) -> Response:
        """Runs the agent in a turn of a session, which goes on without this request."""
        running = await self.begin_turn(request, key, asked)
        begun = {"session_id": running.session_id, "epoch": running.epoch}
        return json_response(begun, 202)

    async def begin_turn(
        self, request: Request, key: SessionKey, asked: TurnRequest
    ) -> RunningTurn:
        """Check what an agent is asked for, and ask it."""
        runner = self.runners.get(key.app_name)
        if runner is None:
            raise session_not_found_error(key.session_id)
        parts = (asked.new_message and asked.new_message.parts) or []
        resumes = asked.invocation_id or asked.instead_of
        if not (parts or resumes):  # ADK would call the model all the same
            why = "Give a newMessage with parts, an invocationId or insteadOf."
            raise Refusal(422, "invalid", why)
        self.check_delta(asked.state_delta or {})
        if asked.instead_of is not None:
            await self.permission.require(request, key, "fork")
            await self._require_of_shown(request, key, "fork")
        if any(each.function_response for each in parts):
            await self.permission.require(request, key, "answer")
        if asked.interrupt:
            await self.permission.require(request, key, "stop")
        names = ("new_message", "state_delta", "invocation_id", "instead_of")
        given: dict[str, Any] = {name: getattr(asked, name) for name in names}
        return await self.service.start_turn(
            runner,
            user_id=key.user_id,
            session_id=key.session_id,
            wait=asked.wait_seconds,
            interrupt=asked.interrupt,
            run_config=self.run_config.model_copy(update=asked.config),
            **{name: it for name, it in given.items() if it is not None},
        )

    def check_delta(self, delta: Mapping[str, Any]) -> None:
        """Refuse state that a client may not set, and what could not be stored."""
        for key in delta.keys() - self.client_state:
            for prefix in filter(key.startswith, _NOT_OF_CLIENTS):
                why = (
                    f"Set keys of the session alone in stateDelta, and none of {prefix}"
                )
                raise Refusal(422, "invalid", why)
        json_state(delta)

    async def get_turn(self, key: Key) -> Response:
        """Shows the turn that a session has, or had last; one cut off is abandoned."""
        async with self.answer_in_time():
            turn = await find_last_turn(backends_of(self.service), key)
        if turn is None:
            raise Refusal(404, "no-turn", "This session has had no turn.")
        return json_response(turn_fields(turn))

    async def stop_turn(self, key: Key, stop: TurnStop | None = None) -> Response:
        """Stops the turn of a session, in whichever process it runs."""
        reason = None if stop is None else stop.reason
        if not await self.service.stop_turn(**key.id, reason=reason):
            raise Refusal(404, "no-turn", "No turn of this session is running.")
        return json_response(None, 202)

    async def stream_session(
        self,
        request: Request,
        key: Key,
        query: Annotated[StreamStart, Query()],
        last_event_id: LastEventId = None,
    ) -> Response:
        """Streams a session's changes, as server-sent events.

        ``id`` begins with the session's revision, and names the session; a client that
        reconnects sends it as ``Last-Event-ID``. The stream ends by ``deleted``, or by
        ``trouble``, whose data is a ``reason``.
        """
        permit = partial(self.permission.require, request, key, "read")
        actions = await self.permission.permitted_actions(request, key, "read")
        async with AsyncExitStack() as opening:
            content = await self.open_content(key, query, last_event_id, opening)
            return ChangeStream(
                [content], opening.pop_all(), permit, self.limits, actions
            )

    async def stream_user(
        self,
        request: Request,
        scope: OfUser,
        query: Annotated[UserStreamStart, Query()],
        last_event_id: LastEventId = None,
    ) -> Response:
        """Streams what happens to a user's sessions from now on, as server-sent events.

        Without events, state and partials. ``session_id`` adds the whole content of one
        session, until it is deleted, and ``id``s that resume it.
        """
        key = None
        if query.session_id is not None:
            key = session_key(*scope[:2], query.session_id)  # type: ignore[arg-type]  # the path has both
        elif {last_event_id, query.after_revision, query.history} != {None}:
            message = "after_revision and history need a session_id."
            raise InvalidInputError(message)

        async def permit() -> None:
            asked = [self.permission.require(request, scope, "list")]
            if key is not None:
                asked.append(self.permission.require(request, key, "read"))
            await asyncio.gather(*asked)

        actions: list[Action] = []
        sources: list[Frames] = []
        one = OneContent(key)
        gone = None
        if key is None:
            await permit()
        else:
            actions = await self.permission.permitted_actions(
                request, key, "list", "read"
            )
        async with AsyncExitStack() as opening:
            if key is not None:
                try:
                    content = await self.open_content(
                        key, query, last_event_id, opening
                    )
                    sources = [one.until_end(content)]
                except SessionNotFoundError:
                    if last_event_id is None:
                        raise
                    await opening.aclose()
                    one.ended.set()
                    gone = Change(
                        kind="deleted", **key.id, time=platform_time.get_time()
                    )
            others = await self.open_outlines(scope, query, one.lacks, opening, gone)
            return ChangeStream(
                [others, *sources], opening.pop_all(), permit, self.limits, actions
            )

    async def open_content(
        self,
        key: SessionKey,
        start: StreamStart,
        last_event_id: str | None,
        opening: AsyncExitStack,
    ) -> Frames:
        """Open the stream of a session, and read what it begins with."""
        if start.history is not None and start.after_revision is not None:
            raise InvalidInputError("Give history or after_revision, not both.")
        begun: list[Frame] = []
        opened = await self._open_subscription(key, start, last_event_id, opening)
        if start.history and opened[0].is_of_successor:
            begun.append(frame_of(await anext(opened[0])))
            opened[0].close()
            opened = await self._open_subscription(key, start, None, opening)
        subscription, is_whole = opened
        if is_whole:
            # After the subscription: if the session is recreated in between, the
            # subscription delivers ``deleted``.
            async with self.answer_in_time(), self.service.watch(*key) as changes:
                # Without an id: a client could not resume from it.
                begun.append(frame_of(await anext(changes)))
        return content_frames(subscription, begun)

    async def _open_subscription(
        self,
        key: SessionKey,
        start: StreamStart,
        last_event_id: str | None,
        opening: AsyncExitStack,
    ) -> tuple[SessionSubscription, bool]:
        """Subscribe to a session; also return whether to its whole history.

        A client that comes back goes on after its place; if the session has not come to
        it, it begins anew.
        """
        after: int | str | None = start.after_revision
        if last_event_id is not None:
            after = int(last_event_id) if last_event_id.isdigit() else last_event_id
        log_begins = 0
        while True:
            is_whole = start.history == "all" and after is None
            try:
                subscription = self.service.watch(
                    *key,
                    after_revision=log_begins if is_whole else after,
                    max_bytes=self.limits.http_unread_bytes,
                    partials=start.partials,
                )
                async with self.answer_in_time():
                    await opening.enter_async_context(subscription)
                return cast("SessionSubscription", subscription), is_whole
            except InvalidInputError as error:
                if is_whole and isinstance(error, TrimmedError):
                    log_begins = error.log_begins
                elif last_event_id is not None and after is not None:
                    after = None
                else:
                    raise

    async def open_outlines(
        self,
        scope: Scope,
        query: OutlineQuery,
        may_show: Callable[[SessionKey, Change], Awaitable[bool]],
        opening: AsyncExitStack,
        first: Change | None = None,
    ) -> Frames:
        """Subscribe to those sessions of a scope that may be shown."""

        async def may_send(change: Change) -> bool:
            key = change.session_key
            return (
                key is not None
                and (query.include_eval or not is_of_evaluation(key.session_id))
                and await may_show(key, change)
            )

        size = self.limits.http_unread_bytes
        watching = self.service.watch(*scope, max_bytes=size, partials=query.partials)
        async with self.answer_in_time():
            subscription = await opening.enter_async_context(watching)
        return outlines(subscription, may_send, first)

    async def find_rows(
        self, request: Request, scope: Scope, query: SessionQuery
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Find a page of an app's or a user's sessions, and the token of the next.

        What may not be shown is passed over, so that no row or token depends on it.
        """
        storage = (await backends_of(self.service).backend()).storage
        labels = dict(each.split("=", 1) for each in query.label) or None
        asked = query.model_dump(include={"order_by", "families"})
        wanted = search.new_search(
            *scope[:2],
            StoredDetails.given(is_new=True, title=query.title, labels=labels),
            None,
            newest_first=True,
            hooks=storage.hooks,
            waiting=query.waiting or None,
            **asked,
        )
        rows: list[dict[str, Any]] = []
        token, limit, size = query.page_token, query.limit + 1, 0
        if token is not None:
            place = await search.find_place(storage, token, wanted)
            token = search.page_token_after(place, wanted)
        while True:
            if query.session_id is None:
                page = await search.read_page(
                    storage, wanted, token, limit, looks_ahead=False
                )
            else:
                id_ = check_id("session_id", query.session_id.strip())
                owner = str(scope.app_name), scope.user_id
                page = await search.find_by_id(
                    storage, *owner, id_, families=query.families
                )
            found = {
                SessionKey(each.app_name, each.user_id, each.id): each
                for each in page.sessions
                if query.include_eval or not is_of_evaluation(each.id)
            }
            keys = [*found]
            if self.asks_of_each:
                keys = await self.permission.which(request, keys, "read")
            for key in keys:
                is_full = len(rows) >= query.limit or size > self.limits.http_page_bytes
                if is_full and query.session_id is None:
                    return rows, search.page_token_after(place, wanted)
                at, record = page.found[key]
                row = summary_fields(found[key])
                if (turn := last_turn(storage, record)) is not None:
                    row["turn"] = turn_fields(turn)
                rows.append(row)
                size += len(str(row))
                place = search.without_ids(at)
            token, limit = page.next_page_token, MAX_PAGE
            if token is None:
                return rows, None

    def reading(self, scope: Scope) -> asyncio.Lock:
        """Held while a list is read: of a user's, one at a time is in memory."""
        return self._lists.setdefault(scope, asyncio.Lock())

    def listed(self, fields: Mapping[str, object]) -> Response:
        """Answer with a list, which titles and labels may make large."""
        return self.answer(public_view.json_text(fields).encode())

    def answer(self, text: bytes | bytearray) -> Response:
        """Answer with JSON that may be large, to a client that takes it in time."""
        return LargeResponse(text, self.limits.http_unread_seconds)

    @asynccontextmanager
    async def answer_in_time(self) -> AsyncIterator[None]:
        """Give a read as long as a client should wait for it."""
        seconds = self.limits.http_answer_seconds
        try:
            async with asyncio.timeout(seconds) as timer:
                yield
        except TimeoutError:
            if not timer.expired():
                raise
            backend = backends_of(self.service).here()
            late = f"no answer within {seconds:g} seconds"
            error = StorageUnavailableError(f"MongoDB gave {late}.")
            raise (backend.storage.late_error(late) if backend else error) from None


def turn_fields(turn: results.TurnInfo) -> dict[str, Any]:
    return {name: it for name, it in turn._asdict().items() if it is not None}


def is_of_evaluation(session_id: str) -> bool:
    return session_id.startswith(_EVAL_PREFIXES)


def json_response(fields: Mapping[str, object] | None, status: int = 200) -> Response:
    """Answer with the public view of some fields, or with null."""
    text = "null" if fields is None else public_view.json_text(fields)
    return Response(text, status, NO_STORE, "application/json")


class LargeResponse(Response):
    """Sends its body in pieces, since a server buffers whatever it receives."""

    media_type = "application/json"

    def __init__(self, text: bytes | bytearray, seconds: float) -> None:
        """Give a client so many seconds to take each piece."""
        super().__init__(None, headers=NO_STORE)
        self._text = text
        self._seconds = seconds

    @override
    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Send it, and free its memory."""
        del self.headers["content-length"]
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        body: Message = {"type": "http.response.body"}
        try:
            for at in range(0, len(self._text), PIECE):
                piece = bytes(self._text[at : at + PIECE])
                async with asyncio.timeout(self._seconds):
                    await send({**body, "body": piece, "more_body": True})
        except TimeoutError:
            logger.info("A client's answer ends. It did not read.")
        self._text = b""
        await send({**body, "body": b""})


def _operation_id(route: APIRoute) -> str:
    """Name an operation by its function, after the prefix that its application gave."""
    before, of_app, _ = route.path_format.partition("/apps/")
    return "_".join([*re.findall(r"\w+", before), *([route.name] if of_app else [])])


async def session_json(session: Session) -> bytearray:
    """Write a session as ADK's own server does, and let others work meanwhile.

    It empties the session, so that little more memory is needed than for its text.
    """
    fields = session.model_dump(by_alias=True, exclude={"events"})
    begun = public_view.json_text(fields).removesuffix("}").encode()
    text, pace, events = bytearray(begun + b',"events":['), Pace(), session.events[::-1]
    session.events.clear()
    while events:
        text += event_json(events.pop()).encode()
        text += b"," if events else b""
        await pace.yield_to_loop()
    text += b"]}"
    return text


def event_json(event: Event) -> str:
    """Write the public view of an event."""
    text = public_view.json_text({"event": event})  # which knows it by its name
    return text.removeprefix('{"event":').removesuffix("}")
