"""Live page: the page that shows a session, its list of sessions, and its token."""

from __future__ import annotations

import base64
import hashlib
import html
import posixpath
import re
import secrets
from importlib.resources import files
from typing import Any, Final

from google.adk.platform import time as platform_time
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mongo_session_service.backend import backend_of
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import MongoSessionService
from mongo_session_service.sessions import queries

_NO_STORE: Final = {"Cache-Control": "no-store"}

_LATEST: Final = 100
"""Sessions in the list."""

_OURS: Final = {
    **{f"_id.{name}": {"$type": "string"} for name in SessionKey._fields},
    "update_time": {"$type": "number"},
}
"""Only these are listed: one document of another tool could hide all others."""


def live_page_route(
    path: str = "/live", *, changes: str = "/changes", sessions: str | None = None
) -> Route:
    """A route to a page that shows one session live: its events, and its state.

    The page takes the session from the same query parameters as ``changes_route``, and
    asks for it without them. It contains no data: it reads what it shows from
    ``changes``, whose ``authorize`` decides.

    Args:
        path: Where the page is.
        changes: The path of the ``changes_route`` of the same app or router.
        sessions: The path of a list of sessions, if there is one.
    """
    page = (files(__package__) / "static" / "live.html").read_text(encoding="utf-8")
    urls = {"changes-url": changes, "sessions-url": sessions}
    for name, target in urls.items():
        # Relative, so that the page works behind any prefix.
        url = "" if target is None else posixpath.relpath(target, _folder(path))
        meta = f'<meta name="{name}" content="'
        page = page.replace(f'{meta}"', f'{meta}{html.escape(url and f"./{url}")}"')
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _policy(page),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }

    async def live(_: Request) -> Response:
        return HTMLResponse(page, headers=headers)

    return Route(path, live, methods=["GET"], name="live")


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _policy(page: str) -> str:
    """The page may only run its own script and read from its own server."""
    own = {
        tag: " ".join(map(_hash, re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)))
        for tag in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {own['script']}; style-src {own['style']};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'self'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


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
        if not has_parameter and not self._is_token(request.cookies.get(cookie)):
            detail = "Open the URL that was printed: it ends with a token."
            refusal = JSONResponse({"detail": detail}, 401, _NO_STORE)
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
    """The hosts that the service is connected to."""
    client = (await backend_of(service).here()).connection.client
    return ", ".join(sorted(f"{host}:{port}" for host, port in client.nodes))


async def latest_sessions(service: MongoSessionService) -> list[dict[str, Any]]:
    """The latest updated sessions of every app and user.

    It scans all sessions: for a tool, not for an application.
    """
    shown = {"_id": 0, "key": "$_id", "revision": 1, "update_time": 1}
    stages: list[dict[str, Any]] = [
        {"$match": {**queries.visible(platform_time.get_time()), **_OURS}},
        {"$sort": {"update_time": -1}},
        {"$limit": _LATEST},
        {"$project": shown},
    ]
    async with backend_of(service).call() as opened:
        connection = opened.connection
        return await connection.aggregate(connection.sessions, stages)
