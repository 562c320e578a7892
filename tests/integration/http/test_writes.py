"""What can be written over HTTP: only what is asked for, and from no other site."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from google.adk.sessions import Session
from support.http_paths import SESSION as PATH
from support.http_paths import USER, app_of
from support.http_server import serving
from support.subscriptions import IDS, SESSION, new_event

from mongo_session_service import ConfigurationError, MongoSessionService

FORK = ("POST", "/fork", {"at_revision": 1})


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    session = await service.create_session(**SESSION, state={"n": 0})
    for n in (1, 2):
        await service.append_event(session, new_event(n=n))
    return session


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """A server on which everybody may write."""
    async with serving(app_of(service)) as url:
        yield url


async def send(
    url: str, method: str, path: str = "", body: Any = None, /, **headers: str
) -> httpx.Response:
    """Write as a page of the server itself does, but for these headers."""
    everything = {"Origin": url} | headers
    more = {} if body is None else {"json": body}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        target = f"{url}{PATH}{path}"
        return await http.request(method, target, headers=everything, **more)


async def ids(service: MongoSessionService) -> list[str]:
    """Those of the sessions that are stored."""
    listed = await service.list_sessions(app_name="app", user_id="user")
    return [each.id for each in listed.sessions]


@pytest.mark.core
async def test_a_session_is_forked_where_it_is_asked_for(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """The answer is a session of the same user, with the state of that event."""
    response = await send(url, *FORK)
    whole = await send(url, "POST", "/fork")

    assert response.status_code == whole.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    row = response.json()
    forked = await service.get_session(**IDS, session_id=row["session_id"])
    assert forked is not None
    assert {name: row[name] for name in IDS} == IDS
    assert forked.id != session.id
    assert (forked.state, len(forked.events)) == ({"n": 1}, row["revision"])
    assert whole.json()["revision"] == 2


async def test_a_session_is_created(service: MongoSessionService, url: str) -> None:
    """With its details and its own state; a taken id is refused, and so is the rest."""
    sessions = f"{url}{USER}/sessions"
    whole = {
        "sessionId": "new",
        "title": "Trip",
        "labels": {"env": "prod"},
        "ttl": 60,
        "state": {"city": "Turin"},
    }
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        made = await http.post(sessions, json=whole)
        again = await http.post(sessions, json=whole)
        other = await http.post(sessions)
        refused = [
            (await http.post(sessions, json=each)).status_code
            for each in (
                *({"state": {f"{scope}:k": 1}} for scope in ("app", "user", "temp")),
                *({"state": 1}, {"ttl": -1}, {"ttl": "x"}, {"title": ""}),
                *({"labels": {"": "x"}}, {"sessionId": "x" * 9999}, {"unknown": 1}),
                {"state": {"__session_metadata__": {"displayName": "x"}}},
            )
        ]
    row = made.json()
    assert (made.status_code, again.status_code, other.status_code) == (201, 409, 201)
    assert {it: row[it] for it in ("session_id", "title", "labels", "ttl")} == {
        "session_id": "new",
        "title": "Trip",
        "labels": {"env": "prod"},
        "ttl": 60,
    }
    assert row["revision"] == 0
    stored = await service.get_session(**{**SESSION, "session_id": "new"})
    assert stored is not None
    assert stored.state["city"] == "Turin"
    assert set(refused) == {422}
    assert set(await ids(service)) == {"new", other.json()["session_id"]}


async def test_who_may_do_all_else_creates_no_session(
    service: MongoSessionService,
) -> None:
    """A function that does not know the action refuses it."""

    def may(*_: object, action: str, session_id: str | None, **__: object) -> bool:
        assert (action, session_id) == ("create", None)
        return action in {"list", "read", "update", "fork", "delete", "run", "stop"}

    async with (
        serving(app_of(service, authorize=may)) as url,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        refused = await http.post(f"{url}{USER}/sessions", json={"title": "T"})
    assert refused.status_code == 403
    assert not (await service.find_sessions(app_name=IDS["app_name"])).sessions


@pytest.mark.parametrize("most", [65_536, 1_000_000])
@pytest.mark.usefixtures("session")
async def test_a_body_has_a_limit(service: MongoSessionService, most: int) -> None:
    """The one that the application has given."""
    more = {} if most == 65_536 else {"max_body_bytes": most}
    sizes, headers = {}, {"content-type": "application/json"}
    async with (
        serving(app_of(service, **more)) as url,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
    ):
        for size in (most, most + 1):
            text = json.dumps({"title": "T"}).ljust(size)
            answer = await http.patch(f"{url}{PATH}", content=text, headers=headers)
            sizes[size - most] = answer.status_code
    assert sizes == {0: 200, 1: 413}


@pytest.mark.usefixtures("session")
async def test_a_session_is_renamed_and_labelled(
    service: MongoSessionService, url: str
) -> None:
    """What is not given stays; null takes it away; the answer is as in a list."""
    both = {"title": "Trip", "labels": {"env": "prod"}}

    named = await send(url, "PATCH", "", both)
    again = await send(url, "PATCH", "", {"title": "Trip 2"})
    without = await send(url, "PATCH", "", {"title": None, "labels": None})

    assert named.status_code == again.status_code == without.status_code == 200
    assert again.json()["title"] == "Trip 2"
    assert again.json()["labels"] == {"env": "prod"}
    assert (without.json()["title"], without.json()["labels"]) == (None, {})
    page = await service.find_sessions(app_name="app", user_id="user")
    assert page.sessions[0].title is None
    assert named.json()["revision"] == page.sessions[0].revision == 2
    assert {name: named.json()[name] for name in SESSION} == SESSION


@pytest.mark.usefixtures("session")
async def test_a_session_is_deleted(service: MongoSessionService, url: str) -> None:
    """It is gone, and a second request does no harm."""
    responses = [await send(url, "DELETE") for _ in range(2)]

    assert [each.status_code for each in responses] == [200, 200]
    assert responses[0].json() is None
    assert await ids(service) == []


FOREIGN = "https://attacker.example"
PAGES = [
    ({"Origin": "null"}, 403),
    ({"Origin": FOREIGN}, 403),
    ({"Origin": "http://127.0.0.1"}, 403),
    ({"Host": "attacker.example"}, 403),
    ({"Origin": "http://["}, 403),
    ({"Origin": FOREIGN, "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Origin": FOREIGN, "Sec-Fetch-Site": "same-site"}, 403),
    ({"Origin": "", "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "what"}, 403),
    ({"Origin": FOREIGN, "X-Requested-With": "XMLHttpRequest"}, 403),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ({"Origin": ""}, 201),
    ({"Origin": "https://behind.example", "Sec-Fetch-Site": "same-origin"}, 201),
    ({"Origin": "", "Sec-Fetch-Site": "none"}, 201),
    ({"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}, 201),
    ({"Origin": "http://localhost:3000"}, 201),
    ({"Origin": "http://localhost:30001"}, 403),
    ({"Origin": "http://app.example"}, 403),
]


@pytest.mark.usefixtures("session")
async def test_only_pages_of_other_origins_cannot_write(
    service: MongoSessionService, subtests: pytest.Subtests
) -> None:
    """A page of the server, or of a trusted origin, can, and so can any program."""
    trusted = ["https://app.example", "http://localhost:3000"]
    async with serving(app_of(service, trusted_origins=trusted)) as url:
        for headers, status in PAGES:
            with subtests.test(**headers):
                before = len(await ids(service))
                response = await send(url, *FORK, **headers)
                assert response.status_code == status
                assert len(await ids(service)) - before == (status == 201)
                if status == 403:
                    assert "trusted_origins" in response.json()["detail"]


@pytest.mark.parametrize(
    "origins", ["https://app.example", ["app.example"], ["https://app.example/"], ["*"]]
)
def test_a_trusted_origin_is_as_browsers_send_it(
    service: MongoSessionService, origins: Any
) -> None:
    """Another form would never be equal to one."""
    with pytest.raises(ConfigurationError, match="trusted_origins must be"):
        app_of(service, trusted_origins=origins)


IMPOSSIBLE: list[tuple[str, str, Any, int]] = [
    ("POST", "/fork", [], 422),
    ("POST", "/fork", "fork", 422),
    ("POST", "/fork", {"at_revision": 3}, 422),
    ("POST", "/fork", {"at_revision": "1"}, 422),
    ("POST", "/fork", {"at_revision": -1}, 422),
    ("POST", "/fork", {"title": "T"}, 422),
    ("PATCH", "", {}, 422),
    ("PATCH", "", None, 422),
    ("PATCH", "", {"tilte": "T"}, 422),
    ("PATCH", "", {"title": 7}, 422),
    ("PATCH", "", {"labels": "a=b"}, 422),
    ("PATCH", "-none", {"title": "T"}, 404),
    ("POST", "-none/fork", {"at_revision": 1}, 404),
    ("POST", "", {"action": "delete"}, 405),
    ("PATCH", "", {"title": "x" * 70_000}, 413),
]


@pytest.mark.usefixtures("session")
async def test_impossible_writes_are_refused(
    service: MongoSessionService, url: str, subtests: pytest.Subtests
) -> None:
    """Each mistake has its status and its words, and changes nothing."""
    for method, path, body, status in IMPOSSIBLE:
        with subtests.test(path=path, body=str(body)[:40]):
            response = await send(url, method, path, body)
            assert response.status_code == status
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["detail"]
    assert await ids(service) == ["s"]


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    "body",
    [
        {f"field{n}": n for n in range(3000)},
        {"x" * 60_000: 1},
        {"labels": {"x" * 1000 + str(n): n for n in range(50)}},
    ],
    ids=["many", "long", "many and long"],
)
async def test_the_answer_to_many_mistakes_is_short(
    url: str, body: dict[str, Any]
) -> None:
    """It names the first twenty, and counts the others."""
    response = await send(url, "PATCH", "", body)

    assert response.status_code == 422
    assert len(response.content) < 20_000
    count = min(20, len(body.get("labels", body)))
    assert len(response.json()["errors"]) == count
    if len(body) == 3000:
        assert response.json()["detail"].endswith("; and 2,980 more mistakes")


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(("revision", "n"), [(0, 0), (1, 1), (2, 2)])
async def test_the_session_at_an_event_can_be_read(
    service: MongoSessionService, url: str, revision: int, n: int
) -> None:
    """As it was then, but for the app's and the user's state, which is that of now."""
    other = await service.create_session(app_name="app", user_id="user")
    await service.append_event(other, new_event(**{"user:name": "Ada"}))
    async with httpx.AsyncClient(trust_env=False) as http:
        at = {"at_revision": revision}
        whole = await http.get(f"{url}{PATH}", params=at)
        bare = await http.get(f"{url}{PATH}", params={**at, "numRecentEvents": 0})

    assert whole.status_code == bare.status_code == 200
    assert whole.headers["cache-control"] == "no-store"
    assert whole.json()["state"] == {"n": n, "user:name": "Ada"}
    assert len(whole.json()["events"]) == revision
    assert bare.json() == {**whole.json(), "events": []}


@pytest.mark.usefixtures("session")
async def test_no_other_session_can_be_read(
    url: str, subtests: pytest.Subtests
) -> None:
    """What was never there is refused."""
    never = [
        (PATH, {"at_revision": "3"}, 422),
        (PATH, {"at_revision": "x"}, 422),
        (PATH, {"at_revision": "1", "afterTimestamp": "1"}, 422),
        (f"{PATH}-none", {"at_revision": "0"}, 404),
    ]
    async with httpx.AsyncClient(trust_env=False) as http:
        for path, query, status in never:
            with subtests.test(path=path, **query):
                response = await http.get(f"{url}{path}", params=query)
                assert response.status_code == status
