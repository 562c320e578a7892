"""Request checks: what a request to a session route must be to be answered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message, Scope
from typing_extensions import override

from mongo_session_service.http import problems

_SLASH: Final = re.compile("%2[Ff]")
_STAND_IN: Final = "\udc2f"
"""Of a slash in an id: no path that is decoded holds it."""

_MAX_BODY: Final = 65_536
"""Bytes of a request's body."""


class SessionRoute(APIRoute):
    """A route that refuses by problem details, and parameters that nobody reads."""

    query_parameters: ClassVar[frozenset[str]] = frozenset()
    """Names of others that the application reads itself."""

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a path whose ids may hold slashes, as ``%2F``."""
        path, slashes = _SLASH.subn(
            _STAND_IN, scope.get("raw_path", b"").decode("latin-1")
        )
        if not slashes or scope["type"] != "http":
            return super().matches(scope)
        match, found = super().matches({**scope, "path": unquote(path)})
        ids = found.get("path_params", {})
        found["path_params"] = {k: it.replace(_STAND_IN, "/") for k, it in ids.items()}
        return match, found

    @override
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Make the function that answers a request."""
        answer = super().get_route_handler()
        known = self.query_parameters.union(*map(_names, self.dependant.query_params))

        async def answer_or_refuse(request: Request) -> Response:
            try:
                _check_query(request, known)
                if request.method == "GET":
                    return await answer(request)
                _check_origin(request)
                _check_content_type(request)
                return await answer(_with_limited_body(request))
            except problems.REFUSED as error:
                return problems.problem_of_error(error)

        return answer_or_refuse


def _names(parameter: Any) -> set[str]:
    """Name the query parameters that a function's parameter takes: those of a model."""
    model = parameter.field_info.annotation
    if isinstance(model, type) and issubclass(model, BaseModel):
        return {info.alias or name for name, info in model.model_fields.items()}
    return {parameter.alias}


def _check_query(request: Request, known: frozenset[str]) -> None:
    """Refuse parameters that nobody reads, which may be misspelt, or are doubled."""
    counts = Counter(name for name, _ in request.query_params.multi_items())
    doubled = (name for name in counts if counts[name] > 1 and name != "label")
    mistakes = dict.fromkeys(doubled, "Give this parameter once")
    unknown = (name for name in counts if name not in known)
    mistakes |= dict.fromkeys(unknown, "Unknown parameter")
    if mistakes:
        raise RequestValidationError(
            [
                {"loc": ("query", name), "msg": why, "type": "value_error"}
                for name, why in mistakes.items()
            ]
        )


def _check_origin(request: Request) -> None:
    """Refuse what another site may have a browser send with its user's cookies.

    A page of this server says so in ``Origin``. A form can set no header, and a script
    of another site none but those that the server allows it.
    """
    origin = request.headers.get("origin", "").partition("://")[2]
    is_own = bool(origin) and origin == request.headers.get("host")
    if not is_own and "x-requested-with" not in request.headers:
        message = (
            "Writing needs an Origin of this server, as its own pages send it, or the"
            " header X-Requested-With, with any value."
        )
        raise HTTPException(403, message)


def _check_content_type(request: Request) -> None:
    """Refuse a body that does not say that it is JSON."""
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
