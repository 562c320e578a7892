"""Refusals: who may do what, which requests are refused unread, and how."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import re
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
)
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from http.client import responses
from itertools import chain, compress
from typing import Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import unquote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message, Receive, Send
from starlette.types import Scope as ASGIScope
from typing_extensions import override

from mongo_session_service.changes.routing import Scope
from mongo_session_service.errors import (
    ConfigurationError,
    DocumentTooLargeError,
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    StorageUnavailableError,
    TurnInterruptedError,
    TurnTakenError,
    UnknownOutcomeError,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.tasks import ignore_failure

logger = logging.getLogger(__name__)

NO_STORE: Final = {"Cache-Control": "no-store"}

RETRY_SECONDS: Final = 10
"""Seconds after which MongoDB may be there again."""

LATER: Final = {"Retry-After": str(RETRY_SECONDS)}

SEE_LOG: Final = "Sessions cannot be read or written; see the server's log."
UNAVAILABLE: Final = "MongoDB is unavailable."

_SHARED: Final = {
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
    "Access-Control-Allow-Methods": "GET, POST, PUT, PATCH, DELETE",
    "Access-Control-Expose-Headers": "Permitted-Actions, Retry-After",
    "Access-Control-Max-Age": "600",
    "Vary": "Origin",
}
"""What a browser is told of the routes, if the origin of the page is trusted."""

_SLASH: Final = re.compile("%2[Ff]")
_STAND_IN: Final = "\udc2f"
"""Of a slash in an id: no path that is decoded holds it."""

_THREADS: Final = 40
"""Calls at once of an ``authorize`` that is a plain function."""

_QUIET_SECONDS: Final = 60
"""Seconds after which something that was wrong is over if nobody notices."""

_NAMED_MISTAKES: Final = 20
"""Mistakes of a request that its answer names."""

_LONGEST: Final = 200
"""Characters of a name in an answer, which the client may have chosen."""


_STALE: Final = "The session was written to meanwhile. Load it, and try again."
_TAKEN: Final = "Another turn of the session runs. Wait for its end, or stop it."
_UNKNOWN: Final = "The outcome of the write is unknown: repeat it."

_REFUSED_AS: Final[dict[type[Exception], tuple[int, str, str]]] = {
    DocumentTooLargeError: (413, "too-large", ""),
    InvalidInputError: (422, "invalid", ""),
    SessionNotFoundError: (404, "no-session", "There is no such session."),
    StaleSessionError: (409, "stale", _STALE),
    AlreadyExistsError: (409, "exists", ""),
    LeaseLostError: (409, "turn-lost", ""),
    TurnInterruptedError: (409, "turn-interrupted", ""),
    TurnTakenError: (409, "turn-taken", _TAKEN),
    UnknownOutcomeError: (503, "unknown-outcome", _UNKNOWN),
    StorageUnavailableError: (503, "unavailable", UNAVAILABLE),
    MongoSessionServiceError: (500, "failed", SEE_LOG),
}
"""Of errors, the first of which counts: the status, the kind, and why unless the error
says it."""

REF: Final = "#/components/schemas/{}"
_TYPE: Final = "urn:mongo-session-service:"
_KINDS: Final = (
    *(kind for _, kind, _ in _REFUSED_AS.values()),
    *("not-allowed", "foreign-origin", "no-turn", "not-json"),
)

REFUSED: Final[tuple[type[Exception], ...]] = (HTTPException, *_REFUSED_AS)
"""The errors that :func:`refusal_of` knows."""

_ANSWERED: Final[tuple[type[Exception], ...]] = (*REFUSED, RequestValidationError)


class Shape(BaseModel):
    """A model whose attributes' docstrings are their descriptions in the schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ProblemDetails(Shape):
    """A refusal, as problem details (RFC 9457)."""

    __qualname__ = "Problem"  # its name in the schema

    type: str = Field(
        json_schema_extra={"enum": ["about:blank", *map(_TYPE.__add__, _KINDS)]}
    )
    """Its kind; about:blank if the status says it all."""
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no such session."])
    errors: list[dict[str, Any]] = Field(default_factory=list)
    """The first 20 mistakes of a request that is invalid: loc, msg and type of each."""


class Refusal(HTTPException):
    """A refusal of a kind that programs know."""

    def __init__(self, status: int, kind: str, why: str) -> None:
        super().__init__(status, why, LATER if kind == "unavailable" else None)
        self.kind = kind


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals with these statuses, and 503, for FastAPI's schema.

    Some route has to name :class:`ProblemDetails` among its models.
    """
    schema = {"schema": {"$ref": REF.format("Problem")}}
    described: dict[int | str, dict[str, Any]] = {
        status: {
            "description": responses[status],
            "content": {"application/problem+json": schema},
        }
        for status in (*statuses, 503)
    }
    seconds = {"description": "In seconds", "schema": {"type": "integer"}}
    described[503]["headers"] = dict.fromkeys(LATER, seconds)
    return described


Action: TypeAlias = Literal[
    "read", "list", "create", "update", "fork", "delete", "run", "answer", "stop"
]

_OFFERED: Final[tuple[Action, ...]] = (
    *("list", "read", "update", "fork", "delete", "stop"),
)


class Authorize(Protocol):
    """Decides whether a request may do something: returns, or awaits, True or False."""

    def __call__(
        self,
        request: Request,
        /,
        *,
        app_name: str,
        user_id: str,
        session_id: str | None,
        action: Action,
    ) -> bool | Awaitable[bool]:
        """Decide, before anything is read.

        Args:
            request: The request.
            app_name: The app.
            user_id: The user whose session it is.
            session_id: The session; None if ``action`` is ``"list"`` or ``"create"``.
            action: ``"list"`` a user's sessions, or ``"create"`` one; or ``"read"``,
                ``"update"`` (title and labels, and which version is shown), ``"fork"``
                or ``"delete"`` a session; ``"run"`` an agent in a turn of it,
                ``"answer"`` a call that waits, by a function response, or ``"stop"`` a
                turn. To edit a message needs ``"run"`` and ``"fork"``, to answer
                ``"run"`` and ``"answer"``, and to interrupt ``"run"`` and ``"stop"``.
                What hides another version is asked for that one as well.
        """


async def allow_everyone(
    _: Request, *, app_name: str, user_id: str, session_id: str | None, action: Action
) -> bool:
    """Allows everybody everything, where that is meant: on a developer's own machine.

    Pass it as ``authorize``.
    """
    del app_name, user_id, session_id, action
    return True


class PermissionChecker:
    """Calls ``authorize`` with a timeout; refuses everything outside ``within``."""

    def __init__(self, authorize: Authorize, seconds: float, within: Scope) -> None:
        if not callable(authorize):
            message = (
                "authorize must be a function (request, *, app_name, user_id,"
                " session_id, action) that returns whether the request is allowed;"
                " allow_everyone lets everybody in."
            )
            raise ConfigurationError(message)
        self._authorize = authorize
        self._seconds = seconds
        self._within = within
        # Its own: a call that hangs keeps its thread, whoever waits for it.
        self._threads = ThreadPoolExecutor(_THREADS)
        self._silence = Episode(logging.ERROR)

    async def require(
        self, request: Request, key: SessionKey | Scope, action: Action
    ) -> None:
        """Refuse a request that may not perform an action on a session or a user's.

        If ``authorize`` fails: by its own HTTPException, or by 500; 503 if too late.
        """
        refusal = Refusal(403, "not-allowed", "You may not do this.")
        pairs = zip(self._within, key, strict=True)
        if any(own not in {None, asked} for own, asked in pairs):
            raise refusal
        asking = self._ask(request, **key._asdict(), action=action)
        asked = asyncio.ensure_future(asking)
        asked.add_done_callback(ignore_failure)
        try:
            # Waited for rather than timed out: it may hold up its own cancellation.
            await asyncio.wait({asked}, timeout=self._seconds)
            if not asked.done():
                why = f"authorize did not answer in {self._seconds:g} seconds."
                self._silence.begin(why)
                raise Refusal(503, "unavailable", why)
        finally:
            asked.cancel()
        self._silence.end("authorize answers again.")
        if not asked.result():
            raise refusal

    async def permits(
        self, request: Request, key: SessionKey | Scope, action: Action
    ) -> bool:
        """Ask the same; False for any refusal, also one that ``authorize`` raises."""
        try:
            await self.require(request, key, action)
        except HTTPException as error:
            if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return False
        return True

    async def which(
        self, request: Request, keys: Collection[SessionKey], action: Action
    ) -> list[SessionKey]:
        """Pick the sessions on which a request may perform an action; ask at once."""
        asked = (self.permits(request, each, action) for each in keys)
        return list(compress(keys, await asyncio.gather(*asked)))

    async def permitted_actions(
        self, request: Request, key: SessionKey, *needed: Action
    ) -> list[Action]:
        """List what a request may do to a session, for a page to offer no more.

        All is asked at once. A request is refused that may not do what is needed.
        """

        async def ask(action: Action) -> bool:
            asked = Scope(*key[:2]) if action == "list" else key
            if action not in needed:
                return await self.permits(request, asked, action)
            await self.require(request, asked, action)
            return True

        return list(compress(_OFFERED, await asyncio.gather(*map(ask, _OFFERED))))

    async def _ask(self, request: Request, **asked: Any) -> bool:
        call = partial(self._authorize, request, **asked)
        try:
            if inspect.iscoroutinefunction(self._authorize):
                answer = call()
            else:
                loop, context = asyncio.get_running_loop(), copy_context()
                answer = await loop.run_in_executor(self._threads, context.run, call)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, bool):
                return answer
            message = f"authorize must return True or False, not {type(answer)}."
            raise TypeError(message)  # noqa: TRY301  its other failures are raised here
        except HTTPException:
            raise
        except Exception as error:
            if not getattr(request.state, "has_reported", False):  # of all it is asked
                request.state.has_reported = True
                logger.exception("authorize failed.")
            raise Refusal(500, "failed", "See the server's log.") from error


class Episode:
    """Something that is wrong for a while: its begin is logged, and its end."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._noted_at = -math.inf

    def begin(self, why: str) -> None:
        """Log why, unless it lasts: its end was not noted, and it was a minute ago."""
        before, self._noted_at = self._noted_at, time.monotonic()
        if self._noted_at - before > _QUIET_SECONDS:
            logger.log(self._level, why)

    def end(self, message: str) -> None:
        """Log that it is over, if it lasts."""
        if self._noted_at > -math.inf:
            self._noted_at = -math.inf
            logger.info(message)


class SessionRoute(APIRoute):
    """A route whose ids may hold slashes, and that refuses by problem details."""

    trusted_origins: frozenset[str]
    max_body_bytes: int
    outage: Episode

    @override
    def matches(self, scope: ASGIScope) -> tuple[Match, ASGIScope]:
        path, slashes = _SLASH.subn(
            _STAND_IN, scope.get("raw_path", b"").decode("latin-1")
        )
        if not slashes or scope["type"] != "http":
            match, found = super().matches(scope)
        else:
            match, found = super().matches({**scope, "path": unquote(path)})
            ids = found.get("path_params", {}).items()
            found["path_params"] = {k: it.replace(_STAND_IN, "/") for k, it in ids}
        is_of_page = match is Match.PARTIAL and scope["method"] == "OPTIONS"
        return Match.FULL if is_of_page and self._shared(scope) else match, found

    @override
    async def handle(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS" and (shared := self._shared(scope)):
            # Without a question to anybody: a browser sends no login with it.
            await Response(None, 204, shared)(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_or_refuse(request: Request) -> Response:
            try:
                if request.method != "GET":
                    _check_origin(request, self.trusted_origins)
                    _check_content_type(request)
                    request = _with_limited_body(request, self.max_body_bytes)
                response = await answer(request)
            except _ANSWERED as error:
                response = problem_of_error(error, self.outage)
            else:
                self.outage.end("MongoDB answers again.")
            response.headers.update(self._shared(request.scope))
            return response

        return answer_or_refuse

    def _shared(self, scope: ASGIScope) -> dict[str, str]:
        """Return the headers by which a page of a trusted origin may read an answer."""
        origin = Headers(scope=scope).get("origin", "")
        is_trusted = origin in self.trusted_origins
        return {"Access-Control-Allow-Origin": origin, **_SHARED} if is_trusted else {}


def _check_origin(request: Request, trusted_origins: Collection[str]) -> None:
    """Refuse what a page of another site has its reader's browser send.

    A browser names the page's site, or, by plain HTTP and if it is old, its origin
    alone. What sends neither is no browser, and has no cookies of anybody else.
    """
    origin = request.headers.get("origin", "")
    site = request.headers.get("sec-fetch-site", "")
    is_own = (
        site in {"same-origin", "none"}
        if site
        else not origin or origin.partition("://")[2] == request.headers.get("host")
    )
    if not is_own and origin not in trusted_origins:
        why = "Pages of another origin may not write; see trusted_origins."
        raise Refusal(403, "foreign-origin", why)


def _check_content_type(request: Request) -> None:
    has_body = request.headers.get("content-length", "0") != "0"
    if has_body or "transfer-encoding" in request.headers:
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind.lower() != "application/json":
            raise Refusal(415, "not-json", "Send JSON, as application/json.")


def _with_limited_body(request: Request, most: int) -> Request:
    length = 0

    async def receive() -> Message:
        nonlocal length
        message = await request.receive()
        length += len(message.get("body", b""))
        if length > most:
            raise Refusal(413, "too-large", f"Send {most:,} bytes at most.")
        return message

    return Request(request.scope, receive)


def refusal_of(error: Exception) -> HTTPException:
    """Make the refusal of a request that failed with one of the errors in ``REFUSED``.

    It holds nothing that is stored, and nothing of the request's content.
    """
    if isinstance(error, HTTPException):
        return error
    found = (it for of, it in _REFUSED_AS.items() if isinstance(error, of))
    status, kind, why = next(found)
    if kind == "failed":
        logger.error("A request failed. %s", error)
    return Refusal(status, kind, why or str(getattr(error, "message", error)))


def problem_of_error(error: Exception, outage: Episode) -> Response:
    """Make problem details: the one form that a refusal over HTTP has (RFC 9457).

    An outage's cause is logged when it begins.
    """
    mistakes: list[dict[str, Any]] = []
    if isinstance(error, StorageUnavailableError):
        outage.begin(f"Requests are answered with 503. {error}")
    if isinstance(error, RequestValidationError):
        why, mistakes = _mistakes_of(error)
        error = Refusal(422, "invalid", why)
    refusal = refusal_of(error)
    problem = ProblemDetails(
        type=_TYPE + refusal.kind if isinstance(refusal, Refusal) else "about:blank",
        title=responses.get(refusal.status_code, "Refused"),
        status=refusal.status_code,
        detail=str(refusal.detail),
        errors=mistakes,
    )
    return Response(
        json.dumps(problem.model_dump(exclude_defaults=True)),
        problem.status,
        {**NO_STORE, **(refusal.headers or {})},
        "application/problem+json",
    )


def _mistakes_of(error: RequestValidationError) -> tuple[str, list[dict[str, Any]]]:
    """Name the first mistakes: none of their values, and nothing that is long."""
    found = error.errors()
    mistakes = []
    named = []
    for mistake in found[:_NAMED_MISTAKES]:
        loc = [
            each[:_LONGEST] if isinstance(each, str) else each
            for each in mistake["loc"][:_NAMED_MISTAKES]
        ]
        msg = mistake["msg"][:_LONGEST]
        mistakes.append({"loc": loc, "msg": msg, "type": mistake["type"]})
        named.append(f"{'.'.join(map(str, loc[1:])) or 'body'}: {msg}")
    if more := len(found) - len(mistakes):
        named.append(f"and {more:,} more mistakes")
    return "; ".join(named), mistakes


def add_error_handlers(app: FastAPI) -> None:
    """Has an application answer errors as :func:`sessions_router` does.

    With problem details (RFC 9457) as JSON: 404 for ``SessionNotFoundError``, 409 for
    ``AlreadyExistsError``, ``StaleSessionError``, a turn that is taken, or was lost;
    413 for ``DocumentTooLargeError``, 422 for ``InvalidInputError`` and for requests
    that FastAPI finds invalid; 503 with ``Retry-After`` while MongoDB is unavailable;
    500, and a line in the log, for other errors of the service. Each ``HTTPException``
    keeps its status and headers. A warning has the cause of an outage, once. The
    application's OpenAPI document has problem details for what FastAPI finds invalid.
    """
    outage = Episode(logging.WARNING)
    written = app.openapi

    async def refuse(_: Request, error: Exception) -> Response:
        return problem_of_error(error, outage)

    def openapi() -> dict[str, Any]:
        document = written()
        for operation in chain(*map(dict.values, document["paths"].values())):
            answers = operation["responses"]
            if REF.format("HTTPValidationError") in str(answers.get("422")):
                answers["422"] = refusals(422)[422]
                schemas = document["components"]["schemas"]
                schemas.setdefault("Problem", ProblemDetails.model_json_schema())
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    for each in _ANSWERED:
        app.add_exception_handler(each, refuse)
