"""Who may have a session's changes over HTTP is the application's to say."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from google.adk.sessions import Session
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from support.http_server import Client, serving
from support.subscriptions import SESSION

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import changes_route
from mongo_session_service.model.records import SessionKey


def app_of(service: MongoSessionService, **options: Any) -> Starlette:
    return Starlette(routes=[changes_route(service, **options)])


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    """A session without events."""
    return await service.create_session(**SESSION)


async def refused(url: str, **query: Any) -> httpx.Response:
    """The answer to a request that gets no stream."""
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.get(url, params=SESSION | query)


@pytest.mark.usefixtures("session")
async def test_who_may_not_read_is_not_told_what_exists(
    service: MongoSessionService,
) -> None:
    """Without permission every session is answered alike, and none is looked up."""
    asked = []

    async def nobody(request: Request, key: SessionKey) -> None:
        asked.append((request.query_params["session_id"], key))

    async with serving(app_of(service, authorize=nobody)) as url:
        answers = [await refused(f"{url}/changes", session_id=id_) for id_ in "sn"]

    assert [each.status_code for each in answers] == [403, 403]
    assert answers[0].content == answers[1].content
    assert asked == [(id_, SessionKey("app", "user", id_)) for id_ in "sn"]
    assert not service.feed_stats().is_running


@pytest.mark.usefixtures("session")
async def test_authorize_may_be_plain_and_may_raise(
    service: MongoSessionService,
) -> None:
    """A plain function is asked in a thread; its HTTPException is the answer."""

    def by_header(request: Request, key: SessionKey) -> bool:
        asyncio.run(asyncio.sleep(0))  # it could not, in the server's own thread
        if "user" not in request.headers:
            raise HTTPException(401)
        return request.headers["user"] == key.user_id

    async with serving(app_of(service, authorize=by_header)) as url:
        async with Client(f"{url}/changes", {"user": "user"}) as client:
            assert (await client.next()).kind == "snapshot"
        assert (await refused(f"{url}/changes")).status_code == 401


@pytest.mark.parametrize("authorize", [None, True, "everyone"])
def test_a_route_without_authorize_is_not_built(
    service: MongoSessionService, authorize: Any
) -> None:
    """A route that would tell anyone anything cannot be made by forgetting."""
    with pytest.raises(ConfigurationError, match="authorize"):
        changes_route(service, authorize=authorize)


@pytest.mark.parametrize("heartbeat", [0, -1, float("nan")])
def test_a_heartbeat_is_a_time(service: MongoSessionService, heartbeat: float) -> None:
    """No heartbeat at all would leave dead connections open."""
    with pytest.raises(ConfigurationError, match="heartbeat"):
        changes_route(service, authorize=bool, heartbeat=heartbeat)
