"""Live page: the page that shows a session or a list of them, and its token."""

from __future__ import annotations

import html
import json
import posixpath
import secrets
from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

from starlette import responses
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mongo_session_service.service import MongoSessionService, backend_of

_NO_STORE: Final = {"Cache-Control": "no-store"}

_POLICY: Final = "Content-Security-Policy"

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def live_page_route(
    path: str = "/live", *, changes: str = "/changes", sessions: str | None = None
) -> Route:
    """A route to a page that shows one session live, or the list of a user's sessions.

    The page takes the session from the same query parameters as ``changes_route``.
    Without ``session_id`` it lists the sessions of the user, if ``authorize_user`` of
    that route permits it; else it says what its address needs. It contains no data: it
    reads what it shows from ``changes``, whose functions decide. With the query
    parameter ``file`` the route answers with a script or style sheet of the page.

    Args:
        path: Where the page is.
        changes: The path of the ``changes_route`` of the same app or router.
        sessions: The path of lists of all apps, which ``live_app`` has.
    """
    page, parts = _read_page()
    here = f"./{posixpath.basename(path)}"
    urls = {name: f"{here}?file={name}" for name in parts}
    modules = {f"./{name}": url for name, url in urls.items() if name.endswith(".js")}
    known = {
        "style": urls["live.css"],
        "script": urls["live.js"],
        "modules": json.dumps({"imports": modules}),
        "changes": _relative(changes, path),
        "sessions": "" if sessions is None else _relative(sessions, path),
    }

    async def live(request: Request) -> responses.Response:
        name = request.query_params.get("file")
        if name is None:
            nonce = secrets.token_urlsafe()
            text = page.substitute(known, nonce=nonce)
            return responses.HTMLResponse(
                text, headers=_HEADERS | {_POLICY: _policy(nonce)}
            )
        if name not in parts:
            return responses.PlainTextResponse("There is no such file.", 404, _HEADERS)
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return responses.Response(parts[name], headers=_HEADERS, media_type=kind)

    return Route(path, live, methods=["GET"], name="live")


@cache
def _read_page() -> tuple[Template, dict[str, str]]:
    """Read the page, and its scripts and style sheets by name."""
    texts = {
        each.name: each.read_text(encoding="utf-8")
        for each in (files(__package__) / "static").iterdir()
    }
    return Template(texts.pop("live.html")), texts


def _relative(target: str, path: str) -> str:
    """Make a URL for the page that works behind any prefix."""
    folder = path.rpartition("/")[0] or "/"
    return html.escape(f"./{posixpath.relpath(target, folder)}")


def _policy(nonce: str) -> str:
    """The page may only run its own scripts and read from its own server.

    The scripts that a script with the nonce imports have it, too.
    """
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}' 'self';"
        f" style-src 'nonce-{nonce}' 'self';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'self'"
    )


class TokenCheck:
    """Middleware that lets only requests with a token pass.

    It is a query parameter, or the cookie that the answer to such a request sets.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        # By port: a browser sends cookies of one port to all ports of a host.
        cookie = f"live-{request.url.port}"
        has_parameter = self._is_token(request.query_params.get("token"))
        header = request.headers.get("authorization", "").removeprefix("Bearer ")
        known = header, request.cookies.get(cookie)
        is_page = scope["path"] == "/" or scope["path"].startswith("/static/")
        if not (is_page or has_parameter or any(map(self._is_token, known))):
            detail = "Open the URL that was printed: it ends with a token."
            refusal = responses.JSONResponse({"detail": detail}, 401, _NO_STORE)
            await refusal(scope, receive, send)
            return

        async def send_with_cookie(message: Message) -> None:
            if has_parameter and message["type"] == "http.response.start":
                attributes = "HttpOnly; Path=/; SameSite=Strict"
                setting = f"{cookie}={self._token}; {attributes}"
                MutableHeaders(scope=message).append("Set-Cookie", setting)
            await send(message)

        await self._app(scope, receive, send_with_cookie)

    def _is_token(self, given: str | None) -> bool:
        return secrets.compare_digest((given or "").encode(), self._token.encode())


async def server_of(service: MongoSessionService) -> str:
    """Name the hosts that the service is connected to."""
    client = (await backend_of(service).here()).connection.client
    return ", ".join(sorted(f"{host}:{port}" for host, port in client.nodes))
