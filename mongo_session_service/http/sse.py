"""Server-sent events: a session's changes over HTTP, and an app that shows them.

::

    app.router.routes.append(changes_route(service, authorize=may_read))

Each event is one :class:`Change`: ``event`` is its kind, ``data`` its JSON, and ``id``
the session's revision, so that a browser that lost its connection reconnects with
``Last-Event-ID`` and resumes where it was.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from google.adk.errors.session_not_found_error import SessionNotFoundError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mongo_session_service.changes.change import Change
from mongo_session_service.errors import (
    ConfigurationError,
    HistoryLostError,
    InvalidInputError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from mongo_session_service.feed.subscription import Subscription
from mongo_session_service.http import writes
from mongo_session_service.http.live_page import (
    TokenCheck,
    latest_sessions,
    live_page_route,
    server_of,
)
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.service import MongoSessionService

try:
    from sse_starlette.event import ServerSentEvent
    from sse_starlette.sse import EventSourceResponse, SendTimeoutError
except ImportError as error:
    raise ImportError(
        "Changes over HTTP need sse-starlette 3 or later:"
        " pip install 'mongo-session-service[sse]'"
    ) from error

__all__ = ["Authorize", "changes_route", "live_app", "live_page_route"]

logger = logging.getLogger(__name__)

RETRY: Final = 2
"""Seconds after which a client should reconnect."""

_RETRY_LATER: Final = 10
_RETRY_MUCH_LATER: Final = 60

NO_STORE: Final = {"Cache-Control": "no-store"}

REFUSED: Final = (SessionNotFoundError, MongoSessionServiceError, TimeoutError)
"""The errors that :func:`refusal_of` answers."""

_REFUSED: Final = "You may not read this session."
_REFUSED_WRITE: Final = "You may not write to this session."
_UNKNOWN: Final = "There is no such session."
_SEE_LOG: Final = "Sessions cannot be read; see the server's log."

Authorize: TypeAlias = Callable[[Request, SessionKey], Any]
"""Whether a request may read a session: a function that returns or awaits a bool."""

AuthorizeWrite: TypeAlias = Callable[[Request, SessionKey, str], Any]
"""Whether a request may do an action to a session, such as ``"fork"``."""

OPENING_PATIENCE: Final = 10.0
"""Seconds a client waits for MongoDB before it receives 503."""

SEND_PATIENCE: Final = 60.0
"""Seconds a client may not read before it is disconnected."""

_LOCAL_HOSTS: Final = ["127.0.0.1", "localhost"]


def changes_route(
    service: MongoSessionService,
    *,
    authorize: Authorize | None = None,
    authorize_write: AuthorizeWrite | None = None,
    path: str = "/changes",
    heartbeat: float = 15.0,
) -> Route:
    """A route that streams one session's changes, for any Starlette or FastAPI app.

    The query parameters ``app_name``, ``user_id`` and ``session_id`` name the session.
    The stream begins with a ``snapshot``, or

    - after a ``Last-Event-ID`` header: with the events after it; if the session has not
      reached that revision, with a ``snapshot``;
    - with the query parameter ``after_revision``: with the events after it;
    - with ``history=all``: with a ``snapshot`` without an ``id``, then every event from
      the first on. The snapshot's state already includes the deltas up to its revision.

    With ``at_revision`` the answer is no stream but one ``snapshot`` as JSON: the state
    after that event, or 0 for the state at creation. App and user state are as they are
    now.

    With ``authorize_write`` the route also answers ``POST``, and streams say so in
    ``Allow``. The body is JSON: ``action``, ``app_name``, ``user_id``, ``session_id``,
    and what the action needs. The action ``"fork"`` takes ``at_revision`` and answers
    201 with the names of the new session. An ``Origin`` of another host is refused, and
    so is none: then no other site can have a browser write here.

    A stream ends after ``deleted``, and after ``trouble`` with a ``reason``, after
    which a client should reconnect. Errors are JSON with a ``detail``: 400 for invalid
    parameters, 403, 404 for a session that is not stored, and 503 with ``Retry-After``
    while MongoDB is unreachable. What is sent is the public view, as ADK's own server
    sends it: see :attr:`Change.json_text`.

    Args:
        service: The ``MongoSessionService``.
        authorize: Called with the request and the session key before anything is read;
            it returns, or awaits, whether the request is allowed. It may raise
            ``HTTPException``. A plain function is called in a thread. While a stream is
            open it is called again at every heartbeat: if it says no, fails, or does
            not answer within 10 seconds, the stream ends with ``trouble``.
        authorize_write: Called with the request, the session key and the action, after
            ``authorize``; it returns, or awaits, whether the request may write. Without
            it, nothing can be written.
        path: The route's path.
        heartbeat: Seconds between comments that keep an idle connection open, and
            between calls of ``authorize``.

    Raises:
        ConfigurationError: ``authorize`` is missing, or ``heartbeat`` is not positive.
    """
    if authorize is None or not callable(authorize):
        message = (
            "changes_route needs authorize=, a function of the request and the session"
            " key that returns whether the session may be read."
        )
        raise ConfigurationError(message)
    if not heartbeat > 0:
        raise ConfigurationError("heartbeat must be a number of seconds above 0.")

    if authorize_write is not None and not callable(authorize_write):
        message = (
            "authorize_write must be a function of the request, the session key and"
            " the action that returns whether the request may write."
        )
        raise ConfigurationError(message)
    methods = ["GET"] if authorize_write is None else ["GET", "POST"]

    async def changes(request: Request) -> Response:
        try:
            if request.method == "POST":
                return await _write(service, request, authorize, authorize_write)
            key = _key(request)
            start = _Start.of(request)
            if not await _is_allowed(authorize, request, key):
                return refusal(403, _REFUSED)
            if start.at_revision is not None:
                return await _state_at(service, key, start.at_revision)
            subscription, snapshot = await _open(service, key, start)
            still_allowed = partial(_is_still_allowed, authorize, request, key)
            stream = _Stream(subscription, snapshot, heartbeat, still_allowed)
            stream.headers["Allow"] = ", ".join(methods)
            return stream
        except writes.RefusedError as error:
            return refusal(error.status, str(error))
        except REFUSED as error:
            return refusal_of(error)

    return Route(path, changes, methods=methods, name="changes")


def live_app(
    service: MongoSessionService,
    *,
    authorize: Authorize | None = None,
    authorize_write: AuthorizeWrite | None = None,
    token: str | None = None,
) -> Starlette:
    """An app that shows sessions live: the page, their changes, and a list of them.

    It is meant for this machine only, and refuses other host names: otherwise a web
    page elsewhere could point a name of its own here (DNS rebinding) and read along.
    With a ``token``, every request needs it, as the query parameter ``token`` or in the
    ``SameSite`` cookie that an answer to the parameter sets; others get 401.

    Raises:
        ConfigurationError: ``authorize`` is missing; see :func:`changes_route`.
    """
    route = changes_route(service, authorize=authorize, authorize_write=authorize_write)

    async def sessions(request: Request) -> Response:
        try:
            async with asyncio.timeout(OPENING_PATIENCE):
                latest = await latest_sessions(service)
                database = {
                    "name": service.database_name,
                    "server": await server_of(service),
                }
        except REFUSED as error:
            return refusal_of(error)
        allowed = [
            each
            for each in latest
            if await _is_allowed(authorize, request, SessionKey(**each["key"]))
        ]
        shown = {"database": database, "sessions": allowed}
        return JSONResponse(shown, headers=NO_STORE)

    return Starlette(
        routes=[
            live_page_route("/", changes=route.path, sessions="/sessions"),
            route,
            Route("/sessions", sessions, methods=["GET"]),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=_LOCAL_HOSTS),
            *([] if token is None else [Middleware(TokenCheck, token=token)]),
        ],
    )


def refusal_of(error: Exception) -> JSONResponse:
    """The answer to a request that failed."""
    match error:
        case InvalidInputError():
            return refusal(400, str(error))
        case SessionNotFoundError():
            return refusal(404, _UNKNOWN)
        case UnknownOutcomeError():
            return refusal(503, "It is not known whether this was done.")
        case StorageUnavailableError() | TimeoutError():
            later = {"Retry-After": str(_RETRY_LATER)}
            return refusal(503, "MongoDB is unavailable.", **later)
        case _:
            logger.error("A session could not be read or written. %s", error)
            return refusal(500, _SEE_LOG)


def refusal(status: int, detail: str, **headers: str) -> JSONResponse:
    """An error response."""
    return JSONResponse({"detail": detail}, status, {**NO_STORE, **headers})


def trouble(error: MongoSessionServiceError) -> tuple[int, str]:
    """Seconds until the client should reconnect to an ended stream, and the reason."""
    match error:
        case SlowSubscriberError():
            return RETRY, "This client read too slowly."
        case HistoryLostError():
            return RETRY, "Changes were missed and cannot be recovered."
        case StorageUnavailableError():
            return _RETRY_LATER, "MongoDB is unavailable."
        case _:
            return _RETRY_MUCH_LATER, _SEE_LOG


class _Start(NamedTuple):
    """Where a stream begins."""

    after_revision: int | None
    is_reconnect: bool
    with_history: bool
    at_revision: int | None = None
    """The one revision to answer with, instead of a stream."""

    @classmethod
    def of(cls, request: Request) -> _Start:
        """The start that a request asks for.

        Raises:
            InvalidInputError: its parameters are invalid.
        """
        history = request.query_params.get("history")
        after = request.query_params.get("after_revision")
        if history not in {None, "all"}:
            raise InvalidInputError("history must be 'all', or left out.")
        if after is not None and history is not None:
            raise InvalidInputError("Give history or after_revision, not both.")
        if (at := request.query_params.get("at_revision")) is not None:
            return cls._at(at, is_alone=after is None and history is None)
        last = _revision(request.headers.get("last-event-id", ""))
        if last is not None:
            return cls(last, is_reconnect=True, with_history=history is not None)
        if after is not None and (last := _revision(after)) is None:
            raise InvalidInputError("after_revision must be a number of appends.")
        return cls(last, is_reconnect=False, with_history=history is not None)

    @classmethod
    def _at(cls, text: str, *, is_alone: bool) -> _Start:
        at = _revision(text)
        if at is None or not is_alone:
            message = (
                "at_revision must be a number of appends, without history and"
                " after_revision."
            )
            raise InvalidInputError(message)
        return cls(None, is_reconnect=False, with_history=False, at_revision=at)


def _key(request: Request) -> SessionKey:
    asked = [request.query_params.get(name, "") for name in SessionKey._fields]
    return session_key(*asked)


def _revision(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) < len(str(2**63))
    return int(text) if is_number else None


async def _is_allowed(authorize: Any, request: Request, *what: object) -> bool:
    if inspect.iscoroutinefunction(authorize):
        return bool(await authorize(request, *what))
    answer = await run_in_threadpool(authorize, request, *what)
    return bool(await answer if inspect.isawaitable(answer) else answer)


async def _is_still_allowed(authorize: Any, request: Request, key: SessionKey) -> bool:
    # Waited for rather than cancelled, which a plain function's thread cannot be.
    asked = asyncio.ensure_future(_is_allowed(authorize, request, key))
    asked.add_done_callback(lambda it: it.cancelled() or it.exception())
    done, _ = await asyncio.wait({asked}, timeout=OPENING_PATIENCE)
    error = asked.exception() if done else TimeoutError()
    if error is None:
        return asked.result()
    if not isinstance(error, HTTPException):
        why = type(error).__name__
        logger.warning("A client's stream ends: authorize failed (%s).", why)
    return False


async def _open(
    service: MongoSessionService, key: SessionKey, start: _Start
) -> tuple[Subscription, Change | None]:
    """An open subscription, and the snapshot to send before it."""
    try:
        async with asyncio.timeout(OPENING_PATIENCE), AsyncExitStack() as opening:
            with_history = start.with_history and start.after_revision is None
            after = 0 if with_history else start.after_revision
            subscription = await opening.enter_async_context(
                service.watch(*key, after_revision=after)
            )
            # After the subscription: if the session is recreated in between, the
            # subscription delivers ``deleted``.
            snapshot = await _snapshot(service, key) if with_history else None
            opening.pop_all()
            return subscription, snapshot
    except InvalidInputError:
        if start.is_reconnect:
            fresh = start._replace(after_revision=None, is_reconnect=False)
            return await _open(service, key, fresh)
        raise


async def _snapshot(service: MongoSessionService, key: SessionKey) -> Change:
    async with service.watch(*key) as changes:
        return await anext(changes)


async def _state_at(
    service: MongoSessionService, key: SessionKey, revision: int
) -> Response:
    """The state after an event, as the snapshot that it was then."""
    async with asyncio.timeout(OPENING_PATIENCE):
        session = await service.get_session_at(**key.id, revision=revision)
    if session is None:
        return refusal(404, _UNKNOWN)
    snapshot = Change(
        kind="snapshot",
        **key.id,
        revision=revision,
        state=session.state,
        time=session.last_update_time,
    )
    return Response(snapshot.json_text, 200, NO_STORE, "application/json")


async def _write(
    service: MongoSessionService,
    request: Request,
    authorize: Authorize,
    authorize_write: AuthorizeWrite | None,
) -> Response:
    write = await writes.Write.of(request)
    if not (
        await _is_allowed(authorize, request, write.key)
        and await _is_allowed(authorize_write, request, write.key, write.action)
    ):
        return refusal(403, _REFUSED_WRITE)
    return JSONResponse(await write.perform(service), 201, NO_STORE)


class _Stream(EventSourceResponse):
    """A subscription's changes, until it, the client or its permission ends."""

    def __init__(
        self,
        subscription: Subscription,
        snapshot: Change | None,
        heartbeat: float,
        still_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        self._subscription = subscription
        self._snapshot = snapshot
        self._heartbeat = heartbeat
        self._still_allowed = still_allowed
        self._is_refused = False
        comment = f"heartbeat {heartbeat:g}"
        super().__init__(
            self._frames(comment),
            ping=heartbeat,
            ping_message_factory=lambda: ServerSentEvent(comment=comment, sep="\n"),
            send_timeout=SEND_PATIENCE,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = asyncio.create_task(self._keep_asking())
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            logger.info("A client that did not read was disconnected.")
        finally:
            asking.cancel()
            # The generator does not run if the client left before the first frame.
            self._subscription.close()

    async def _keep_asking(self) -> None:
        """End the stream once its client may not read the session any more."""
        while not self._is_refused:
            await asyncio.sleep(self._heartbeat)
            self._is_refused = not await self._still_allowed()
        self._subscription.close()

    async def _frames(self, comment: str) -> AsyncIterator[bytes]:
        yield f": {comment}\nretry: {RETRY * 1000}\n\n".encode()
        try:
            if self._snapshot is not None:
                # With an id, a client that reconnects would miss the rest of history.
                data = self._snapshot.json_text
                yield f"event: snapshot\ndata: {data}\n\n".encode()
            async for change in self._subscription:
                if self._is_refused:
                    break
                id_ = "" if change.revision is None else f"id: {change.revision}\n"
                frame = f"event: {change.kind}\n{id_}data: {change.json_text}\n\n"
                yield frame.encode()
        except MongoSessionServiceError as error:
            logger.info("A client's stream ends. %s", error)
            yield _trouble_frame(*trouble(error))
        if self._is_refused:
            yield _trouble_frame(RETRY, _REFUSED)


def _trouble_frame(seconds: int, reason: str) -> bytes:
    data = json.dumps({"reason": reason})
    return f"retry: {seconds * 1000}\nevent: trouble\ndata: {data}\n\n".encode()
