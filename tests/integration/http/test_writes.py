"""What can be written over HTTP: only what is asked for, and from no other site."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from mongo_session_service.http import changes_route
from mongo_session_service.model.records import SessionKey

FORK = {**SESSION, "action": "fork", "at_revision": 1}


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    """A session of two events."""
    session = await service.create_session(**SESSION, state={"n": 0})
    for n in (1, 2):
        await service.append_event(session, new_event(n=n))
    return session


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """A server on which everybody may write."""
    route = changes_route(
        service, authorize=lambda *_: True, authorize_write=lambda *_: True
    )
    async with serving(Starlette(routes=[route])) as url:
        yield f"{url}/changes"


def origin(url: str) -> str:
    return url.removesuffix("/changes")


async def post(url: str, body: Any = FORK, **headers: str) -> httpx.Response:
    """Send JSON as a page of the server itself does, but for these headers."""
    everything = {"Origin": origin(url)} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.post(url, json=body, headers=everything)


async def ids(service: MongoSessionService) -> list[str]:
    """Those of the sessions that are stored."""
    listed = await service.list_sessions(app_name="app", user_id="user")
    return [each.id for each in listed.sessions]


@pytest.mark.core
async def test_a_session_is_forked_where_it_is_asked_for(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """The answer names a session of the same user, with the state of that event."""
    response = await post(url)

    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    named = response.json()
    forked = await service.get_session(**named)
    assert forked is not None
    assert named == {**SESSION, "session_id": forked.id}
    assert forked.id != session.id
    assert (forked.state, len(forked.events)) == ({"n": 1}, 1)


@pytest.mark.usefixtures("session")
async def test_a_session_is_renamed_and_labelled(
    service: MongoSessionService, url: str
) -> None:
    """What is not given stays; null takes it away; the answer is as in a list."""
    update = {**SESSION, "action": "update"}

    named = await post(url, {**update, "title": "Trip", "labels": {"env": "prod"}})
    again = await post(url, {**update, "title": "Trip 2"})
    without = await post(url, {**update, "title": None, "labels": None})

    assert named.status_code == again.status_code == without.status_code == 200
    assert again.json()["title"] == "Trip 2"
    assert again.json()["labels"] == {"env": "prod"}
    assert (without.json()["title"], without.json()["labels"]) == (None, {})
    page = await service.find_sessions(app_name="app", user_id="user")
    assert page.sessions[0].title is None
    assert named.json()["revision"] == page.sessions[0].revision == 2
    assert named.json()["key"] == SESSION


@pytest.mark.usefixtures("session")
async def test_a_session_is_deleted(service: MongoSessionService, url: str) -> None:
    """It is gone, and a second request does no harm."""
    delete = {**SESSION, "action": "delete"}

    responses = [await post(url, delete) for _ in range(2)]

    assert [each.status_code for each in responses] == [200, 200]
    assert responses[0].json() == SESSION
    assert await ids(service) == []


@pytest.mark.usefixtures("session")
async def test_each_action_has_its_permission(service: MongoSessionService) -> None:
    """Who may rename may not delete, nor fork."""
    route = changes_route(
        service,
        authorize=lambda *_: True,
        authorize_write=lambda _, __, action: action == "update",
    )
    async with serving(Starlette(routes=[route])) as url:
        statuses = {
            action: (await post(f"{url}/changes", {**SESSION, **body})).status_code
            for action, body in {
                "update": {"action": "update", "title": "T"},
                "delete": {"action": "delete"},
                "fork": {"action": "fork"},
            }.items()
        }

    assert statuses == {"update": 200, "delete": 403, "fork": 403}
    assert await ids(service) == ["s"]


@pytest.mark.usefixtures("session")
async def test_nothing_can_be_written_unless_an_app_asks_for_it(
    service: MongoSessionService,
) -> None:
    """Without authorize_write there is no such route, and a stream says so."""
    route = changes_route(service, authorize=lambda *_: True)
    async with serving(Starlette(routes=[route])) as url:
        assert (await post(f"{url}/changes")).status_code == 405
        async with Client(f"{url}/changes", **SESSION) as client:
            assert client.response.headers["allow"] == "GET"
            assert client.response.headers["permitted-actions"] == ""

    assert await ids(service) == ["s"]


async def test_a_stream_says_what_one_may_write(
    service: MongoSessionService, session: Session
) -> None:
    """Its headers name the actions that its reader may do, for a page to offer them."""

    def may_write(_: Request, key: SessionKey, action: str) -> bool:
        assert key.session_id == session.id
        if action == "delete":
            raise HTTPException(403)
        return action == "update"

    route = changes_route(service, authorize=lambda *_: True, authorize_write=may_write)
    async with (
        serving(Starlette(routes=[route])) as url,
        Client(f"{url}/changes", **SESSION) as client,
    ):
        assert client.response.headers["allow"] == "GET, POST"
        assert client.response.headers["permitted-actions"] == "update"


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("may_read", [True, False])
async def test_writing_has_a_permission_of_its_own(
    service: MongoSessionService, *, may_read: bool
) -> None:
    """It is asked for the session and the action, of those who may read at all."""
    asked = []

    async def may_write(_: Request, key: SessionKey, action: str) -> bool:
        asked.append((key, action))
        return False

    route = changes_route(
        service, authorize=lambda *_: may_read, authorize_write=may_write
    )
    async with serving(Starlette(routes=[route])) as url:
        response = await post(f"{url}/changes")

    assert response.status_code == 403
    assert asked == [(SessionKey(*SESSION.values()), "fork")] * may_read
    assert await ids(service) == ["s"]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": ""}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Host": "attacker.example"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
    ids=str,
)
async def test_no_other_site_can_have_a_browser_write(
    service: MongoSessionService, url: str, headers: dict[str, str], status: int
) -> None:
    """A foreign or missing Origin is refused, and so is what a form can send."""
    response = await post(url, **headers)

    assert response.status_code == status
    assert await ids(service) == ["s"]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([], 400),
        ("fork", 400),
        ({**FORK, "action": "delete"}, 400),
        ({**FORK, "user_id": 7}, 400),
        ({**FORK, "at_revision": 3}, 400),
        ({**FORK, "at_revision": "1"}, 400),
        ({**FORK, "title": "T"}, 400),
        ({**SESSION, "action": "update"}, 400),
        ({**SESSION, "action": "update", "tilte": "T"}, 400),
        ({**SESSION, "action": "update", "title": 7}, 400),
        ({**SESSION, "action": "update", "labels": "a=b"}, 400),
        ({**SESSION, "action": "update", "title": "T", "session_id": "no"}, 404),
        ({**SESSION, "action": "delete", "title": "T"}, 400),
        ({**SESSION, "action": ["delete"]}, 400),
        ({**FORK, "session_id": "none"}, 404),
        ({**FORK, "more": "x" * 70_000}, 413),
    ],
    ids=lambda it: str(it)[:40],
)
async def test_what_cannot_be_done_is_refused(
    service: MongoSessionService, url: str, body: Any, status: int
) -> None:
    """Each mistake has its status and its words, and changes nothing."""
    response = await post(url, body)

    assert response.status_code == status
    assert response.json()["detail"]
    assert await ids(service) == ["s"]


async def test_who_may_write_must_be_a_function(service: MongoSessionService) -> None:
    """True is no answer to every request."""
    with pytest.raises(ConfigurationError, match="authorize_write"):
        changes_route(service, authorize=lambda *_: True, authorize_write=True)  # type: ignore[arg-type]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("revision", "n"), [(0, 0), (1, 1), (2, 2)])
async def test_the_state_at_an_event_can_be_read(
    service: MongoSessionService, url: str, revision: int, n: int
) -> None:
    """It is one snapshot as JSON, with the app's and the user's state of now."""
    other = await service.create_session(app_name="app", user_id="user")
    await service.append_event(other, new_event(**{"user:name": "Ada"}))
    async with httpx.AsyncClient(trust_env=False) as http:
        query = {**SESSION, "at_revision": revision}
        response = await http.get(url, params=query)

    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    snapshot = response.json()
    assert (snapshot["kind"], snapshot["revision"]) == ("snapshot", revision)
    assert snapshot["state"] == {"n": n, "user:name": "Ada"}


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"at_revision": "3"}, 400),
        ({"at_revision": "x"}, 400),
        ({"at_revision": "1", "history": "all"}, 400),
        ({"at_revision": "1", "after_revision": "1"}, 400),
        ({"at_revision": "0", "session_id": "none"}, 404),
    ],
    ids=str,
)
async def test_no_other_state_can_be_read(
    url: str, query: dict[str, str], status: int
) -> None:
    """What was never there is refused."""
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await http.get(url, params=SESSION | query)

    assert response.status_code == status
