"""Session routes: sessions as resources of any FastAPI application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Annotated, Any, ClassVar, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from fastapi import APIRouter, Depends, Header, Query
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from google.adk.agents.run_config import (  # type: ignore[attr-defined]
    RunConfig,
    StreamingMode,
)
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message
from starlette.types import Scope as ASGIScope
from typing_extensions import override

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import public_view
from mongo_session_service.driver.slices import Pace
from mongo_session_service.errors import (
    InvalidInputError,
    StorageUnavailableError,
    session_not_found_error,
)
from mongo_session_service.http import problems, shapes
from mongo_session_service.http.change_stream import (
    ChangeStream,
    DeletedContent,
    Outlines,
    Source,
    Start,
    open_content,
)
from mongo_session_service.http.permission import Action, Authorize, Permission
from mongo_session_service.http.reading_budget import HeldText, ReadingBudget
from mongo_session_service.http.shapes import AppName, SessionId, UserId
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import check_id
from mongo_session_service.service import MongoSessionService, backend_of
from mongo_session_service.sessions import directory

EVAL_PREFIXES: Final = ("adk-eval-session-", "___eval___session___")
"""What the ids of sessions begin with that ADK's evaluations make."""


def _key(app_name: AppName, user_id: UserId, session_id: SessionId) -> SessionKey:
    return session_key(app_name, user_id, session_id)


def _scope(app_name: AppName, user_id: UserId) -> Scope:
    return Scope(check_id("app_name", app_name), check_id("user_id", user_id))


Key: TypeAlias = Annotated[SessionKey, Depends(_key)]
OfUser: TypeAlias = Annotated[Scope, Depends(_scope)]

_USER: Final = "/apps/{app_name}/users/{user_id}"
_SESSION: Final = f"{_USER}/sessions/{{session_id}}"

_SLASH: Final = re.compile(rb"%2[Ff]")
_STAND_IN: Final = "\udc2f"
"""Of a slash in an id: no path that is decoded holds it."""

_MAX_BODY: Final = 65_536
"""Bytes of a request's body."""

_INTERRUPT_SECONDS: Final = 10.0
"""Seconds that a turn which is interrupted has to end."""

_MOST_LOOKS: Final = 10
"""Queries for one page of sessions, if evaluations made most of them."""

_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": description,
        "content": {
            "application/problem+json": {
                "schema": problems.ProblemDetails.model_json_schema()
            }
        },
    }
    for status, description in {
        403: "Not allowed, whatever exists",
        404: "There is no such session",
        422: "The request is invalid",
        503: "MongoDB is unavailable",
    }.items()
}


_EVENT_STREAM: Final = {"media_type": "text/event-stream"}

_CREATED: Final[dict[str, Any]] = {"status_code": 201}
_ACCEPTED: Final[dict[str, Any]] = {"status_code": 202}
_STREAM: Final[tuple[Any, dict[str, Any]]] = (
    shapes.SessionChange,
    {"response_class": type("EventStream", (Response,), _EVENT_STREAM)},
)


class SessionRoute(APIRoute):
    """A route that refuses by problem details, and parameters that nobody reads."""

    query_parameters: ClassVar[frozenset[str]] = frozenset()
    """Names of others that the application reads itself."""

    @override
    def matches(self, scope: ASGIScope) -> tuple[Match, ASGIScope]:
        """Match a path whose ids may hold slashes, as ``%2F``."""
        pieces = _SLASH.split(scope.get("raw_path", b""))
        if len(pieces) == 1 or scope["type"] != "http":
            return super().matches(scope)
        path = _STAND_IN.join(unquote(each.decode("latin-1")) for each in pieces)
        match, found = super().matches({**scope, "path": path})
        names = found.get("path_params", {})
        found["path_params"] = {
            k: it.replace(_STAND_IN, "/") for k, it in names.items()
        }
        return match, found

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Make the function that answers a request."""
        answer = super().get_route_handler()
        known = self.query_parameters.union(*map(_names, self.dependant.query_params))

        async def answer_or_refuse(request: Request) -> Response:
            try:
                _check_query(request, known)
                if request.method in {"GET", "HEAD"}:
                    return await answer(request)
                _check_origin(request)
                _check_content_type(request)
                return await answer(_with_limited_body(request))
            except problems.REFUSED as error:
                return problems.refusal_of(error)

        return answer_or_refuse


def _names(parameter: Any) -> set[str]:
    """Name the query parameters that a function's parameter takes: those of a model."""
    model = parameter.field_info.annotation
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {info.alias or name for name, info in model.model_fields.items()}
    return {parameter.alias}


def _check_query(request: Request, known: Collection[str]) -> None:
    """Refuse parameters that nobody reads: they may be misspelt.

    Raises:
        RequestValidationError: one is unknown, or there twice.
    """
    names = [name for name, _ in request.query_params.multi_items()]
    mistakes = [
        {"loc": ("query", name), "msg": why, "type": kind}
        for name in dict.fromkeys(names)
        for is_so, why, kind in (
            (name not in known, "Unknown parameter", "unknown_parameter"),
            (
                name != "label" and names.count(name) > 1,
                "Give this parameter once",
                "doubled_parameter",
            ),
        )
        if is_so
    ]
    if mistakes:
        raise RequestValidationError(mistakes)


def _check_origin(request: Request) -> None:
    """Refuse what another site may have a browser send with its user's cookies.

    A page of this server says so in ``Origin``. A form can set no header, and a script
    of another site none but those that the server allows it.

    Raises:
        HTTPException: neither is so.
    """
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:
        origin = ""
    is_own = bool(origin) and origin == request.headers.get("host")
    if not is_own and "x-requested-with" not in request.headers:
        message = (
            "Writing needs an Origin of this server, as its own pages send it, or the"
            " header X-Requested-With, with any value."
        )
        raise HTTPException(403, message)


def _check_content_type(request: Request) -> None:
    """Refuse a body that does not say that it is JSON.

    Raises:
        HTTPException: it says something else, or nothing.
    """
    has_body = request.headers.get("content-length", "0") != "0"
    if has_body or "transfer-encoding" in request.headers:
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind.lower() != "application/json":
            raise HTTPException(415, "Send JSON, as application/json.")


def _with_limited_body(request: Request) -> Request:
    """Return a request whose body cannot be read beyond its limit."""
    length = 0

    async def receive() -> Message:
        nonlocal length
        message = await request.receive()
        length += len(message.get("body", b""))
        if length > _MAX_BODY:
            raise HTTPException(413, f"Send {_MAX_BODY:,} bytes at most.")
        return message

    return Request(request.scope, receive)


def sessions_router(
    service: MongoSessionService,
    *,
    authorize: Authorize,
    runner: Runner | None = None,
    query_parameters: Iterable[str] = (),
) -> APIRouter:
    """Serves sessions as resources, in any FastAPI application, ADK's own too.

    ::

        app.include_router(sessions_router(service, authorize=may))

    Below ``/apps/{app_name}/users/{user_id}``, and in the application's ``/docs``:

    - ``GET /sessions``: a page of the user's sessions.
    - ``GET /sessions/{session_id}``: a session, as ADK's own server answers it.
    - ``GET /sessions/{session_id}/events``: a page of its events.
    - ``PATCH`` and ``DELETE /sessions/{session_id}``, and
      ``POST /sessions/{session_id}/fork``.
    - ``GET /sessions/{session_id}/changes``: server-sent events of the session.
    - ``GET /changes``: of all of the user's sessions, without events and state; with
      the query parameter ``session_id`` also the whole content of that one, so that a
      browser's tab needs one connection.
    - ``DELETE /sessions/{session_id}/turn``: stops what runs in any process.
    - ``POST /sessions/{session_id}/turns``, with a ``runner``: runs its agent in a turn
      that goes on without the request, and answers by 202 and the turn's epoch. The
      session's stream has what it says, with ``partials=true``.

    Before anything is read, and again at each heartbeat of a stream, ``authorize`` is
    asked. What is sent is the public view, as ADK's own server sends it: see
    :attr:`Change.json_text`. Requests are refused with problem details (RFC 9457):
    403, whatever exists, if ``authorize`` says no; 404; 413; 415; 422 for invalid and
    unknown parameters; 503 with ``Retry-After`` while MongoDB is away. Writes need an
    ``Origin`` of the same host, or the header ``X-Requested-With``, which no form can
    send.

    Args:
        service: The ``MongoSessionService``.
        authorize: Decides whether a request is allowed: see :class:`Authorize`. It may
            be ``async``; a plain function is called in a thread. It may raise
            ``HTTPException``; if it raises anything else, the answer is 500, and after
            10 seconds without an answer 503. There is no default:
            :func:`allow_everyone` lets everybody in.
        runner: An ADK ``Runner`` of the app whose sessions may be asked something. Its
            turns end with the process, or by ``service.close(grace=)``.
        query_parameters: Names of query parameters that ``authorize`` reads. Others
            that the routes do not know are refused.

    Raises:
        ConfigurationError: ``authorize`` cannot be called.
    """
    limits = backend_of(service).limits
    permission = Permission(authorize, limits.http_authorize_seconds)
    return SessionResources(service, permission, runner).router(query_parameters)


class SessionResources:
    """The answers of the session routes."""

    def __init__(
        self,
        service: MongoSessionService,
        permission: Permission,
        runner: Runner | None = None,
    ) -> None:
        self.service = service
        self.permission = permission
        self.runner = runner
        self.limits = backend_of(service).limits
        self.budget = ReadingBudget(
            self.limits.http_held_bytes, self.limits.http_reading_bytes
        )

    def router(self, query_parameters: Iterable[str]) -> APIRouter:
        """Make the routes; see :func:`sessions_router`."""
        names = {"query_parameters": frozenset(query_parameters)}
        router = APIRouter(
            route_class=type("SessionRoute", (SessionRoute,), names),
            responses=_REFUSALS,
            tags=["sessions"],
        )
        for method, path, endpoint, model, more in (
            ("GET", f"{_USER}/sessions", self.list_sessions, shapes.SessionList, {}),
            ("GET", _SESSION, self.get_session, Session, {}),
            ("PATCH", _SESSION, self.update_session, shapes.SessionRow, {}),
            ("DELETE", _SESSION, self.delete_session, None, {}),
            ("GET", f"{_SESSION}/events", self.list_events, shapes.EventList, {}),
            (
                "POST",
                f"{_SESSION}/fork",
                self.fork_session,
                shapes.SessionRow,
                _CREATED,
            ),
            ("DELETE", f"{_SESSION}/turn", self.stop_turn, None, _ACCEPTED),
            ("GET", f"{_SESSION}/changes", self.stream_session, *_STREAM),
            ("GET", f"{_USER}/changes", self.stream_user, *_STREAM),
        ):
            router.add_api_route(
                path, endpoint, methods=[method], response_model=model, **more
            )
        if self.runner is not None:
            router.add_api_route(
                f"{_SESSION}/turns",
                self.start_turn,
                methods=["POST"],
                response_model=shapes.TurnBegun,
                **_ACCEPTED,
            )
        return router

    async def list_sessions(
        self,
        request: Request,
        scope: OfUser,
        query: Annotated[shapes.SessionQuery, Query()],
    ) -> Response:
        """Lists a user's sessions, a page at a time; the latest first."""
        await self.permission.require(request, scope, "list")
        async with self.answering():
            order = query.order_by or "create_time"
            rows, token = await self.find_rows(scope, query, order)
        return json_response({"sessions": rows, "next_page_token": token})

    async def get_session(
        self,
        request: Request,
        key: Key,
        query: Annotated[shapes.SessionRead, Query()],
    ) -> Response:
        """Shows a session as ADK's own server does."""
        await self.permission.require(request, key, "read")
        recent, at_revision = query.num_recent_events, query.at_revision
        if at_revision is not None and query.after_timestamp is not None:
            raise InvalidInputError("Give at_revision or afterTimestamp, not both.")
        async with self.answering():
            if at_revision is None:
                config = GetSessionConfig(
                    num_recent_events=recent, after_timestamp=query.after_timestamp
                )
                session = await self.service.get_session(**key.id, config=config)
            else:
                session = await self.service.get_session_at(
                    **key.id, revision=at_revision
                )
                if session is not None and recent is not None:
                    del session.events[: max(len(session.events) - recent, 0)]
        if session is None:
            raise session_not_found_error(key.session_id)
        return text_response(await session_text(session))

    async def list_events(
        self,
        request: Request,
        key: Key,
        query: Annotated[shapes.EventQuery, Query()],
    ) -> Response:
        """Lists a session's events, a page at a time."""
        await self.permission.require(request, key, "read")
        shown: list[str] = []
        size, has_more, pace = 0, False, Pace()
        async with self.answering(), AsyncExitStack() as reading:
            held = await self.budget.reserve_page()
            reading.callback(held.release)
            found = self.service.iter_events(
                **key.id,
                after_revision=query.after_revision,
                before_revision=query.before_revision,
                newest_first=query.newest_first,
                limit=query.limit + 1,
            )
            async with aclosing(found):
                async for revision, event in found:
                    if len(shown) == query.limit or size > self.limits.http_page_bytes:
                        has_more = True
                        break
                    # One by one: the public view knows events by their names.
                    fields = {"revision": revision, "event": event}
                    shown.append(public_view.json_text(fields))
                    size += len(shown[-1])
                    await pace.keep()
            more = str(has_more).lower()
            text = f'{{"events":[{",".join(shown)}],"has_more":{more}}}'
            reading.pop_all()
        return HeldText(text, held, self.limits.http_unread_seconds)

    async def update_session(
        self,
        request: Request,
        key: Key,
        update: shapes.SessionUpdate,
    ) -> Response:
        """Changes a session's title and labels; what is left out stays as it is."""
        await self.permission.require(request, key, "update")
        fields = update.model_dump(exclude_unset=True)
        found = await self.service.update_session(**key.id, **fields)
        return json_response(row_of(found))

    async def fork_session(
        self,
        request: Request,
        key: Key,
        fork: shapes.ForkRequest | None = None,
    ) -> Response:
        """Creates a session of the same user with the events up to a revision."""
        await self.permission.require(request, key, "fork")
        revision = None if fork is None else fork.at_revision
        forked = await self.service.fork_session(**key.id, at_revision=revision)
        scope = Scope(key.app_name, key.user_id)
        rows = await self.find_by_id(scope, forked.id)
        if not rows:
            raise session_not_found_error(forked.id)
        return json_response(rows[0], 201)

    async def delete_session(
        self,
        request: Request,
        key: Key,
    ) -> Response:
        """Deletes a session, if it is stored."""
        await self.permission.require(request, key, "delete")
        await self.service.delete_session(**key.id)
        return text_response("null")

    async def start_turn(
        self,
        request: Request,
        key: Key,
        asked: shapes.TurnRequest,
    ) -> Response:
        """Runs the agent in a turn of a session, which goes on without this request."""
        await self.permission.require(request, key, "run")
        if self.runner is None or key.app_name != self.runner.app_name:
            raise session_not_found_error(key.session_id)
        mode = StreamingMode.SSE if asked.streaming else StreamingMode.NONE
        names = ("new_message", "state_delta", "invocation_id")
        given: dict[str, Any] = {name: getattr(asked, name) for name in names}
        running = await self.service.start_turn(
            self.runner,
            user_id=key.user_id,
            session_id=key.session_id,
            wait=_INTERRUPT_SECONDS if asked.interrupt else 0,
            interrupt=asked.interrupt,
            run_config=RunConfig(streaming_mode=mode),
            **{name: it for name, it in given.items() if it is not None},
        )
        return json_response({"epoch": running.epoch}, 202)

    async def stop_turn(
        self,
        request: Request,
        key: Key,
        stop: shapes.TurnStop | None = None,
    ) -> Response:
        """Stops the turn of a session, in whichever process it runs."""
        await self.permission.require(request, key, "stop")
        reason = None if stop is None else stop.reason
        if not await self.service.stop_turn(**key.id, reason=reason):
            raise HTTPException(404, "No turn of this session is running.")
        return text_response("null", 202)

    async def stream_session(
        self,
        request: Request,
        key: Key,
        query: Annotated[shapes.StreamStart, Query()],
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Streams a session's changes, as server-sent events.

        ``id`` begins with the session's revision; a client that reconnects sends it as
        ``Last-Event-ID``. The stream ends by ``deleted``, or by ``trouble``, whose data
        is a ``reason``.
        """

        async def permit() -> None:
            await self.permission.require(request, key, "read")

        start = Start.of_request(query, last_event_id)
        await permit()
        async with self.answering():
            actions = await self.permission.allowed_actions(request, key)
            content = await open_content(self.service, key, start, self.budget)
        return self.stream_of(content, permit=permit, actions=actions)

    async def stream_user(
        self,
        request: Request,
        scope: OfUser,
        query: Annotated[shapes.UserStreamStart, Query()],
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Streams what happens to a user's sessions from now on, as server-sent events.

        Without events, state and what turns say. ``session_id`` adds the whole content
        of one session, and ``id``s that resume it.
        """
        start = Start.of_request(query, last_event_id)
        key = None
        if query.session_id is not None:
            key = session_key(*scope[:2], query.session_id)  # type: ignore[arg-type]  # the path has both
        elif start != Start(with_partials=query.partials):
            message = "after_revision and history need a session_id."
            raise InvalidInputError(message)

        async def permit() -> None:
            await self.permission.require(request, scope, "list")
            if key is not None:
                await self.permission.require(request, key, "read")

        async def is_shown(change: Change) -> bool:
            return change.session_key != key and (
                query.include_eval or not is_of_evaluation(change.session_id)
            )

        await permit()
        actions = None
        async with self.answering(), AsyncExitStack() as opening:
            sources: list[Source] = [
                await self.open_outlines(scope, is_shown, opening, query.partials)
            ]
            if key is not None:
                actions = await self.permission.allowed_actions(request, key)
                try:
                    sources.append(
                        await open_content(self.service, key, start, self.budget)
                    )
                except SessionNotFoundError:
                    if not start.is_reconnect:
                        raise
                    sources.append(DeletedContent(key))
            opening.pop_all()
        return self.stream_of(*sources, permit=permit, actions=actions)

    async def open_outlines(
        self,
        scope: Scope,
        is_shown: Callable[[Change], Awaitable[bool]],
        opening: AsyncExitStack,
        partials: bool,  # noqa: FBT001
    ) -> Outlines:
        """Subscribe to the sessions of a scope."""
        size = self.limits.http_unread_bytes
        watching = self.service.watch(*scope, max_bytes=size, partials=partials)
        return Outlines(await opening.enter_async_context(watching), is_shown)

    def stream_of(
        self,
        *sources: Source,
        permit: Callable[[], Awaitable[None]],
        actions: list[Action] | None,
    ) -> ChangeStream:
        """Make a stream; its headers name the actions that its reader may do."""
        headers = {} if actions is None else {"Permitted-Actions": ", ".join(actions)}
        return ChangeStream(
            *sources,
            permit=permit,
            limits=self.limits,
            headers=headers,
        )

    async def find_rows(
        self, scope: Scope, query: shapes.SessionQuery, order_by: Any
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Find a page of an app's or a user's sessions, and the token of the next."""
        if query.session_id is not None:
            return await self.find_by_id(scope, query.session_id.strip()), None
        rows: list[dict[str, Any]] = []
        token = query.page_token
        for _ in range(_MOST_LOOKS):
            page = await self.service.find_sessions(
                app_name=scope.app_name or "",  # which is refused
                user_id=scope.user_id,
                title=query.title,
                labels=query.labels or None,
                waiting=True if query.waiting else None,
                order_by=order_by,
                with_state=False,
                limit=query.limit - len(rows),
                page_token=token,
            )
            rows += [
                row_of(each)
                for each in page.sessions
                if query.include_eval or not is_of_evaluation(each.id)
            ]
            token = page.next_page_token
            if token is None or len(rows) == query.limit:
                break
        return rows, token

    async def find_by_id(self, scope: Scope, session_id: str) -> list[dict[str, Any]]:
        """Find the sessions of a scope that have an id."""
        app_name = check_id("app_name", scope.app_name)
        check_id("session_id", session_id)
        async with backend_of(self.service).call() as opened:
            at = opened.connection
            found = await directory.with_id(at, app_name, scope.user_id, session_id)
        return [row_of(each) for each in found]

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Give a read as long as a client should wait for it.

        Raises:
            StorageUnavailableError: it took longer.
        """
        try:
            async with asyncio.timeout(self.limits.http_answer_seconds) as timer:
                yield
        except TimeoutError:
            if timer.expired():
                raise StorageUnavailableError from None
            raise


def is_of_evaluation(session_id: str | None) -> bool:
    """Tell whether an id is one that ADK's evaluations give."""
    return session_id is not None and session_id.startswith(EVAL_PREFIXES)


def row_of(summary: SessionSummary) -> dict[str, Any]:
    """Describe a session as lists show it."""
    rest = summary.model_dump(exclude={"state", "id", "app_name", "user_id"})
    names = {"app_name": summary.app_name, "user_id": summary.user_id}
    return {**names, "session_id": summary.id, **rest}


def json_response(fields: Mapping[str, object], status: int = 200) -> Response:
    """Answer with the public view of some fields."""
    return text_response(public_view.json_text(fields), status)


def text_response(text: str, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(text, status, problems.NO_STORE, "application/json")


async def session_text(session: Session) -> str:
    """Write a session as ADK's own server does, and let others work meanwhile."""
    pace, events = Pace(), []
    for each in session.events:
        text = public_view.json_text({"event": each})
        events.append(text.removeprefix('{"event":').removesuffix("}"))
        await pace.keep()
    bare = public_view.public_view(
        {"session": session.model_copy(update={"events": []})}
    )
    rest = public_view.json_text(bare["session"] | {"events": None})
    head, _, tail = rest.rpartition('"events":null')
    return f'{head}"events":[{",".join(events)}]{tail}'
