"""Live page: an app that shows sessions as they change, and lists of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Query
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from mongo_session_service.changes.routing import Scope
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.http.change_stream import ChangeStream
from mongo_session_service.http.refusals import (
    Authorize,
    add_error_handlers,
)
from mongo_session_service.http.session_routes import (
    AppName,
    OutlineQuery,
    SessionQuery,
    SessionResources,
)
from mongo_session_service.model.validation import check_id, lookup_id
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import search

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

_MAX_COUNT: Final = 100
"""Sessions of an app that are counted, at most."""

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
        ConfigurationError: ``authorize`` cannot be called, or ``token`` is blank, as
            from a variable that is not set.
    """
    if token is not None and not token.strip():
        message = (
            "The token of live_app is empty. Give a secret one, or None for no token."
        )
        raise ConfigurationError(message)
    resources = AllSessions(service, authorize, within=Scope(app_name, user_id))
    # Who has a token is the developer, who may know which database this is.
    resources.shows_place = token is not None

    async def check_token(request: Request) -> None:
        header = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.query_params.get("token", header)
        if token is not None and not secrets.compare_digest(
            given.encode(), token.encode()
        ):
            message = "Open the URL that was printed: it has a token."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    app = FastAPI(title="Sessions", openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts)
    add_error_handlers(app)
    app.add_api_route("/", _static_file)
    app.add_api_route("/static/{name:path}", _static_file)
    app.include_router(resources.router(), dependencies=[Depends(check_token)])
    return app


def _static_file(name: str = _PAGE) -> Response:
    """Answer with the page, or with a script or style sheet of it."""
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or name not in _static_files():
        raise HTTPException(404, "There is no such file.")
    return Response(_static_files()[name], 200, _HEADERS, kind)


@cache
def _static_files() -> dict[str, str]:
    """Read the page, its scripts and its style sheet, by their paths."""
    folder = files(__package__) / "static"
    return {
        f"{below}{each.name}": each.read_text(encoding="utf-8")
        for below in ("", "vendor/")
        for each in (folder / below).iterdir()
        if each.is_file()
    }


class AllSessions(SessionResources):
    """The answers to requests for sessions of several users and apps.

    No single question to ``authorize`` covers them: it is asked about each session.
    """

    asks_of_each = True
    shows_place = False
    """Whether lists name the database and its server."""

    @override
    def router(self) -> APIRouter:
        """Make the routes of a user's sessions, and those of all."""
        router = super().router()
        router.add_api_route("/apps", self.list_apps)
        router.add_api_route("/apps/{app_name}/sessions", self.list_app)
        router.add_api_route("/apps/{app_name}/changes", self.stream)
        router.add_api_route("/changes", self.stream)
        return router

    async def list_apps(
        self, request: Request, *, include_eval: bool = False
    ) -> Response:
        """Lists the apps, with the latest session of each."""
        shown = []
        query = SessionQuery(limit=_MAX_COUNT, include_eval=include_eval, families=True)
        async with self.reading(self.within), self.answer_in_time():
            backend = await backends_of(self.service).backend()
            names = await search.list_apps(backend.storage)
            for name in filter(partial(lookup_id, "app_name"), names):
                scope = Scope(name, self.within.user_id)
                if self.within.app_name not in {None, name}:
                    continue
                rows, token = await self.find_rows(request, scope, query)
                if rows:
                    counted = {"sessions": len(rows), "has_more": token is not None}
                    shown.append({"app_name": name, **counted, "latest": rows[0]})
            return self.listed({"apps": shown, **await self._place()})

    async def list_app(
        self,
        request: Request,
        app_name: AppName,
        query: Annotated[SessionQuery, Query()],
    ) -> Response:
        """Lists an app's sessions, a page at a time."""
        scope = self._of_app(app_name)
        async with self.reading(scope), self.answer_in_time():
            rows, token = await self.find_rows(request, scope, query)
            found = {"sessions": rows, "next_page_token": token}
            return self.listed(found | await self._place())

    def _of_app(self, app_name: str) -> Scope:
        if self.within.app_name not in {None, app_name}:
            raise HTTPException(403, "This app is not shown here.")
        return Scope(check_id("app_name", app_name), self.within.user_id)

    async def _place(self) -> dict[str, Any]:
        """Name what the page is limited to, and the database if that may be known."""
        place = None
        if self.shows_place:
            backend = await backends_of(self.service).backend()
            server = ", ".join(backend.storage.servers)
            place = {"name": self.service.database_name, "server": server}
        app_name, user_id, _ = self.within
        within = {"app_name": app_name, "user_id": user_id}
        return {"within": within, "database": place}

    async def stream(
        self,
        request: Request,
        query: Annotated[OutlineQuery, Query()],
        app_name: str | None = None,
    ) -> Response:
        """Streams what happens to all sessions, or an app's, from now on: outlines."""
        scope = self.within if app_name is None else self._of_app(app_name)

        async def permit() -> None:
            """Allow the stream: ``authorize`` is called for each change."""

        async with AsyncExitStack() as opening:
            outlines = await self.open_outlines(
                scope,
                query,
                lambda key, _: self.permission.permits(request, key, "read"),
                opening,
            )
            return ChangeStream([outlines], opening.pop_all(), permit, self.limits)
