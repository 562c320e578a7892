"""Lists and streams of several sessions over HTTP: pages, searches, and permission."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pymongo import MongoClient
from starlette.applications import Starlette
from starlette.requests import Request
from support.http_server import Client, may_read, serving, until
from support.subscriptions import SESSION, new_event

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.http import changes_route, live_app

OWN = {"app_name": "app", "user_id": "user"}


def is_own(_: Request, app_name: str, user_id: str) -> bool:
    return (app_name, user_id) == ("app", "user")


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """A server on which the user may read all of their sessions."""
    route = changes_route(service, authorize=lambda *_: True, authorize_user=is_own)
    async with serving(Starlette(routes=[route])) as url:
        yield f"{url}/changes"


async def asked(url: str, **query: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.get(url, params=query)


async def listed(url: str, **query: Any) -> list[str]:
    """The ids on a page of the user's sessions."""
    response = await asked(url, **{**OWN, "list": "sessions", **query})
    assert response.status_code == 200, response.text
    return ids(response.json())


def ids(page: Any) -> list[str]:
    return [each["key"]["session_id"] for each in page["sessions"]]


async def create(service: MongoSessionService, session_id: str, **more: Any) -> Any:
    return await service.create_session(**{**OWN, "session_id": session_id, **more})


@pytest.mark.core
async def test_a_users_sessions_come_in_pages(
    service: MongoSessionService, url: str
) -> None:
    """Those created last come first, each once, with what a list needs to say."""
    await create(service, "elsewhere", user_id="other")
    for number in range(5):
        last = await create(service, f"s{number}", title="T", labels={"env": "prod"})

    found, token = [], None
    while not found or token:
        more = {} if token is None else {"page_token": token}
        response = await asked(url, **OWN, list="sessions", limit=2, **more)
        page = response.json()
        found += page["sessions"]
        token = page["next_page_token"]

    assert ids({"sessions": found}) == ["s4", "s3", "s2", "s1", "s0"]
    assert found[0] == {
        "key": {**OWN, "session_id": "s4"},
        "title": "T",
        "labels": {"env": "prod"},
        "revision": 0,
        "log_begins": 0,
        "create_time": last.last_update_time,
        "last_update_time": last.last_update_time,
        "ttl": None,
        "expire_time": None,
    }
    assert response.headers["cache-control"] == "no-store"


async def test_sessions_are_found_by_what_is_exactly_theirs(
    service: MongoSessionService, url: str
) -> None:
    """By title, by labels, and by id."""
    await create(service, "a", title="Trip", labels={"env": "prod", "k": "a=b"})
    await create(service, "b", title="Trip 2", labels={"env": "prod"})

    assert await listed(url, title="Trip") == ["a"]
    assert await listed(url, label="env=prod") == ["b", "a"]
    assert await listed(url, label=["env=prod", "k=a=b"]) == ["a"]
    assert await listed(url, session_id=" b ") == ["b"]
    assert await listed(url, session_id="Trip") == []


async def test_a_sessions_events_come_in_pages(
    service: MongoSessionService, url: str
) -> None:
    """From either end, after or before a revision, each with its revision."""
    session = await create(service, "s")
    for n in range(5):
        await service.append_event(session, new_event(n=n))

    async def revisions(**query: Any) -> tuple[list[int], bool]:
        response = await asked(url, **SESSION, list="events", **query)
        page = response.json()
        for each in page["events"]:
            assert each["event"]["actions"]["stateDelta"] == {"n": each["revision"] - 1}
        return [each["revision"] for each in page["events"]], page["has_more"]

    assert await revisions() == ([1, 2, 3, 4, 5], False)
    assert await revisions(limit=2) == ([1, 2], True)
    assert await revisions(limit=3, after_revision=2) == ([3, 4, 5], False)
    assert await revisions(limit=2, newest_first="true") == ([5, 4], True)
    assert await revisions(newest_first="true", before_revision=2) == ([1], False)


async def test_a_sessions_events_need_permission_and_a_session(
    service: MongoSessionService,
) -> None:
    """As its stream does: 403 before anything is read, and 404."""
    await create(service, "s")
    route = changes_route(service, authorize=lambda _, key: key.session_id != "s")
    async with serving(Starlette(routes=[route])) as url:
        asking = {**OWN, "list": "events"}
        refused = await asked(f"{url}/changes", **asking, session_id="s")
        unknown = await asked(f"{url}/changes", **asking, session_id="none")

    assert (refused.status_code, unknown.status_code) == (403, 404)


SENSELESS = [
    {"list": "all"},
    {"list": "events"},
    {**SESSION, "list": "events", "limit": "0"},
    {**SESSION, "list": "events", "after_revision": "x"},
    {**SESSION, "list": "events", "before_revision": "-1"},
    {**SESSION, "list": "events", "newest_first": "yes"},
    {"list": "sessions", "order_by": "title"},
    {"list": "sessions", "limit": "0"},
    {"list": "sessions", "limit": "201"},
    {"list": "sessions", "limit": "-1"},
    {"list": "sessions", "label": "env"},
    {"list": "sessions", "page_token": "x"},
    {"list": "sessions", "session_id": ""},
    {"list": "sessions", "user_id": ""},
    {"content": "some"},
    {"app_name": ""},
]


async def test_a_list_that_makes_no_sense_is_refused(url: str) -> None:
    """The answer says what was wrong."""
    for query in SENSELESS:
        response = await asked(url, **{**OWN, **query})

        assert response.status_code == 400, query
        assert response.json()["detail"]


async def test_a_list_may_be_in_the_order_of_activity(
    service: MongoSessionService, url: str
) -> None:
    """A user's always; a tool's of an app where the index for it exists."""
    first = await create(service, "first")
    await create(service, "second")
    await service.append_event(first, new_event(n=1))
    app = live_app(service, authorize=may_read)

    assert await listed(url) == ["second", "first"]
    assert await listed(url, order_by="update_time") == ["first", "second"]
    async with serving(app) as tool:
        before = (await asked(f"{tool}/sessions")).json()
        await service.setup(index="activity")
        after = (await asked(f"{tool}/sessions")).json()

    assert (before["order_by"], ids(before)) == ("create_time", ["second", "first"])
    assert (after["order_by"], ids(after)) == ("update_time", ["first", "second"])


@pytest.mark.parametrize("more", [{}, {"list": "sessions"}], ids=str)
async def test_who_may_not_read_a_users_sessions_learns_nothing(
    service: MongoSessionService, url: str, more: dict[str, str]
) -> None:
    """Neither lists nor streams, of nobody else; and nothing is read."""
    await create(service, "s", user_id="other")

    response = await asked(url, app_name="app", user_id="other", **more)

    assert response.status_code == 403
    assert not service.feed_stats().is_running


async def test_without_authorize_user_no_route_has_lists(
    service: MongoSessionService,
) -> None:
    """Permission for each session is none for all of them."""
    route = changes_route(service, authorize=lambda *_: True)
    async with serving(Starlette(routes=[route])) as url:
        listing = await asked(f"{url}/changes", **OWN, list="sessions")
        stream = await asked(f"{url}/changes", **OWN)

    assert (listing.status_code, stream.status_code) == (403, 400)


def test_who_may_list_must_be_a_function(service: MongoSessionService) -> None:
    """A mistake is found when the route is built."""
    with pytest.raises(ConfigurationError, match="authorize_user"):
        changes_route(service, authorize=lambda *_: True, authorize_user=True)  # type: ignore[arg-type]


async def test_a_users_stream_has_what_happens_to_their_sessions(
    service: MongoSessionService, url: str
) -> None:
    """From now on, of nobody else, and without a place to resume from."""
    session = await create(service, "before")
    other = await create(service, "s", user_id="other")
    async with Client(url, session_id=None) as client:
        assert (await client.line()).startswith(":")
        await service.append_event(other, new_event(n=0))
        await service.append_event(session, new_event(n=1))
        await create(service, "new")
        await service.delete_session(**OWN, session_id="before")
        told = await client.take(3)

    assert [each.summary for each in told] == [
        ("appended", None),
        ("created", None),
        ("deleted", None),
    ]
    assert [each.data["session_id"] for each in told] == ["before", "new", "before"]
    assert told[0].data["state_delta"] == {"n": 1}


async def test_a_list_can_be_kept_up_to_date_without_content(
    service: MongoSessionService, url: str
) -> None:
    """The stream of a list says what happened where and when, and no more."""
    session = await create(service, "s")
    async with Client(url, session_id=None, content="none") as client:
        assert (await client.line()).startswith(":")
        await service.append_event(session, new_event(n=1))
        told = await client.next()

    assert told.data == {
        "kind": "appended",
        **SESSION,
        "revision": 1,
        "time": session.last_update_time,
    }


async def test_a_users_stream_asks_again(service: MongoSessionService) -> None:
    """Permission that is withdrawn ends the stream."""
    answers = [True, False]
    route = changes_route(
        service,
        authorize=lambda *_: True,
        authorize_user=lambda *_: answers.pop(0),
        heartbeat=0.1,
    )
    async with (
        serving(Starlette(routes=[route])) as url,
        Client(f"{url}/changes", session_id=None) as client,
    ):
        told = await client.rest()

    assert [each.kind for each in told] == ["trouble"]
    assert told[0].data == {"reason": "You may not read these sessions."}
    await until(lambda: not service.feed_stats().subscriptions)


async def test_the_stream_of_a_session_leads_to_the_list(
    service: MongoSessionService, url: str
) -> None:
    """A page learns from it that there is a list, and where."""
    await create(service, "s")

    async with Client(url) as client:
        link = client.response.headers["link"]

    assert link == '<?app_name=app&user_id=user>; rel="collection"'


async def test_a_tool_lists_the_apps_and_what_each_has(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Those that hold what authorize permits; a name that is none harms nobody."""
    await create(service, "a", app_name="quiet", title="Trip")
    await create(service, "b", app_name="hidden")
    for number in range(2):
        await create(service, f"s{number}")
    broken = {"_id": {**OWN, "session_id": "x", "app_name": 7}, "revision": 0}
    admin[database].sessions.insert_one(broken)
    app = live_app(service, authorize=lambda _, *, app_name, **__: app_name != "hidden")

    async with serving(app) as url:
        listed = (await asked(f"{url}/sessions")).json()

    found = {each["app_name"]: each for each in listed["apps"]}
    assert list(found) == ["app", "quiet"]
    assert (found["app"]["sessions"], found["app"]["has_more"]) == (2, False)
    assert found["app"]["latest"]["key"]["session_id"] == "s1"
    assert found["quiet"]["latest"]["title"] == "Trip"
    assert listed["within"] == {"app_name": None, "user_id": None}


async def test_what_a_tool_is_limited_to_is_all_that_it_shows(
    service: MongoSessionService,
) -> None:
    """Of an app, however many newer sessions others have; of no other app."""
    await create(service, "a", app_name="quiet")
    for number in range(3):
        await create(service, f"s{number}")
    app = live_app(service, authorize=may_read, app_name="quiet")

    async with serving(app) as url:
        alone = (await asked(f"{url}/sessions", limit=1)).json()
        others = await asked(f"{url}/sessions", app_name="app")
        stream = await asked(f"{url}/changes", app_name="app")

    assert ids(alone) == ["a"]
    assert alone["within"] == {"app_name": "quiet", "user_id": None}
    assert (others.status_code, stream.status_code) == (403, 403)


async def test_a_tools_stream_has_what_authorize_permits(
    service: MongoSessionService,
) -> None:
    """What is hidden from lists is hidden from their stream."""
    app = live_app(service, authorize=lambda _, *, user_id, **__: user_id != "hidden")
    nothing = dict.fromkeys(["app_name", "user_id", "session_id"])
    async with serving(app) as url, Client(f"{url}/changes", **nothing) as client:
        assert (await client.line()).startswith(":")
        await create(service, "s", user_id="hidden", state={"user:k": "hidden"})
        await create(service, "s", app_name="y")
        told = await client.next()

    assert (told.kind, told.data["app_name"]) == ("created", "y")
    assert "hidden" not in json.dumps(told.data)


async def test_a_page_is_read_by_its_index_alone(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Pages and searches examine what they show; the apps are stepped through."""
    await create(service, "wanted", title="Trip", labels={"k": "v"})
    for number in range(60):
        await create(service, f"s{number}")
    app = live_app(service, authorize=may_read)
    admin[database].command("profile", 2)
    try:
        async with serving(app) as tool:
            for query in (
                {"limit": 5},
                {"title": "Trip"},
                {"label": "k=v"},
                {"session_id": "wanted"},
            ):
                await asked(f"{tool}/sessions", app_name="app", **query)
            await asked(f"{tool}/sessions", limit=5)
    finally:
        admin[database].command("profile", 0)

    profiled = list(
        admin[database].system.profile.find({"command.aggregate": "sessions"})
    )
    plans = [each["planSummary"] for each in profiled]
    examined = [each["docsExamined"] for each in profiled]
    assert "COLLSCAN" not in " ".join(plans)
    assert any(plan.startswith("DISTINCT_SCAN") for plan in plans)
    assert examined[:4] == [6, 1, 1, 1]
