"""Live page: an app that shows sessions as they change, and lists of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import Depends, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response

from mongo_session_service.changes.routing import Scope
from mongo_session_service.http.all_sessions import AllSessions
from mongo_session_service.http.permission import Authorize, Permission
from mongo_session_service.http.problems import add_error_handlers
from mongo_session_service.service import MongoSessionService, backends_of

_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost")

_PAGE: Final = "live.html"

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # The page may only run its own scripts and read from its own server.
    "Content-Security-Policy": "default-src 'none'; script-src 'self';"
    " style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'self'",
}

_TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def live_app(
    service: MongoSessionService,
    *,
    authorize: Authorize,
    token: str | None = None,
    app_name: str | None = None,
    user_id: str | None = None,
    allowed_hosts: Sequence[str] = _LOCAL_HOSTS,
) -> FastAPI:
    """Makes an app that shows sessions live: a page, and the routes that it reads.

    Serve it by itself, or in another app, which may be behind a login::

        app.mount("/live", live_app(service, authorize=may, allowed_hosts=["*"]))

    The page shows the session that its query parameters ``app_name``, ``user_id`` and
    ``session_id`` name, or lists those of a user, of an app, or the apps. It holds no
    data: it reads what it shows from the routes of :func:`sessions_router`, and from
    lists and streams of apps, which have the sessions that ``authorize`` lets the
    request read. Sessions of ADK's evaluations are listed with ``include_eval=true``.

    It is meant for this machine, and refuses other host names: otherwise a web page
    elsewhere could point a name of its own here (DNS rebinding) and read along.

    Args:
        service: The ``MongoSessionService``.
        authorize: As of :func:`sessions_router`.
        token: Every request but those for the page needs it, in the header
            ``Authorization: Bearer``, or as the query parameter ``token``; others are
            answered with 401. The page takes it from its address, out of which it goes.
        app_name: Show this app alone.
        user_id: Show this user's sessions alone.
        allowed_hosts: The host names that the app answers to; ``*`` for any.

    Raises:
        ConfigurationError: ``authorize`` cannot be called.
    """
    within = Scope(app_name, user_id)
    seconds = backends_of(service).limits.http_authorize_seconds
    permission = Permission(authorize, seconds, within)
    # Who has a token is the developer, who may know which database this is.
    resources = AllSessions(service, permission, within, shows_place=token is not None)

    async def check_token(request: Request) -> None:
        header = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.query_params.get("token", header)
        if token and not secrets.compare_digest(given.encode(), token.encode()):
            message = "Open the URL that was printed: it has a token."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    app = FastAPI(title="Sessions", openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts)
    add_error_handlers(app)
    app.add_api_route("/", _part)
    app.add_api_route("/static/{name:path}", _part)
    router = resources.router({"token"})
    app.include_router(router, dependencies=[Depends(check_token)])
    return app


def _part(name: str = _PAGE) -> Response:
    """Answer with the page, or with a script or style sheet of it."""
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or name not in _read_parts():
        raise HTTPException(404, "There is no such file.")
    return Response(_read_parts()[name], 200, _HEADERS, kind)


@cache
def _read_parts() -> dict[str, str]:
    """Read the page, its scripts and its style sheet, by their paths."""
    folder = files(__package__) / "static"
    return {
        f"{below}{each.name}": each.read_text(encoding="utf-8")
        for below in ("", "vendor/")
        for each in (folder / below).iterdir()
        if each.is_file()
    }
