"""Live page: an app that shows sessions as they change, and lists of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Query
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.routing import Scope
from mongo_session_service.http import shapes
from mongo_session_service.http.live_page import TokenCheck
from mongo_session_service.http.permission import Authorize, Permission
from mongo_session_service.http.problems import add_error_handlers
from mongo_session_service.http.session_routes import (
    SessionResources,
    is_of_evaluation,
    json_response,
)
from mongo_session_service.http.shapes import AppName
from mongo_session_service.http.sse import old_routes
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_id, lookup_id
from mongo_session_service.schema.indexes import BY_ACTIVITY
from mongo_session_service.schema.setup import has_index
from mongo_session_service.service import MongoSessionService, backend_of
from mongo_session_service.sessions import directory

_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost")

_MAX_COUNT: Final = 100
"""Sessions of an app that are counted, at most."""

_PAGE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # The page may only run its own scripts and read from its own server.
    "Content-Security-Policy": "default-src 'none'; script-src 'self';"
    " style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'self'",
}

_TYPES: Final = {"js": "text/javascript", "css": "text/css"}


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

    The page shows the session that its query parameters ``app_name``, ``user_id`` and
    ``session_id`` name, or lists those of a user, of an app, or the apps. It holds no
    data: it reads what it shows from the routes of :func:`sessions_router`, and from
    lists and streams of apps, which have the sessions that ``authorize`` lets the
    request read.

    It is meant for this machine, and refuses other host names: otherwise a web page
    elsewhere could point a name of its own here (DNS rebinding) and read along.

    Args:
        service: The ``MongoSessionService``.
        authorize: As of :func:`sessions_router`.
        token: Every request but those for the page needs it, in the header
            ``Authorization: Bearer``, or as the query parameter ``token``; others are
            answered with 401. The page takes it from its address.
        app_name: Show this app alone.
        user_id: Show this user's sessions alone.
        allowed_hosts: The host names that the app answers to; ``*`` for any.

    Raises:
        ConfigurationError: ``authorize`` cannot be called.
    """
    within = Scope(app_name, user_id)
    seconds = backend_of(service).limits.http_authorize_seconds
    permission = Permission(authorize, seconds, within)
    resources = _AllSessions(service, permission, within, shows_place=token is not None)
    app = FastAPI(title="Sessions", openapi_url=None)
    if token is not None:
        app.add_middleware(TokenCheck, token=token)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts)
    add_error_handlers(app)
    app.router.routes += old_routes(service, permission, within)
    app.add_api_route("/static/{name}", _part)
    app.include_router(resources.router({"token"}))
    return app


def _part(name: str) -> Response:
    kind = _TYPES.get(name.rpartition(".")[2])
    if kind is None or name not in _read_parts():
        raise HTTPException(404, "There is no such file.")
    return Response(_read_parts()[name], 200, _PAGE_HEADERS, kind)


@cache
def _read_parts() -> dict[str, str]:
    """Read the page, its scripts and its style sheet, by name."""
    folder = files(__package__) / "static"
    return {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir()}


class _AllSessions(SessionResources):
    """The answers to requests for sessions of several users and apps.

    No single question to ``authorize`` covers them: it is asked about each session.
    """

    def __init__(
        self,
        service: MongoSessionService,
        permission: Permission,
        within: Scope,
        *,
        shows_place: bool,
    ) -> None:
        super().__init__(service, permission)
        self._within = within
        self._shows_place = shows_place

    @override
    def router(self, query_parameters: Iterable[str]) -> APIRouter:
        """Make the routes of a user's sessions, and those of all."""
        router = super().router(query_parameters)
        router.add_api_route("/apps", self.list_apps)
        router.add_api_route("/apps/{app_name}/sessions", self.list_app)
        router.add_api_route("/apps/{app_name}/changes", self.stream_app)
        router.add_api_route("/changes", self.stream_everything)
        return router

    async def list_apps(self, request: Request) -> Response:
        """Lists the apps, with the latest session of each."""
        shown = []
        async with self.answering():
            async with backend_of(self.service).call() as opened:
                names = await directory.apps(opened.connection)
                nodes = opened.connection.client.nodes
            for name in filter(partial(lookup_id, "app_name"), names):
                if self._within.app_name not in {None, name}:
                    continue
                query = shapes.SessionQuery(limit=_MAX_COUNT)
                rows, token = await self.find_rows(
                    Scope(name, self._within.user_id), query, "create_time"
                )
                if rows := await self._permitted(request, rows):
                    counted = {"sessions": len(rows), "has_more": token is not None}
                    shown.append({"app_name": name, **counted, "latest": rows[0]})
        server = ", ".join(sorted(f"{host}:{port}" for host, port in nodes))
        place = {"name": self.service.database_name, "server": server}
        app_name, user_id, _ = self._within
        return json_response(
            {
                "apps": shown,
                "within": {"app_name": app_name, "user_id": user_id},
                "database": place if self._shows_place else None,
            }
        )

    async def list_app(
        self,
        request: Request,
        app_name: AppName,
        query: Annotated[shapes.SessionQuery, Query()],
    ) -> Response:
        """Lists an app's sessions, a page at a time.

        Unless told otherwise, by activity where an index has it; a search takes the
        index of what it looks for.
        """
        scope = Scope(check_id("app_name", app_name), self._within.user_id)
        async with self.answering():
            order = query.order_by or "create_time"
            is_search = query.title is not None or query.session_id or query.label
            if query.order_by is None and scope.user_id is None and not is_search:
                async with backend_of(self.service).call() as opened:
                    at = opened.connection
                    if await at.retry(has_index, at, BY_ACTIVITY):
                        order = "update_time"
            rows, token = await self.find_rows(scope, query, order)
            rows = await self._permitted(request, rows)
        listed = {"sessions": rows, "next_page_token": token, "order_by": order}
        return json_response(listed)

    async def stream_app(
        self, request: Request, app_name: AppName, *, include_eval: bool = False
    ) -> Response:
        """Streams what happens to the sessions of an app from now on, in outlines."""
        scope = Scope(check_id("app_name", app_name), self._within.user_id)
        return await self._stream_many(request, scope, include_eval=include_eval)

    async def stream_everything(
        self, request: Request, *, include_eval: bool = False
    ) -> Response:
        """Streams what happens to all sessions from now on, in outlines."""
        scope = self._within
        return await self._stream_many(request, scope, include_eval=include_eval)

    async def _stream_many(
        self, request: Request, scope: Scope, *, include_eval: bool
    ) -> Response:
        async def is_shown(change: Change) -> bool:
            key = change.session_key
            return (
                key is not None
                and (include_eval or not is_of_evaluation(key.session_id))
                and await self._may_read(request, key)
            )

        async def permit() -> None:
            """Allow it: ``authorize`` is asked about each change."""

        async with self.answering(), AsyncExitStack() as opening:
            outlines = await self.open_outlines(scope, is_shown, opening)
            opening.pop_all()
        return self.stream_of(outlines, permit=permit, actions=None)

    async def _permitted(
        self, request: Request, rows: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        return [
            each
            for each in rows
            if await self._may_read(
                request, SessionKey(*[each[name] for name in SessionKey._fields])
            )
        ]

    async def _may_read(self, request: Request, key: SessionKey) -> bool:
        try:
            return await self.permission.allows(request, key, "read")
        except HTTPException as error:
            if error.status_code in {401, 403, 404}:
                return False  # another way to say no
            raise
