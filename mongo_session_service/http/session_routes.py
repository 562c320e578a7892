"""Session routes: sessions as resources of any FastAPI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Annotated, Any, Final, TypeAlias, cast
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Query
from google.adk.agents.run_config import (  # type: ignore[attr-defined]
    RunConfig,
    StreamingMode,
)
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as platform_time
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope
from typing_extensions import override

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import public_view
from mongo_session_service.errors import (
    InvalidInputError,
    StorageUnavailableError,
    TrimmedError,
    session_not_found_error,
)
from mongo_session_service.feed.subscription import SessionSubscription
from mongo_session_service.http import problems, shapes
from mongo_session_service.http.change_stream import (
    PIECE,
    ChangeStream,
    Frame,
    Frames,
    StreamPlace,
    earlier_events,
    outlines,
    session_frames,
)
from mongo_session_service.http.permission import Action, Authorize, Permission
from mongo_session_service.http.request_checks import SessionRoute
from mongo_session_service.http.shapes import AppName, SessionChange, SessionId, UserId
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import check_id
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import search
from mongo_session_service.storage.cooperative import Pace

logger = logging.getLogger(__name__)

_EVAL_PREFIXES: Final = ("adk-eval-session-", "___eval___session___")
"""What the ids of sessions begin with that ADK's evaluations make."""


async def _key(app_name: AppName, user_id: UserId, session_id: SessionId) -> SessionKey:
    return session_key(app_name, user_id, session_id)


async def _scope(app_name: AppName, user_id: UserId) -> Scope:
    return Scope(check_id("app_name", app_name), check_id("user_id", user_id))


Key: TypeAlias = Annotated[SessionKey, Depends(_key)]
OfUser: TypeAlias = Annotated[Scope, Depends(_scope)]

_INTERRUPT_SECONDS: Final = 10.0
"""Seconds that a turn which is interrupted has to end."""

_MOST_LOOKS: Final = 10
"""Queries for one page of sessions, if evaluations made most of them."""

_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": description,
        "content": {
            "application/problem+json": {
                "schema": shapes.ProblemDetails.model_json_schema()
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

_ONE: Final = "/sessions/{session_id}"


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
    unknown parameters; 503 with ``Retry-After`` while MongoDB is away, or a user's
    clients have not read other answers. Writes need an
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
    return SessionResources(service, authorize, runner).router(query_parameters)


class SessionResources:
    """The answers of the session routes."""

    def __init__(
        self,
        service: MongoSessionService,
        authorize: Authorize,
        runner: Runner | None = None,
        within: Scope = Scope(),  # noqa: B008  it cannot be changed
    ) -> None:
        self.service = service
        self.runner = runner
        self.within = within
        self.limits = backends_of(service).limits
        seconds = self.limits.http_authorize_seconds
        self.permission = Permission(authorize, seconds, within)
        self._shares: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = (
            WeakValueDictionary()
        )

    def router(self, query_parameters: Iterable[str]) -> APIRouter:
        """Make the routes; see :func:`sessions_router`."""
        names = {"query_parameters": frozenset(query_parameters)}
        router = APIRouter(
            route_class=type("NamedSessionRoute", (SessionRoute,), names),
            responses=_REFUSALS,
            tags=["sessions"],
        )

        routes: list[tuple[Action | None, str, str, Any, Any, int]] = [
            ("list", "GET", "/sessions", self.list_sessions, shapes.SessionList, 200),
            ("read", "GET", _ONE, self.get_session, Session, 200),
            ("update", "PATCH", _ONE, self.update_session, shapes.SessionRow, 200),
            ("delete", "DELETE", _ONE, self.delete_session, None, 200),
            ("read", "GET", f"{_ONE}/events", self.list_events, shapes.EventList, 200),
            ("fork", "POST", f"{_ONE}/fork", self.fork_session, shapes.SessionRow, 201),
            ("run", "POST", f"{_ONE}/turns", self.start_turn, shapes.TurnBegun, 202),
            ("stop", "DELETE", f"{_ONE}/turn", self.stop_turn, None, 202),
            ("read", "GET", f"{_ONE}/changes", self.stream_session, SessionChange, 200),
            # It asks by itself, also about the session whose content is wanted.
            (None, "GET", "/changes", self.stream_user, SessionChange, 200),
        ]
        for action, method, path, endpoint, model, status in routes:
            if action == "run" and self.runner is None:
                continue
            router.add_api_route(
                f"/apps/{{app_name}}/users/{{user_id}}{path}",
                endpoint,
                methods=[method],
                response_model=model,
                response_class=ChangeStream if model is SessionChange else JSONResponse,
                status_code=status,
                dependencies=[self._permission_check(action)] if action else [],
            )
        return router

    def _permission_check(self, action: Action) -> Any:
        """Make the dependency of a route that asks for the permission to it."""

        async def ask_of_user(request: Request, scope: OfUser) -> None:
            await self.permission.require(request, scope, action)

        async def ask_of_session(request: Request, key: Key) -> None:
            await self.permission.require(request, key, action)

        return Depends(ask_of_user if action == "list" else ask_of_session)

    async def list_sessions(
        self, scope: OfUser, query: Annotated[shapes.SessionQuery, Query()]
    ) -> Response:
        """Lists a user's sessions, a page at a time; the latest first."""
        async with self.answer_in_time():
            rows, token = await self.find_rows(scope, query)
        return json_response({"sessions": rows, "next_page_token": token})

    async def get_session(
        self, key: Key, query: Annotated[shapes.SessionRead, Query()]
    ) -> Response:
        """Shows a session as ADK's own server does."""
        recent, at_revision = query.num_recent_events, query.at_revision
        if at_revision is not None and query.after_timestamp is not None:
            raise InvalidInputError("Give at_revision or afterTimestamp, not both.")
        async with self.read_in_time(key) as held:
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
            text = await session_json(session)
            return HeldText(text, held.pop_all(), self.limits)

    async def list_events(
        self, key: Key, query: Annotated[shapes.EventQuery, Query()]
    ) -> Response:
        """Lists a session's events, a page at a time."""
        shown: list[bytes] = []
        size, has_more, pace = 0, False, Pace()
        async with self.read_in_time(key) as held:
            found = self.service.iter_events(
                **key.id, **query.model_dump() | {"limit": query.limit + 1}
            )
            async with aclosing(found):
                async for revision, event in found:
                    if len(shown) == query.limit or size > self.limits.http_page_bytes:
                        has_more = True
                        break
                    # One by one: the public view knows events by their names.
                    fields = {"revision": revision, "event": event}
                    shown.append(public_view.json_text(fields).encode())
                    size += len(shown[-1])
                    await pace.yield_to_loop()
            text = text_with_events({"has_more": has_more}, shown)
            return HeldText(text, held.pop_all(), self.limits)

    async def update_session(self, key: Key, update: shapes.SessionUpdate) -> Response:
        """Changes a session's title and labels; what is left out stays as it is."""
        fields = update.model_dump(exclude_unset=True)
        found = await self.service.update_session(**key.id, **fields)
        return json_response(session_row(found))

    async def fork_session(
        self, key: Key, fork: shapes.ForkRequest | None = None
    ) -> Response:
        """Creates a session of the same user with the events up to a revision."""
        revision = None if fork is None else fork.at_revision
        forked = await self.service.fork_session(**key.id, at_revision=revision)
        rows = await self.find_by_id(key.app_name, key.user_id, forked.id)
        if not rows:
            raise session_not_found_error(forked.id)
        return json_response(rows[0], 201)

    async def delete_session(self, key: Key) -> Response:
        """Deletes a session, if it is stored."""
        await self.service.delete_session(**key.id)
        return json_response(None)

    async def start_turn(self, key: Key, asked: shapes.TurnRequest) -> Response:
        """Runs the agent in a turn of a session, which goes on without this request."""
        if self.runner is None or key.app_name != self.runner.app_name:
            raise session_not_found_error(key.session_id)
        asks = asked.new_message is not None and asked.new_message.parts
        if not (asks or asked.invocation_id):  # ADK would call the model all the same
            why = "Give a newMessage with parts, or an invocationId."
            raise HTTPException(422, why)
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
        self, key: Key, stop: shapes.TurnStop | None = None
    ) -> Response:
        """Stops the turn of a session, in whichever process it runs."""
        reason = None if stop is None else stop.reason
        if not await self.service.stop_turn(**key.id, reason=reason):
            raise HTTPException(404, "No turn of this session is running.")
        return json_response(None, 202)

    async def stream_session(
        self,
        request: Request,
        key: Key,
        query: Annotated[shapes.StreamStart, Query()],
        last_event_id: shapes.LastEventId = None,
    ) -> Response:
        """Streams a session's changes, as server-sent events.

        ``id`` begins with the session's revision; a client that reconnects sends it as
        ``Last-Event-ID``. The stream ends by ``deleted``, or by ``trouble``, whose data
        is a ``reason``.
        """
        place = StreamPlace.of_id(last_event_id)
        permit = partial(self.permission.require, request, key, "read")
        async with self.answer_in_time(), AsyncExitStack() as opening:
            actions = await self.permission.allowed_actions(request, key)
            content = await self.open_content(key, query, place, opening)
            return ChangeStream(
                content, opening.pop_all(), permit, self.limits, actions
            )

    async def stream_user(
        self,
        request: Request,
        scope: OfUser,
        query: Annotated[shapes.UserStreamStart, Query()],
        last_event_id: shapes.LastEventId = None,
    ) -> Response:
        """Streams what happens to a user's sessions from now on, as server-sent events.

        Without events, state and what turns say. ``session_id`` adds the whole content
        of one session, and ``id``s that resume it.
        """
        place = StreamPlace.of_id(last_event_id)
        key = None
        if query.session_id is not None:
            key = session_key(*scope[:2], query.session_id)  # type: ignore[arg-type]  # the path has both
        elif place or query.has_beginning:
            message = "after_revision and history need a session_id."
            raise InvalidInputError(message)

        async def permit() -> None:
            await self.permission.require(request, scope, "list")
            if key is not None:
                await self.permission.require(request, key, "read")

        async def is_other(shown: SessionKey) -> bool:
            return shown != key

        await permit()
        actions: list[Action] = []
        content: list[Frames] = []
        gone = None
        async with self.answer_in_time(), AsyncExitStack() as opening:
            if key is not None:
                actions = await self.permission.allowed_actions(request, key)
                try:
                    content = await self.open_content(key, query, place, opening)
                except SessionNotFoundError:
                    if place is None:
                        raise
                    await opening.aclose()
                    gone = Change(
                        kind="deleted", **key.id, time=platform_time.get_time()
                    )
            others = await self.open_outlines(scope, query, is_other, opening, gone)
            return ChangeStream(
                [others, *content], opening.pop_all(), permit, self.limits, actions
            )

    async def open_content(
        self,
        key: SessionKey,
        start: shapes.StreamStart,
        place: StreamPlace | None,
        opening: AsyncExitStack,
    ) -> list[Frames]:
        """Open the stream of a session, and read what it begins with.

        A client that comes back goes on after its place; if the session has not come to
        it, it begins anew.
        """
        if start.history is not None and start.after_revision is not None:
            raise InvalidInputError("Give history or after_revision, not both.")
        after = start.after_revision if place is None else place.revision
        before = start.before_revision
        log_begins = 0
        held = await opening.enter_async_context(AsyncExitStack())
        share = await self.hold_share(key, held)
        while True:
            from_start = start.history == "all" and after is None
            partial_place = place.partial if place and start.partials else None
            subscription = self.service.watch(
                *key,
                after_revision=log_begins if from_start else after,
                max_bytes=self.limits.http_unread_bytes,
                partials=start.partials,
                after_partial=partial_place,
            )
            try:
                await opening.enter_async_context(subscription)
                break
            except InvalidInputError as error:
                if from_start and isinstance(error, TrimmedError):
                    log_begins = error.log_begins
                elif place is not None:
                    place = after = None
                else:
                    raise
        first = None
        if from_start:
            # After the subscription: if the session is recreated in between, the
            # subscription delivers ``deleted``.
            async with self.service.watch(*key) as changes:
                snapshot = await anext(changes)
            # Without an id: a client could not resume from it.
            first = Frame(snapshot.kind, snapshot.json_text)
        elif start.history == "newest_first" and after is None:
            snapshot = await anext(subscription)
            before = (snapshot.revision or 0) + 1
            first = Frame(snapshot.kind, snapshot.json_text, str(snapshot.revision))
        subscription = cast("SessionSubscription", subscription)
        content = session_frames(subscription, share, held, first, partial_place)
        if start.history != "newest_first" or before is None:
            return [content]
        return [content, earlier_events(subscription.earlier(before), share)]

    async def open_outlines(
        self,
        scope: Scope,
        query: shapes.OutlineQuery,
        may_show: Callable[[SessionKey], Awaitable[bool]],
        opening: AsyncExitStack,
        first: Change | None = None,
    ) -> Frames:
        """Subscribe to those sessions of a scope that may be shown."""

        async def is_shown(change: Change) -> bool:
            key = change.session_key
            return (
                key is not None
                and (query.include_eval or not _is_of_evaluation(key.session_id))
                and await may_show(key)
            )

        size = self.limits.http_unread_bytes
        watching = self.service.watch(*scope, max_bytes=size, partials=query.partials)
        subscription = await opening.enter_async_context(watching)
        return outlines(subscription, is_shown, first)

    async def find_rows(
        self, scope: Scope, query: shapes.SessionQuery
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Find a page of an app's or a user's sessions, and the token of the next."""
        app_name, user_id, _ = scope
        app_name = check_id("app_name", app_name)
        if query.session_id is not None:
            session_id = check_id("session_id", query.session_id.strip())
            return await self.find_by_id(app_name, user_id, session_id), None
        rows: list[dict[str, Any]] = []
        token = query.page_token
        for _ in range(_MOST_LOOKS):
            page = await self.service.find_sessions(
                app_name=app_name,
                user_id=user_id,
                title=query.title,
                labels=query.labels or None,
                waiting=True if query.waiting else None,
                order_by=query.order_by or "create_time",
                with_state=False,
                limit=query.limit - len(rows),
                page_token=token,
            )
            rows += [
                session_row(each)
                for each in page.sessions
                if query.include_eval or not _is_of_evaluation(each.id)
            ]
            token = page.next_page_token
            if token is None or len(rows) == query.limit:
                break
        return rows, token

    async def find_by_id(
        self, app_name: str, user_id: str | None, session_id: str
    ) -> list[dict[str, Any]]:
        """Find the sessions of an app, or of a user of it, that have an id."""
        async with backends_of(self.service).in_call() as opened:
            at = opened.connection
            found = await search.find_by_id(at, app_name, user_id, session_id)
        return [session_row(each) for each in found]

    async def hold_share(
        self, key: SessionKey, held: AsyncExitStack
    ) -> asyncio.Semaphore:
        """Wait until more may be read of a user's sessions, or refuse the request."""
        share = self._shares.setdefault(
            key[:2], asyncio.Semaphore(self.limits.http_user_pages)
        )
        try:
            async with asyncio.timeout(self.limits.http_answer_seconds):
                await held.enter_async_context(share)
        except TimeoutError:
            why = "Other answers about this user's sessions have not been read yet."
            raise HTTPException(503, why, problems.LATER) from None
        return share

    @asynccontextmanager
    async def read_in_time(self, key: SessionKey) -> AsyncIterator[AsyncExitStack]:
        """Give a read its time, and a share of the user's that is held until then."""
        async with AsyncExitStack() as held:
            await self.hold_share(key, held)
            async with self.answer_in_time():
                yield held

    @asynccontextmanager
    async def answer_in_time(self) -> AsyncIterator[None]:
        """Give a read as long as a client should wait for it."""
        try:
            async with asyncio.timeout(self.limits.http_answer_seconds) as timer:
                yield
        except TimeoutError:
            if timer.expired():
                raise StorageUnavailableError from None
            raise


def _is_of_evaluation(session_id: str) -> bool:
    return session_id.startswith(_EVAL_PREFIXES)


def session_row(summary: SessionSummary) -> dict[str, Any]:
    """Describe a session as lists show it."""
    rest = summary.model_dump(exclude={"state", "id", "app_name", "user_id"})
    names = {"app_name": summary.app_name, "user_id": summary.user_id}
    return {**names, "session_id": summary.id, **rest}


def json_response(fields: Mapping[str, object] | None, status: int = 200) -> Response:
    """Answer with the public view of some fields, or with null."""
    text = "null" if fields is None else public_view.json_text(fields)
    return Response(text, status, problems.NO_STORE, "application/json")


class HeldText(Response):
    """An answer that is held until its client has read it, or reads too slowly."""

    media_type = "application/json"

    def __init__(self, text: bytes, held: AsyncExitStack, limits: Limits) -> None:
        super().__init__(None, headers=problems.NO_STORE)
        self._text = text
        self._held = held
        self._limits = limits

    @override
    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Send it in pieces: a server holds all that it is given."""
        del self.headers["content-length"]
        start = {"type": "http.response.start", "status": self.status_code}
        body: Message = {"type": "http.response.body"}
        patience = spare = self._limits.http_unread_seconds
        try:
            await send({**start, "headers": self.raw_headers})
            for at in range(0, len(self._text), PIECE):
                piece, began = self._text[at : at + PIECE], time.monotonic()
                async with asyncio.timeout(min(patience, spare)):
                    await send({**body, "body": piece, "more_body": True})
                spare -= time.monotonic() - began
                spare += len(piece) / self._limits.http_least_rate
        except TimeoutError:
            logger.info("A client's answer ends. It did not read.")
        finally:
            self._text = b""
            await self._held.aclose()
        await send({**body, "body": b""})


async def session_json(session: Session) -> bytes:
    """Write a session as ADK's own server does, and let others work meanwhile."""
    pace, events = Pace(), []
    for each in session.events:
        text = public_view.json_text({"event": each})
        events.append(text.removeprefix('{"event":').removesuffix("}").encode())
        await pace.yield_to_loop()
    names = {it.alias or name: name for name, it in Session.model_fields.items()}
    del names["events"]
    fields = {alias: getattr(session, name) for alias, name in names.items()}
    return text_with_events(fields, events)


def text_with_events(fields: Mapping[str, object], events: Iterable[bytes]) -> bytes:
    """Write the public view of some fields, and events that are encoded already."""
    begun = public_view.json_text(fields).removesuffix("}").encode()
    return b'%b,"events":[%b]}' % (begun, b",".join(events))
