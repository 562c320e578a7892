"""Who may do what over HTTP is the application's to say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from google.genai import types
from starlette.exceptions import HTTPException
from starlette.requests import Request
from support.http_paths import CHANGES, EVENTS, SESSION, USER, USER_CHANGES, app_of
from support.http_server import PATIENCE, Client, serving
from support.subscriptions import IDS, new_event
from support.subscriptions import SESSION as KEY

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import live_app, sessions_router

REQUESTS = [
    ("GET", f"{USER}/sessions", "list"),
    ("GET", USER_CHANGES, "list"),
    ("GET", SESSION, "read"),
    ("GET", f"{SESSION}?at_revision=0", "read"),
    ("GET", EVENTS, "read"),
    ("GET", CHANGES, "read"),
    ("GET", f"{USER_CHANGES}?session_id=s", "read"),
    ("PATCH", SESSION, "update"),
    ("POST", f"{SESSION}/fork", "fork"),
    ("DELETE", SESSION, "delete"),
]


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    return await service.create_session(**KEY)


async def asked(url: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        body = {"title": "T"} if method == "PATCH" else None
        return await http.request(method, url, json=body)


@pytest.mark.usefixtures("session")
async def test_each_action_has_its_permission(
    service: MongoSessionService, subtests: pytest.Subtests
) -> None:
    """Who may do everything else is refused, before anybody looks what exists."""
    received: list[dict[str, Any]] = []
    refused = ""

    async def all_but_one(_: Request, **request: Any) -> bool:
        received.append(request)
        return bool(request["action"] != refused)

    async with serving(app_of(service, authorize=all_but_one)) as url:
        for method, path, refused in REQUESTS:
            received.clear()
            with subtests.test(method=method, path=path):
                answers = [
                    await asked(f"{url}{each}", method)
                    for each in (path, path.replace("sessions/s", "sessions/none"))
                ]
                assert [each.status_code for each in answers] == [403, 403]
                assert answers[0].content == answers[1].content
                assert answers[0].json()["detail"] == "You may not do this."
                named = None if refused == "list" else "s"
                expected = {**IDS, "session_id": named, "action": refused}
                assert expected in received
    assert not service.feed_stats().is_running
    stored = await service.find_sessions(**IDS)
    assert [(each.id, each.title) for each in stored.sessions] == [("s", None)]


@pytest.mark.parametrize(
    "answer", [False, HTTPException(401, "Log in."), RuntimeError("s3cret")]
)
@pytest.mark.parametrize(
    "path", [CHANGES, USER_CHANGES, f"{USER_CHANGES}?session_id=s"]
)
@pytest.mark.limits(http_heartbeat_seconds=0.2)
async def test_an_open_stream_asks_again(
    service: MongoSessionService, session: Session, answer: Any, path: str
) -> None:
    """Permission that is withdrawn ends the stream before anything more is sent."""
    is_withdrawn, is_asked = False, asyncio.Event()

    async def authorize(_: Request, **__: Any) -> bool:
        if not is_withdrawn:
            return True
        is_asked.set()
        if isinstance(answer, Exception):
            raise answer
        return False

    async with (
        serving(app_of(service, authorize=authorize)) as url,
        Client(f"{url}{path}") as client,
    ):
        await client.line()
        if path != USER_CHANGES:
            assert (await client.next()).kind == "snapshot"
        is_withdrawn = True
        await is_asked.wait()
        await service.append_event(session, new_event())
        received = await client.rest()

    assert [each.kind for each in received] == ["trouble"]
    reason = received[0].data["reason"]
    assert reason in {"You may not do this.", "Log in.", "See the server's log."}


@pytest.mark.limits(http_heartbeat_seconds=0.001)
async def test_an_event_that_is_being_sent_ends_in_the_middle(
    service: MongoSessionService, session: Session
) -> None:
    """The rest of a large event does not follow once permission is withdrawn."""
    large = Event(author="x", content=types.ModelContent("x" * 10_000_000))
    await service.append_event(session, large)
    asked = 0

    async def authorize(_: Request, **__: Any) -> bool:
        nonlocal asked
        asked += 1
        return asked < 10  # the event alone is sent in 300 pieces

    async with (
        serving(app_of(service, authorize=authorize)) as url,
        Client(f"{url}{CHANGES}", history="all") as client,
    ):
        received = await client.rest()

    assert [each.kind for each in received if each.kind != "trouble"] == ["snapshot"]


@pytest.mark.parametrize("path", [SESSION, CHANGES])
@pytest.mark.limits(http_authorize_seconds=0.3)
@pytest.mark.usefixtures("session")
async def test_an_authorize_that_hangs_has_a_limit(
    service: MongoSessionService, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain one as well, whose thread cannot be stopped, and one that refuses to."""
    released = threading.Event()

    def plain(_: Request, **__: Any) -> bool:
        return released.wait(20)

    async def stubborn(_: Request, **__: Any) -> bool:
        waiting = asyncio.ensure_future(asyncio.to_thread(released.wait, 20))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                continue
        return True

    try:
        for authorize in (plain, stubborn):
            async with serving(app_of(service, authorize=authorize)) as url:
                answer = await asked(f"{url}{path}")

                assert answer.status_code == 503
                assert answer.headers["retry-after"] == "10"
                why = "authorize did not answer in 0.3 seconds."
                assert answer.json()["detail"] == why
                assert caplog.messages == [why]
                caplog.clear()
    finally:
        released.set()


@pytest.mark.limits(http_authorize_seconds=0.1)
@pytest.mark.usefixtures("session")
async def test_a_plain_authorize_that_hangs_keeps_few_threads(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is asked meanwhile; afterwards requests are answered again."""
    caplog.set_level("INFO", "mongo_session_service.http")
    released = threading.Event()
    before = threading.active_count()

    def plain(_: Request, **__: Any) -> bool:
        return released.wait(PATIENCE)

    async with serving(app_of(service, authorize=plain)) as url:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
                for _ in range(2):
                    many = [http.get(f"{url}{SESSION}") for _ in range(60)]
                    answers = await asyncio.gather(*many)
                    assert {each.status_code for each in answers} == {503}
            assert threading.active_count() - before <= 45
        finally:
            released.set()
        async with asyncio.timeout(PATIENCE):
            while (await asked(f"{url}{SESSION}")).status_code != 200:
                pass

    assert caplog.messages == [
        "authorize did not answer in 0.1 seconds.",
        "authorize answers again.",
    ]


@pytest.mark.usefixtures("session")
async def test_authorize_is_asked_about_everything_at_once(
    service: MongoSessionService,
) -> None:
    """A stream, or a list, takes as long as one answer of it."""
    await service.create_session(**IDS)
    waiting: list[asyncio.Event] = []
    count = 0

    async def authorize(_: Request, **__: Any) -> bool:
        waiting.append(asyncio.Event())
        if len(waiting) == count:
            for each in waiting:
                each.set()
        await waiting[-1].wait()
        return True

    async with serving(live_app(service, authorize=authorize)) as url:
        for path, count in (
            ("/apps", 2),
            ("/apps/app/sessions", 2),
            (CHANGES, 6),
            (f"{USER_CHANGES}?session_id=s", 6),
        ):
            waiting.clear()
            async with Client(f"{url}{path}") as client:
                assert client.response.status_code == 200
            assert len(waiting) == count


@pytest.mark.parametrize("answer", [RuntimeError("s3cret"), TimeoutError(), 1, None])
@pytest.mark.usefixtures("session")
async def test_an_authorize_that_fails_permits_nothing(
    service: MongoSessionService, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is a 500; a value that is only like True is refused, too."""

    def authorize(_: Request, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with serving(app_of(service, authorize=authorize)) as url:
        for path in (SESSION, CHANGES):
            caplog.clear()
            received = await asked(f"{url}{path}")

            assert received.status_code == 500
            assert received.json()["detail"] == "See the server's log."
            assert caplog.messages == ["authorize failed."]


@pytest.mark.usefixtures("session")
async def test_authorize_may_be_plain_and_may_raise(
    service: MongoSessionService,
) -> None:
    """A plain function is asked in a thread; its HTTPException is the answer."""

    def by_header(request: Request, *, user_id: str, **_: Any) -> bool:
        asyncio.run(asyncio.sleep(0))  # it could not, in the server's own thread
        if "user" not in request.headers:
            raise HTTPException(401, "Log in.", {"WWW-Authenticate": "Basic"})
        return request.headers["user"] == user_id

    async with serving(app_of(service, authorize=by_header)) as url:
        async with Client(f"{url}{CHANGES}", {"user": "user"}) as client:
            assert (await client.next()).kind == "snapshot"
        refused = await asked(f"{url}{CHANGES}")

    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Basic"
    assert refused.json()["detail"] == "Log in."


@pytest.mark.parametrize("authorize", [None, True, "everyone"])
@pytest.mark.parametrize("make", [sessions_router, live_app])
def test_routes_without_authorize_are_not_made(
    service: MongoSessionService, authorize: Any, make: Callable[..., Any]
) -> None:
    """Routes that are open to everybody cannot be made by forgetting."""
    with pytest.raises(ConfigurationError, match="allow_everyone"):
        make(service, authorize=authorize)
    with pytest.raises(TypeError, match="authorize"):
        make(service)


@pytest.mark.usefixtures("session")
async def test_a_streams_headers_name_the_permitted_actions(
    service: MongoSessionService,
) -> None:
    """So a page offers no others."""

    async def authorize(_: Request, *, action: str, **__: Any) -> bool:
        if action == "delete":
            raise HTTPException(401)  # another way to say no
        return action != "update"

    async with serving(app_of(service, authorize=authorize)) as url:
        for path in (CHANGES, f"{USER_CHANGES}?session_id=s"):
            async with Client(f"{url}{path}") as client:
                allowed = client.response.headers["permitted-actions"]

                assert allowed == "list, read, fork, stop"
