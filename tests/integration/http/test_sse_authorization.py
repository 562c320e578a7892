"""Who may have a session's changes over HTTP is the application's to say."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from google.adk.sessions import Session
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from support.http_server import Client, serving
from support.subscriptions import SESSION, new_event

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import changes_route, sse
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


@pytest.mark.parametrize("answer", [False, HTTPException(401), RuntimeError("secret")])
async def test_an_open_stream_asks_again(
    service: MongoSessionService, session: Session, answer: Any
) -> None:
    """Permission that is withdrawn ends the stream before anything more is sent."""
    answers = [True, True, answer]
    is_asked = asyncio.Event()

    async def authorize(request: Request, key: SessionKey) -> bool:
        now = answers.pop(0) if len(answers) > 1 else answers[0]
        assert request.query_params["session_id"] == key.session_id
        if now is True:
            return True
        is_asked.set()
        if isinstance(now, Exception):
            raise now
        return False

    app = app_of(service, authorize=authorize, heartbeat=0.2)
    async with serving(app) as url, Client(f"{url}/changes") as client:
        assert (await client.next()).kind == "snapshot"
        await is_asked.wait()
        await service.append_event(session, new_event())
        told = await client.rest()

    assert [each.kind for each in told] == ["trouble"]
    assert told[0].data == {"reason": "You may not read this session."}


@pytest.mark.usefixtures("session")
async def test_an_authorize_that_hangs_says_no(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain one, whose thread cannot be stopped, as well."""
    monkeypatch.setattr(sse, "OPENING_PATIENCE", 1.0)
    asked, released = threading.Event(), threading.Event()

    def authorize(*_: object) -> bool:
        if asked.is_set():
            released.wait(20)
        asked.set()
        return True

    app = app_of(service, authorize=authorize, heartbeat=0.2)
    try:
        async with serving(app) as url, Client(f"{url}/changes") as client:
            told = await client.rest()
    finally:
        released.set()

    assert [each.kind for each in told] == ["snapshot", "trouble"]


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
