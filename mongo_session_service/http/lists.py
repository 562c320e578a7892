"""Lists over HTTP: pages of sessions and of events, and the apps that have some."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from google.adk.platform import time
from starlette.requests import Request

from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import public_view
from mongo_session_service.http import parameters
from mongo_session_service.http.access import Access
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import check_id, lookup_id
from mongo_session_service.schema.indexes import BY_ACTIVITY
from mongo_session_service.schema.setup import has_index
from mongo_session_service.service import MongoSessionService, backend_of
from mongo_session_service.sessions import directory

_MAX_PAGE: Final = 200
"""Sessions, or events, on a page."""

_SEARCHED: Final = {"title", "label", "session_id"}

_MAX_COUNT: Final = 100
"""Sessions of an app that are counted, at most."""


async def sessions(
    service: MongoSessionService,
    access: Access,
    request: Request,
    scope: Scope,
    *,
    order_by: Any,
) -> dict[str, Any]:
    """Load a page of an app's or a user's sessions, the latest first.

    Raises:
        InvalidInputError: a parameter is invalid.
    """
    query = request.query_params
    token = None
    if (session_id := query.get("session_id")) is not None:
        found = await _with_id(service, scope, session_id.strip())
    else:
        page = await service.find_sessions(
            app_name=scope.app_name,  # type: ignore[arg-type]  # refused if it is None
            user_id=scope.user_id,
            title=query.get("title"),
            labels=parameters.labels_of(request) or None,
            order_by=order_by,
            with_state=False,
            limit=parameters.limit_of(request, _MAX_PAGE),
            page_token=query.get("page_token"),
        )
        found, token = page.sessions, page.next_page_token
    shown = [each for each in found if await access.lists(request, _key(each))]
    return {"sessions": [row(each) for each in shown], "next_page_token": token}


async def order_of(service: MongoSessionService, request: Request, scope: Scope) -> str:
    """Choose the order of a tool's list: by activity, where an index has it.

    A search takes the index of what it looks for.
    """
    is_search = scope.user_id is not None or bool(
        _SEARCHED & request.query_params.keys()
    )
    async with backend_of(service).call() as opened:
        at = opened.connection
        is_indexed = not is_search and await at.retry(has_index, at, BY_ACTIVITY)
    return "update_time" if is_indexed else "create_time"


async def apps(
    service: MongoSessionService, access: Access, request: Request
) -> list[dict[str, Any]]:
    """List the apps that have permitted sessions, with the latest session of each.

    Only sessions that ``authorize`` permits are counted, which no index knows.
    """
    async with backend_of(service).call() as opened:
        names = await directory.apps(opened.connection)
    shown = []
    for name in filter(partial(lookup_id, "app_name"), names):
        page = await service.find_sessions(
            app_name=name, with_state=False, limit=_MAX_COUNT
        )
        found = [
            each for each in page.sessions if await access.lists(request, _key(each))
        ]
        if found:
            app = {"app_name": name, "sessions": len(found), "latest": row(found[0])}
            shown.append(app | {"has_more": page.next_page_token is not None})
    return shown


async def events(
    service: MongoSessionService, key: SessionKey, request: Request
) -> str:
    """Load a page of a session's events, as JSON.

    Raises:
        InvalidInputError: a parameter is invalid.
        SessionNotFoundError: the session is not stored.
    """
    limit = parameters.limit_of(request, _MAX_PAGE)
    found = [
        each
        async for each in service.iter_events(
            **key.id,
            after_revision=parameters.revision_of(request, "after_revision") or 0,
            before_revision=parameters.revision_of(request, "before_revision"),
            newest_first=parameters.flag_of(request, "newest_first"),
            limit=limit + 1,
        )
    ]
    # One by one: the public view knows events by their names.
    shown = ",".join(
        public_view.json_text({"revision": revision, "event": event})
        for revision, event in found[:limit]
    )
    has_more = str(len(found) > limit).lower()
    return f'{{"events":[{shown}],"has_more":{has_more}}}'


def row(session: SessionSummary) -> dict[str, Any]:
    """Return a session's key and details as lists show them, without its state."""
    rest = session.model_dump(exclude={"state", "id", "app_name", "user_id"})
    return {"key": _key(session)._asdict(), **rest}


def _key(session: SessionSummary) -> SessionKey:
    return SessionKey(session.app_name, session.user_id, session.id)


async def _with_id(
    service: MongoSessionService, scope: Scope, session_id: str
) -> list[SessionSummary]:
    app_name = check_id("app_name", scope.app_name)
    check_id("session_id", session_id)
    async with backend_of(service).call() as opened:
        at, now = opened.connection, time.get_time()
        return await directory.with_id(at, app_name, scope.user_id, session_id, now)
