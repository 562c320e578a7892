"""All sessions: lists and streams of several users and apps, for the live page."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import override

from mongo_session_service.changes.routing import Scope
from mongo_session_service.http import shapes
from mongo_session_service.http.permission import Permission
from mongo_session_service.http.session_routes import (
    SessionResources,
    json_response,
)
from mongo_session_service.http.shapes import AppName
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_id, lookup_id
from mongo_session_service.schema.indexes import BY_ACTIVITY
from mongo_session_service.schema.setup import has_index
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import search

_MAX_COUNT: Final = 100
"""Sessions of an app that are counted, at most."""


class AllSessions(SessionResources):
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
        router.add_api_route("/apps/{app_name}/turns", self.list_turns)
        router.add_api_route("/apps/{app_name}/changes", self.stream_app)
        router.add_api_route("/changes", self.stream_everything)
        return router

    async def list_apps(
        self, request: Request, *, include_eval: bool = False
    ) -> Response:
        """Lists the apps, with the latest session of each."""
        shown = []
        query = shapes.SessionQuery(limit=_MAX_COUNT, include_eval=include_eval)
        async with self.answering():
            async with backends_of(self.service).call() as opened:
                names = await search.list_apps(opened.connection)
            for name in filter(partial(lookup_id, "app_name"), names):
                scope = Scope(name, self._within.user_id)
                if self._within.app_name not in {None, name}:
                    continue
                rows, token = await self.find_rows(scope, query, "create_time")
                if rows := await self._permitted(request, rows):
                    counted = {"sessions": len(rows), "has_more": token is not None}
                    shown.append({"app_name": name, **counted, "latest": rows[0]})
            return json_response({"apps": shown, **await self._place()})

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
        scope = self._of_app(app_name)
        async with self.answering():
            order = query.order_by or "create_time"
            searches = (query.session_id, query.label, query.waiting)
            is_search = query.title is not None or any(searches)
            if query.order_by is None and scope.user_id is None and not is_search:
                async with backends_of(self.service).call() as opened:
                    at = opened.connection
                    if await at.retry(has_index, at, BY_ACTIVITY):
                        order = "update_time"
            rows, token = await self.find_rows(scope, query, order)
            listed = {
                "sessions": await self._permitted(request, rows),
                "next_page_token": token,
                "order_by": order,
            }
            return json_response(listed | await self._place())

    async def list_turns(self, request: Request, app_name: AppName) -> Response:
        """Lists the sessions of an app whose turns run, are stopping or abandoned."""
        scope = self._of_app(app_name)
        async with self.answering():
            found = await self.service.find_turns(
                app_name=scope.app_name, user_id=scope.user_id
            )
            rows = [
                {**SessionKey(*turn[:3])._asdict(), "status": turn.status}
                for turn in found
            ]
            return json_response({"turns": await self._permitted(request, rows)})

    async def stream_app(
        self,
        request: Request,
        app_name: AppName,
        query: Annotated[shapes.OutlineQuery, Query()],
    ) -> Response:
        """Streams what happens to the sessions of an app from now on, in outlines."""
        return await self._stream(request, self._of_app(app_name), query)

    async def stream_everything(
        self, request: Request, query: Annotated[shapes.OutlineQuery, Query()]
    ) -> Response:
        """Streams what happens to all sessions from now on, in outlines."""
        return await self._stream(request, self._within, query)

    def _of_app(self, app_name: str) -> Scope:
        """Return what may be shown of an app.

        Raises:
            HTTPException: nothing may.
        """
        if self._within.app_name not in {None, app_name}:
            raise HTTPException(403, "This app is not shown here.")
        return Scope(check_id("app_name", app_name), self._within.user_id)

    async def _place(self) -> dict[str, Any]:
        """Tell what all this is limited to, and the database if that may be known."""
        place = None
        if self._shows_place:
            async with backends_of(self.service).call() as opened:
                nodes = opened.connection.client.nodes
            server = ", ".join(sorted(f"{host}:{port}" for host, port in nodes))
            place = {"name": self.service.database_name, "server": server}
        app_name, user_id, _ = self._within
        return {
            "within": {"app_name": app_name, "user_id": user_id},
            "database": place,
        }

    async def _stream(
        self,
        request: Request,
        scope: Scope,
        query: shapes.OutlineQuery,
    ) -> Response:
        async def permit() -> None:
            """Allow it: ``authorize`` is asked about each change."""

        async with self.answering(), AsyncExitStack() as opening:
            may_show = partial(self._may_read, request)
            outlines = await self.open_outlines(scope, query, may_show, opening)
            opening.pop_all()
        return self.stream_of(outlines, permit=permit)

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
