"""ADK's own routes, for the front ends that it has; a run is a turn of its session."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Final, Self
from uuid import uuid4

from fastapi import APIRouter
from google.adk.agents.run_config import RunConfig
from google.adk.events._internal_metadata import mark_restored
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform.time import get_time
from google.adk.runners import Runner
from google.adk.sessions import Session
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from typing_extensions import override

from mongo_session_service.codec.waiting_calls import ASKING
from mongo_session_service.errors import ConfigurationError, quoted
from mongo_session_service.http.change_stream import AnswerStream, Frame, Frames
from mongo_session_service.http.refusals import (
    NO_STORE,
    REFUSED,
    Authorize,
    Refusal,
    refusal_of,
)
from mongo_session_service.http.session_routes import (
    OF_USER,
    Key,
    OfUser,
    Row,
    SessionResources,
    TurnRequest,
    event_json,
    is_of_evaluation,
    session_json,
)
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import session_key
from mongo_session_service.service import MongoSessionService
from mongo_session_service.turns.running_turns import RunningTurn, root_agent_name

logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 30.0
"""Seconds that a run waits for the end of the turn before it."""

_ADKS_CALLS: Final = frozenset([*ASKING, "adk_request_confirmation"])

_OPTIONS: Final = frozenset([*Details.model_fields, "display_name"])


class _Body(BaseModel):
    """A model whose fields have ADK's names, or Python's."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class SessionToCreate(_Body):
    """A session to create, and what it begins with."""

    session_id: str | None = None
    state: dict[str, Any] | None = None
    events: list[Event] | None = None
    options: dict[str, Any] | None = None


class StateUpdate(_Body):
    """State of the session to set, without its agent."""

    state_delta: dict[str, Any]


class RunRequest(TurnRequest):
    """A request to an agent, as ADK has it."""

    model_config = ConfigDict(**_Body.model_config, extra="ignore")

    app_name: str | None = None
    user_id: str
    session_id: str
    streaming: bool = False
    function_call_event_id: str | None = None
    custom_metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    @model_validator(mode="after")
    def check_config(self) -> Self:
        """Refuse what ADK would refuse once its answer had begun."""
        RunConfig(**self.config)
        return self

    @property
    @override
    def config(self) -> dict[str, Any]:
        metadata = _plain(self.custom_metadata)
        given = {"service_tier": self.service_tier, "custom_metadata": metadata}
        return super().config | given

    @property
    @override
    def wait_seconds(self) -> float:
        return _WAIT_SECONDS


def adk_router(
    service: MongoSessionService,
    *,
    authorize: Authorize,
    runners: Mapping[str, Runner],
    stop_when_left: bool = False,
    client_state: Collection[str] = (),
    run_config: RunConfig | None = None,
    trusted_origins: Collection[str] = (),
    max_body_bytes: int = 65_536,
) -> APIRouter:
    """Serves ADK's own routes, for front ends that are written for ADK's server.

    ::

        app.include_router(adk_router(service, authorize=may, runners={"chat": runner}))

    Paths, bodies and answers are those of ``adk api_server`` in ADK 2.13:

    - ``GET /list-apps``: the names in ``runners``, whoever asks.
    - ``GET /apps/{app_name}/users/{user_id}/sessions``: all of a user's, as an array;
      ``POST`` creates one, with its id, state, events and ``options``.
    - ``GET``, ``POST``, ``PATCH`` (state) and ``DELETE`` of one, at
      ``/apps/{app_name}/users/{user_id}/sessions/{session_id}``.
    - ``POST /run``, and ``POST /run_sse``, whose answer streams.

    A run is a turn of its session, as :meth:`MongoSessionService.start_turn` has them:
    it goes on when its reader leaves. Another run, or ``PATCH``, waits for its end, and
    after 30 seconds is refused with 409.

    ``authorize`` is asked as by :func:`sessions_router`: ``"create"`` for a new
    session, ``"run"`` for a run, and ``"update"`` and ``"run"`` for ``PATCH``. Requests
    are refused as there, with problem details, which have ADK's ``detail``; a request
    that ADK's server would fail over is refused with 422. What stops a stream is its
    last event, with ADK's ``error``: a class, and no text of the agent's.

    Both routers have ``/apps/{app_name}/users/{user_id}/sessions``: an application that
    includes both gives one a ``prefix``.

    Args:
        service: The ``MongoSessionService``.
        authorize: Decides whether a request is allowed: see :class:`Authorize`.
        runners: The ``Runner`` of each app, by the app's name.
        stop_when_left: Whether a run is stopped when its reader leaves, for front ends
            whose stop button closes the connection. A reload stops it as well.
        client_state: As of :func:`sessions_router`.
        run_config: As of :func:`sessions_router`.
        trusted_origins: As of :func:`sessions_router`.
        max_body_bytes: As of :func:`sessions_router`.

    Raises:
        ConfigurationError: a runner is of another app, or as of
            :func:`sessions_router`.
    """
    resources = AdkResources(
        service,
        authorize,
        run_config=run_config,
        client_state=client_state,
        trusted_origins=trusted_origins,
    )
    for name, runner in runners.items():
        if runner.app_name != name:
            message = f"The runner of {name!r} is of the app {runner.app_name!r}."
            raise ConfigurationError(message)
    resources.runners, resources.stops_when_left = {**runners}, stop_when_left
    resources.max_body_bytes = max_body_bytes
    return resources.router()


class AdkResources(SessionResources):
    """The answers of ADK's routes."""

    stops_when_left: bool

    @override
    def router(self) -> APIRouter:
        """Make the routes; see :func:`adk_router`."""
        sessions, one = f"{OF_USER}/sessions", f"{OF_USER}/sessions/{{session_id}}"
        listed = list[str] | dict[str, Any]
        routes: list[Row] = [
            ("", "GET", "/list-apps", self.list_apps, listed, 200),
            ("list", "GET", sessions, self.list_whole, list[Session], 200),
            ("create", "POST", sessions, self.create_session, Session, 200),
            ("read", "GET", one, self.get_session, Session, 200),
            ("create", "POST", one, self.create_session_with_id, Session, 200),
            ("update run", "PATCH", one, self.update_state, Session, 200),
            ("delete", "DELETE", one, self.delete_session, None, 200),
            ("", "POST", "/run", self.run, list[Event], 200),
            ("", "POST", "/run_sse", self.run_sse, Event, 200),
        ]
        return self.router_of("", routes)

    async def list_apps(self, *, detailed: bool = False) -> Response:
        """Lists the apps."""
        names = sorted(self.runners)
        apps = [_app_info(self.runners[name]) for name in names]
        return JSONResponse({"apps": apps} if detailed else names, headers=NO_STORE)

    async def list_whole(self, scope: OfUser) -> Response:
        """Lists all of a user's sessions, with their state and without events."""
        app_name, user_id = str(scope.app_name), str(scope.user_id)
        async with self.reading(scope), self.answer_in_time():
            found = await self.service.list_sessions(app_name=app_name, user_id=user_id)
            shown = [each for each in found.sessions if not is_of_evaluation(each.id)]
            texts = [await session_json(each) for each in shown]
            return self.answer(b"[%b]" % b",".join(texts))

    async def create_session(
        self, scope: OfUser, asked: SessionToCreate | None = None
    ) -> Response:
        """Creates a session of a user, with the events that it begins with."""
        asked = asked or SessionToCreate()
        options = asked.options or {}
        if unknown := sorted(options.keys() - _OPTIONS):
            raise HTTPException(400, f"There is no option {quoted(unknown[0])}.")
        self.check_delta(asked.state or {})
        events = [*map(_restored, asked.events or [])]
        session = await self.service.create_session(
            app_name=str(scope.app_name),
            user_id=str(scope.user_id),
            state=asked.state,
            session_id=asked.session_id,
            **options,
        )
        for event in events:
            await self.service.append_event(session, event)
        return self.answer(await session_json(session))

    async def create_session_with_id(
        self, scope: OfUser, key: Key, state: dict[str, Any] | None = None
    ) -> Response:
        """Creates a session that has this id."""
        asked = SessionToCreate(session_id=key.session_id, state=state)
        return await self.create_session(scope, asked)

    async def update_state(self, key: Key, update: StateUpdate) -> Response:
        """Sets state of a session, by an event of the user, in a turn of its own."""
        self.check_delta(update.state_delta)
        actions = EventActions(state_delta=update.state_delta)
        event = Event(invocation_id=f"p-{uuid4()}", author="user", actions=actions)
        async with self.service.turn(**key.id, wait=_WAIT_SECONDS) as session:
            await self.service.append_event(session, event)
        return self.answer(await session_json(session))

    async def run(self, request: Request, asked: RunRequest) -> Response:
        """Runs an agent in a turn of the session, and answers with its events."""
        running = await self._begin(request, asked.model_copy(update={"streaming": 0}))
        try:
            texts = map(event_json, await running.result())
        except Exception as error:
            raise _refusal_of(error) from error
        return self.answer(f"[{','.join(texts)}]".encode())

    async def run_sse(self, request: Request, asked: RunRequest) -> Response:
        """Runs an agent in a turn of the session, and streams its events."""
        running = await self._begin(request, asked)
        frames = _frames(running, is_split=not asked.function_call_event_id)
        permit = partial(self.permission.require, request, running.turn.key, "run")
        return AnswerStream([frames], AsyncExitStack(), permit, self.limits)

    async def _begin(self, request: Request, asked: RunRequest) -> RunningTurn:
        """Begin a turn; if it is to stop when its reader leaves, see that it does."""
        if not asked.app_name:
            raise HTTPException(400, "Give the appName.")
        key = session_key(asked.app_name, asked.user_id, asked.session_id)
        await self.permission.require(request, key, "run")
        running = await self.begin_turn(request, key, asked)
        if self.stops_when_left:
            watch = asyncio.ensure_future(_stop_when_left(request, running))
            request.state.watch = watch  # which the loop itself would not keep
        return running


async def _frames(running: RunningTurn, *, is_split: bool) -> Frames:
    """The events of a run; what fails it is the last one, as ADK's server has it."""
    try:
        async with aclosing(aiter(running)) as events:
            async for event in events:
                for each in _streamed(event) if is_split else [event]:
                    yield Frame("", event_json(each))
    except Exception as error:  # noqa: BLE001  an agent may raise anything
        kind, reason = type(error).__name__, _refusal_of(error).detail
        details = {"error_type": kind, "error_message": reason, "timestamp": get_time()}
        fields = {"error": f"{kind}: {reason}", "error_details": details}
        yield Frame("", json.dumps(fields))


def _refusal_of(error: Exception) -> HTTPException:
    """Make the refusal of a run that has failed."""
    if isinstance(error, REFUSED):
        return refusal_of(error)
    logger.error("An agent has failed.", exc_info=error)
    return Refusal(500, "failed", "The agent has failed; see the server's log.")


def _streamed(event: Event) -> Iterator[Event]:
    """Part artifacts from the content beside them, for ADK's web interface."""
    delta = event.actions.artifact_delta
    if delta and event.content and event.content.parts:
        actions = event.actions.model_copy(update={"artifact_delta": {}})
        yield event.model_copy(update={"actions": actions})
        event = event.model_copy(update={"content": None})
    yield event


async def _stop_when_left(request: Request, running: RunningTurn) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    running.request_stop("its reader has left")  # without effect once it has ended


def _restored(event: Event) -> Event:
    """Mark an event of a client's, unless only a run may have brought it about."""
    names = {each.name for each in event.get_function_calls()}
    names.update(each.name for each in event.get_function_responses())
    is_adks = not _ADKS_CALLS.isdisjoint(names)
    if event.long_running_tool_ids or event.actions != EventActions() or is_adks:
        why = "Events may have no actions, long-running tools, or calls of ADK's own."
        raise HTTPException(400, why)
    metadata = _plain(event.custom_metadata)
    return mark_restored(event.model_copy(update={"custom_metadata": metadata}))


def _plain(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Drop the names by which ADK and the service mark events."""
    names = [name for name in metadata or () if not name.startswith("__")]
    return {name: metadata[name] for name in names} if metadata else None


def _app_info(runner: Runner) -> dict[str, Any]:
    agent: Any = runner.agent
    tools = {type(each).__name__ for each in getattr(agent, "tools", ())}
    return {
        "name": runner.app_name,
        "rootAgentName": root_agent_name(runner),
        "description": getattr(agent, "description", ""),
        "language": "python",
        "isComputerUse": "ComputerUseToolset" in tools,
        "agents": None,
    }
