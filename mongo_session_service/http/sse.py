"""Server-sent events: changes and lists over HTTP, and an app that shows them.

::

    app.router.routes.append(changes_route(service, authorize=may_read))

Each event is one :class:`Change`: ``event`` is its kind, ``data`` its JSON, and ``id``
the session's revision, so that a browser that lost its connection reconnects with
``Last-Event-ID`` and resumes where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import public_view
from mongo_session_service.errors import (
    ConfigurationError,
    HistoryLostError,
    InvalidInputError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageUnavailableError,
    TrimmedError,
)
from mongo_session_service.feed.subscription import Subscription
from mongo_session_service.http import answers, lists, parameters, writes
from mongo_session_service.http.access import (
    Access,
    Authorize,
    AuthorizeUser,
    AuthorizeWrite,
    LocalAccess,
)
from mongo_session_service.http.live_page import live_page_route, server_of
from mongo_session_service.http.permission import Permission
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

__all__ = ["Authorize", "changes_route", "live_page_route"]

logger = logging.getLogger(__name__)

RETRY: Final = 2
"""Seconds after which a client should reconnect."""

_RETRY_MUCH_LATER: Final = 60

_MAY_NOT_READ: Final = "You may not read this session."
_MAY_NOT_READ_ALL: Final = "You may not read these sessions."
_MAY_NOT_WRITE: Final = "You may not write to this session."

_CONTENT: Final = {"event", "state", "state_delta"}

OPENING_PATIENCE: Final = 10.0
"""Seconds a client waits for MongoDB before it receives 503."""

SEND_PATIENCE: Final = 60.0
"""Seconds a client may not read before it is disconnected."""

_FAREWELL: Final = 1.0
"""Seconds for a client to read the end of its stream when the server is shut down."""


def changes_route(
    service: MongoSessionService,
    *,
    authorize: Authorize | None = None,
    authorize_user: AuthorizeUser | None = None,
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

    With ``authorize_user`` the route also serves all sessions of a user. Without
    ``session_id`` the stream has what happens to them from now on, without ``id``; with
    ``content=none`` as well, changes come without events and state. With
    ``list=sessions`` the answer is a page of them as JSON, those created last first:
    ``sessions``, each with its ``key`` and what else a ``SessionSummary`` has but its
    state, and ``next_page_token``, null on the last page. It takes ``title``, ``label``
    as ``name=value`` (repeatable) and ``session_id``, each to be met exactly,
    ``order_by``, as ``find_sessions`` does, ``limit`` up to 200 (50 unless given) and
    ``page_token``.

    With ``list=events`` and a session the answer is a page of its events as JSON:
    ``events``, each with its ``revision`` and ``event``, and ``has_more``. It takes
    ``limit`` up to 200 (50 unless given), ``after_revision``, ``before_revision`` and
    ``newest_first=true``. The next page follows the last revision.

    With ``authorize_write`` the route also answers ``POST``, and streams say so in
    ``Allow``; a session's stream names in ``Permitted-Actions`` what its reader may do.
    The body is JSON: ``action``, ``app_name``, ``user_id``, ``session_id``,
    and what the action needs. ``"fork"`` takes ``at_revision`` and answers 201 with the
    names of the new session; ``"update"`` takes ``title`` and ``labels``, each null for
    none, leaves what is not given as it is, and answers with the session as in a list;
    ``"delete"`` answers with the session's names, also if it is not stored. A
    request without an ``Origin``, or with that of another host, is refused: then no
    other site can have a browser write here.

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
        authorize_user: Called in the same way with the request, the app and the user:
            whether the request may read all sessions of the user. Without it, sessions
            cannot be listed, and each has to be asked for by its id.
        authorize_write: Called with the request, the session key and the action, after
            ``authorize``; it returns, or awaits, whether the request may write. When a
            session's stream opens, it is called for each action, to name those that are
            permitted. Without it, nothing can be written.
        path: The route's path.
        heartbeat: Seconds between comments that keep an idle connection open, and
            between calls of ``authorize``.

    Raises:
        ConfigurationError: ``authorize`` is missing, one of them is not a function, or
            ``heartbeat`` is not positive.
    """
    access = Access(authorize, authorize_user, authorize_write)  # type: ignore[arg-type]  # refused if it is None
    return _changes_route(service, access, path, heartbeat)


def _changes_route(
    service: MongoSessionService, access: Access, path: str, heartbeat: float
) -> Route:
    if not heartbeat > 0:
        raise ConfigurationError("heartbeat must be a number of seconds above 0.")

    async def changes(request: Request) -> Response:
        try:
            if request.method == "POST":
                return await _write(service, access, request)
            if request.query_params.get("list") is not None:
                return await _list(service, access, request)
            if access.has_lists and "session_id" not in request.query_params:
                return await _stream_all(service, access, request, heartbeat)
            return await _stream(service, access, request, heartbeat)
        except writes.RefusedRequestError as error:
            return answers.refusal(error.status, str(error))
        except answers.REFUSED as error:
            return answers.refusal_of(error)

    return Route(path, changes, methods=access.methods, name="changes")


def old_routes(
    service: MongoSessionService, permission: Permission, within: Scope
) -> list[Route]:
    """Make the routes that the page's scripts still use."""

    async def may_read(request: Request, key: SessionKey) -> bool:
        return await permission.allows(request, key, "read")

    async def may_write(request: Request, key: SessionKey, action: Any) -> bool:
        return await permission.allows(request, key, action)

    access = LocalAccess(may_read, authorize_write=may_write, within=within)
    route = _changes_route(service, access, "/changes", heartbeat=15.0)

    async def sessions(request: Request) -> Response:
        try:
            return await _list_of_page(service, access, request)
        except answers.REFUSED as error:
            return answers.refusal_of(error)

    return [
        live_page_route("/", changes=route.path, sessions="/sessions"),
        route,
        Route("/sessions", sessions, methods=["GET"]),
    ]


def trouble(error: MongoSessionServiceError) -> tuple[int, str]:
    """Return the seconds until a client should reconnect, and why its stream ended."""
    match error:
        case SlowSubscriberError():
            return RETRY, "This client read too slowly."
        case HistoryLostError():
            return RETRY, "Changes were missed and cannot be recovered."
        case StorageUnavailableError():
            return answers.RETRY_LATER, "MongoDB is unavailable."
        case _:
            return _RETRY_MUCH_LATER, answers.SEE_LOG


class _Start(NamedTuple):
    """Beginning of a stream."""

    after_revision: int | None
    is_reconnect: bool
    with_history: bool
    at_revision: int | None = None
    """The one revision to answer with, instead of a stream."""

    @classmethod
    def of(cls, request: Request) -> _Start:
        """Read the beginning that a request asks for.

        Raises:
            InvalidInputError: its parameters are invalid.
        """
        history = request.query_params.get("history")
        if history not in {None, "all"}:
            raise InvalidInputError("history must be 'all', or left out.")
        after = parameters.revision_of(request, "after_revision")
        at = parameters.revision_of(request, "at_revision")
        if [history, after, at].count(None) < 2:  # noqa: PLR2004  one may be given
            names = "history, after_revision and at_revision"
            raise InvalidInputError(f"Give only one of {names}.")
        last = parameters.number(request.headers.get("last-event-id", ""))
        is_reconnect = last is not None
        start = last if is_reconnect else after
        return cls(
            start, is_reconnect, with_history=history is not None, at_revision=at
        )


def _key(request: Request) -> SessionKey:
    asked = [request.query_params.get(name, "") for name in SessionKey._fields]
    return session_key(*asked)


async def _list(
    service: MongoSessionService, access: Access, request: Request
) -> Response:
    """Answer with a page of sessions, or of a session's events."""
    match request.query_params["list"]:
        case "sessions":
            return await _list_sessions(service, access, request)
        case "events":
            return await _list_events(service, access, request)
        case _:
            raise InvalidInputError("list must be 'sessions' or 'events', or left out.")


async def _list_sessions(
    service: MongoSessionService, access: Access, request: Request
) -> Response:
    if not access.has_lists:
        return answers.refusal(403, _MAY_NOT_READ_ALL)
    scope = access.scope_of(request)
    if not await access.may_read_all(request, scope):
        return answers.refusal(403, _MAY_NOT_READ_ALL)
    async with asyncio.timeout(OPENING_PATIENCE):
        order = request.query_params.get("order_by", "create_time")
        found = await lists.sessions(service, access, request, scope, order_by=order)
        return _json(found)


async def _list_events(
    service: MongoSessionService, access: Access, request: Request
) -> Response:
    key = _key(request)
    if not await access.may_read(request, key):
        return answers.refusal(403, _MAY_NOT_READ)
    async with asyncio.timeout(OPENING_PATIENCE):
        text = await lists.events(service, key, request)
    return Response(text, 200, answers.NO_STORE, "application/json")


async def _list_of_page(
    service: MongoSessionService, access: LocalAccess, request: Request
) -> Response:
    """List the apps, or a page of the sessions of one, for the page of a tool.

    Of a single app it has both.
    """
    listed: dict[str, Any] = {}
    scope = access.scope_of(request)
    if not await access.may_read_all(request, scope):
        return answers.refusal(403, _MAY_NOT_READ_ALL)
    async with asyncio.timeout(OPENING_PATIENCE):
        if scope.app_name is None:
            listed["apps"] = await lists.apps(service, access, request)
            if len(listed["apps"]) == 1:
                scope = Scope(listed["apps"][0]["app_name"])
        if scope.app_name is not None:
            order = await lists.order_of(service, request, scope)
            found = await lists.sessions(
                service, access, request, scope, order_by=order
            )
            listed |= {"order_by": order, **found}
        where = {"name": service.database_name, "server": await server_of(service)}
    within = {"app_name": access.within.app_name, "user_id": access.within.user_id}
    return _json({"database": where, "within": within, **listed})


def _json(fields: Mapping[str, object], status: int = 200) -> Response:
    """Answer with the public view of some fields."""
    text = public_view.json_text(fields)
    return Response(text, status, answers.NO_STORE, "application/json")


async def _stream(
    service: MongoSessionService, access: Access, request: Request, heartbeat: float
) -> Response:
    """Stream a session's changes, or answer with its state at one revision."""
    key = _key(request)
    start = _Start.of(request)
    if not await access.may_read(request, key):
        return answers.refusal(403, _MAY_NOT_READ)
    if start.at_revision is not None:
        return await _state_at(service, key, start.at_revision)
    permitted = await access.permitted(request, key, writes.ACTIONS)
    subscription, snapshot = await _open(service, key, start)
    may_read = partial(access.may_read, request, key)
    permission = _Permission(may_read, heartbeat, _MAY_NOT_READ)
    stream = _Stream(subscription, _frame, permission, snapshot)
    stream.headers["Allow"] = ", ".join(access.methods)
    stream.headers["Permitted-Actions"] = ", ".join(permitted)
    if access.has_lists:
        of_user = urlencode({"app_name": key.app_name, "user_id": key.user_id})
        stream.headers["Link"] = f'<?{of_user}>; rel="collection"'
    return stream


async def _stream_all(
    service: MongoSessionService, access: Access, request: Request, heartbeat: float
) -> Response:
    """Stream what happens from now on to the sessions of a user, or of more."""
    scope = access.scope_of(request)
    content = request.query_params.get("content")
    if content not in {None, "none"}:
        raise InvalidInputError("content must be 'none', or left out.")
    if not await access.may_read_all(request, scope):
        return answers.refusal(403, _MAY_NOT_READ_ALL)

    async def frame(change: Change) -> str | None:
        if not await access.lists(request, change.session_key):
            return None
        return _frame_of_many(change, with_content=content is None)

    async with asyncio.timeout(OPENING_PATIENCE):
        subscription = await service.watch(*scope).__aenter__()
    may_read = partial(access.may_read_all, request, scope)
    permission = _Permission(may_read, heartbeat, _MAY_NOT_READ_ALL)
    stream = _Stream(subscription, frame, permission)
    stream.headers["Allow"] = ", ".join(access.methods)
    return stream


class _Permission(NamedTuple):
    """A client's permission to read a stream, which is asked for again and again."""

    ask: Callable[[], Awaitable[bool]]
    heartbeat: float
    refused: str
    """Reason that a client is told when it has lost the permission."""

    async def holds(self) -> bool:
        """Ask whether the client may still read."""
        # Waited for rather than cancelled, which a plain function's thread cannot be.
        asked = asyncio.ensure_future(self.ask())
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
    service: MongoSessionService, key: SessionKey, start: _Start, log_begins: int = 0
) -> tuple[Subscription, Change | None]:
    """Open a subscription, and load the snapshot to send before it."""
    with_history = start.with_history and start.after_revision is None
    try:
        async with asyncio.timeout(OPENING_PATIENCE), AsyncExitStack() as opening:
            after = log_begins if with_history else start.after_revision
            subscription = await opening.enter_async_context(
                service.watch(*key, after_revision=after)
            )
            # After the subscription: if the session is recreated in between, the
            # subscription delivers ``deleted``.
            snapshot = await _snapshot(service, key) if with_history else None
            opening.pop_all()
            return subscription, snapshot
    except InvalidInputError as error:
        if isinstance(error, TrimmedError) and with_history:
            return await _open(service, key, start, error.log_begins)
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
    """Answer with the state after an event, as a snapshot."""
    async with asyncio.timeout(OPENING_PATIENCE):
        session = await service.get_session_at(**key.id, revision=revision)
    if session is None:
        return answers.refusal(404, answers.UNKNOWN)
    snapshot = Change(
        kind="snapshot",
        **key.id,
        revision=revision,
        state=session.state,
        time=session.last_update_time,
    )
    return Response(snapshot.json_text, 200, answers.NO_STORE, "application/json")


async def _write(
    service: MongoSessionService, access: Access, request: Request
) -> Response:
    write = await writes.Write.of(request)
    if not await access.may_write(request, write.key, write.action):
        return answers.refusal(403, _MAY_NOT_WRITE)
    status, found = await write.perform(service)
    return _json(found, status)


class _Stream(EventSourceResponse):
    """A subscription's changes, until it, the client or its permission ends."""

    def __init__(
        self,
        subscription: Subscription,
        frame: Callable[[Change], Awaitable[str | None]],
        permission: _Permission,
        snapshot: Change | None = None,
    ) -> None:
        self._subscription = subscription
        self._frame = frame
        self._permission = permission
        self._snapshot = snapshot
        self._is_refused = False
        heartbeat = permission.heartbeat
        comment = f"heartbeat {heartbeat:g}"
        super().__init__(
            self._frames(comment),
            ping=heartbeat,
            ping_message_factory=lambda: ServerSentEvent(comment=comment, sep="\n"),
            send_timeout=SEND_PATIENCE,
        )

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        asking = asyncio.create_task(self._keep_asking())
        is_open = False

        async def sending(message: Message) -> None:
            nonlocal is_open
            await send(message)
            is_open = bool(message.get("more_body", True))

        try:
            await super().__call__(scope, receive, sending)
            if is_open:  # the server is shut down: it would log an error
                # ASGI lets servers raise one as well if the client has left.
                with suppress(OSError):
                    async with asyncio.timeout(_FAREWELL):
                        await send({"type": "http.response.body"})
        except SendTimeoutError:
            logger.info("A client that did not read was disconnected.")
        finally:
            asking.cancel()
            # The generator does not run if the client left before the first frame.
            self._subscription.close()

    async def _keep_asking(self) -> None:
        """End the stream once its client may not read any more."""
        while not self._is_refused:
            await asyncio.sleep(self._permission.heartbeat)
            self._is_refused = not await self._permission.holds()
        self._subscription.close()

    async def _frames(self, comment: str) -> AsyncIterator[bytes]:
        yield f": {comment}\nretry: {RETRY * 1000}\n\n".encode()
        try:
            if self._snapshot is not None:
                # With an id, a client that reconnects would miss the rest of history.
                data = self._snapshot.json_text
                yield f"event: snapshot\ndata: {data}\n\n".encode()
            async for change in self._subscription:
                frame = await self._frame(change)
                if self._is_refused:
                    break
                if frame is not None:
                    yield frame.encode()
        except MongoSessionServiceError as error:
            logger.info("A client's stream ends. %s", error)
            yield _trouble_frame(*trouble(error))
        if self._is_refused:
            yield _trouble_frame(RETRY, self._permission.refused)


async def _frame(change: Change) -> str:
    """Format a change of the one session that a stream is about."""
    id_ = "" if change.revision is None else f"id: {change.revision}\n"
    return f"event: {change.kind}\n{id_}data: {change.json_text}\n\n"


def _frame_of_many(change: Change, *, with_content: bool) -> str:
    """Format a change of one session among several; its revision is not an ``id``."""
    text = change.json_text if with_content else _outline(change)
    return f"event: {change.kind}\ndata: {text}\n\n"


def _outline(change: Change) -> str:
    """Write a change without event and state, as JSON."""
    names = type(change).model_fields.keys() - _CONTENT
    fields = {name: getattr(change, name) for name in names}
    return public_view.json_text({k: it for k, it in fields.items() if it is not None})


def _trouble_frame(seconds: int, reason: str) -> bytes:
    data = json.dumps({"reason": reason})
    return f"retry: {seconds * 1000}\nevent: trouble\ndata: {data}\n\n".encode()
