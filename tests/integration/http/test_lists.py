"""Lists and streams of several sessions over HTTP: pages, searches, and permission."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pymongo import MongoClient
from support.http_paths import CHANGES, EVENTS, SESSION, USER, USER_CHANGES, app_of
from support.http_server import Client, may_read, serving
from support.subscriptions import IDS, new_event
from support.waiting import ask

from mongo_session_service import MongoSessionService
from mongo_session_service.changes.routing import Scope
from mongo_session_service.http import live_app
from mongo_session_service.http.session_routes import SessionResources


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Where a user's sessions are served."""
    async with serving(app_of(service)) as url:
        yield f"{url}{USER}/sessions"


async def asked(url: str, **query: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.get(url, params=query)


async def listed(url: str, **query: Any) -> list[str]:
    """The ids on a page of the user's sessions."""
    response = await asked(url, **query)
    assert response.status_code == 200, response.text
    return ids(response.json())


def ids(page: Any) -> list[str]:
    return [each["session_id"] for each in page["sessions"]]


async def create(service: MongoSessionService, session_id: str, **more: Any) -> Any:
    return await service.create_session(**{**IDS, "session_id": session_id, **more})


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
        response = await asked(url, limit=2, **more)
        page = response.json()
        found += page["sessions"]
        token = page["next_page_token"]

    assert ids({"sessions": found}) == ["s4", "s3", "s2", "s1", "s0"]
    assert found[0] == {
        **IDS,
        "session_id": "s4",
        "title": "T",
        "labels": {"env": "prod"},
        "revision": 0,
        "log_begins": 0,
        "create_time": last.last_update_time,
        "last_update_time": last.last_update_time,
        "ttl": None,
        "expire_time": None,
        "waiting": [],
        "waiting_more": 0,
        "root_id": None,
        "branches": 1,
    }
    assert response.headers["cache-control"] == "no-store"


async def test_sessions_are_found_by_title_label_and_id(
    service: MongoSessionService, url: str
) -> None:
    """Only an exact match counts."""
    await create(service, "a", title="Trip", labels={"env": "prod", "k": "a=b"})
    await create(service, "b", title="Trip 2", labels={"env": "prod"})

    assert await listed(url, title="Trip") == ["a"]
    assert await listed(url, label="env=prod") == ["b", "a"]
    assert await listed(url, label=["env=prod", "k=a=b"]) == ["a"]
    assert await listed(url, session_id=" b ") == ["b"]
    assert await listed(url, session_id="Trip") == []


async def test_sessions_that_wait_for_a_person_are_found(
    service: MongoSessionService, url: str
) -> None:
    """With what they wait for, as an inbox needs it."""
    await create(service, "other")
    asked_for = await service.append_event(await create(service, "s"), ask("c1"))
    response = await asked(url, waiting="true")
    (found,) = response.json()["sessions"]
    assert found["session_id"] == "s"
    assert found["waiting"] == [
        {
            "call_id": "c1",
            "name": "ship",
            "author": "clerk",
            "since": asked_for.timestamp,
            "revision": 1,
        }
    ]
    assert (await asked(url, waiting="perhaps")).status_code == 422


@pytest.mark.parametrize("path", [f"{USER}/sessions", SESSION, EVENTS, CHANGES])
async def test_an_unknown_query_parameter_is_ignored(
    service: MongoSessionService, url: str, path: str
) -> None:
    """As proxies, trackers and later clients add them."""
    await create(service, "s")
    target = url.replace(f"{USER}/sessions", path)
    async with Client(target, utm_source="mail", limits="5") as client:
        assert client.response.status_code == 200


async def test_a_sessions_events_come_in_pages(
    service: MongoSessionService, url: str
) -> None:
    """From either end, after or before a revision, each with its revision."""
    events = f"{url.removesuffix('/sessions')}/sessions/s/events"
    session = await create(service, "s")
    for n in range(5):
        await service.append_event(session, new_event(n=n))

    async def revisions(**query: Any) -> tuple[list[int], bool]:
        response = await asked(events, **query)
        page = response.json()
        for each in page["events"]:
            assert each["event"]["actions"]["stateDelta"] == {"n": each["revision"] - 1}
        return [each["revision"] for each in page["events"]], page["has_more"]

    assert await revisions() == ([1, 2, 3, 4, 5], False)
    assert await revisions(limit=2) == ([1, 2], True)
    assert await revisions(limit=3, after_revision=2) == ([3, 4, 5], False)
    assert await revisions(limit=2, newest_first="true") == ([5, 4], True)
    assert await revisions(newest_first="true", before_revision=2) == ([1], False)


async def walk(url: str, **query: Any) -> tuple[list[list[str]], list[str]]:
    """The ids on each page of one session, and what the tokens of the pages hold."""
    pages, tokens, token = [], [], None
    while token or not pages:
        more = {} if token is None else {"page_token": token}
        page = (await asked(url, **query, **more, limit=1)).json()
        pages.append(ids(page))
        token = page["next_page_token"]
        tokens.append(base64.urlsafe_b64decode((token or "") + "==").decode("latin-1"))
    return pages, tokens


@pytest.mark.parametrize(
    "query",
    [{}, {"title": "T"}, {"label": "k=v"}, {"waiting": "true"}, {"families": "true"}],
)
async def test_what_is_hidden_shapes_no_page(
    service: MongoSessionService, query: dict[str, str]
) -> None:
    """Whether others have such sessions is seen in no row, token or number of pages."""
    for number in range(9):
        hidden = {} if number in {2, 5} else {"user_id": f"eve{number}@example.com"}
        session = await create(
            service, f"s{number}", title="T", labels={"k": "v"}, **hidden
        )
        await service.append_event(session, ask(f"c{number}"))
    app = live_app(service, authorize=lambda _, *, user_id, **__: user_id == "user")
    async with serving(app) as tool:
        pages, tokens = await walk(f"{tool}/apps/app/sessions", **query)
        (listed,) = (await asked(f"{tool}/apps")).json()["apps"]

    assert pages == [["s5"], ["s2"]]
    assert tokens[1] == ""
    assert not any(each in tokens[0] for each in ("eve", "user", "s5", "s4"))
    assert (listed["sessions"], listed["has_more"]) == (2, False)
    assert listed["latest"]["session_id"] == "s5"


async def test_evaluations_shape_no_page(
    service: MongoSessionService, url: str
) -> None:
    """Each page but the last is full, and only the last has no token."""
    for session_id in ("a", *(f"adk-eval-session-{n}" for n in range(15)), "b"):
        await create(service, session_id)
    assert (await walk(url))[0] == [["b"], ["a"]]


@pytest.mark.limits(http_page_bytes=1000)
async def test_a_list_of_large_rows_is_shorter(
    service: MongoSessionService, url: str
) -> None:
    """It ends after so many bytes, and the next page has the others."""
    for number in range(4):
        await create(service, f"s{number}", labels={"k": "v" * 250, "l": "v" * 250})
    first = (await asked(url)).json()
    rest = await listed(url, page_token=first["next_page_token"])
    assert (ids(first), rest) == (["s3", "s2"], ["s1", "s0"])


@pytest.mark.parametrize("path", ["sessions", "sessions/s/branches"])
async def test_a_users_lists_are_read_one_after_the_other(
    service: MongoSessionService,
    url: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that many at once hold little; others' lists are read meanwhile."""
    for user in ("user", "other"):
        await create(service, "s", user_id=user)
    begun, released, reads = asyncio.Event(), asyncio.Event(), list[str]()
    lock_of = SessionResources.reading

    @asynccontextmanager
    async def reading(self: SessionResources, scope: Scope) -> AsyncIterator[None]:
        async with lock_of(self, scope):
            reads.append(scope.user_id or "")
            begun.set()
            if scope.user_id == "user":
                await released.wait()
            yield

    monkeypatch.setattr(SessionResources, "reading", reading)
    users = url.removesuffix("/user/sessions")
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(asked(f"{users}/user/{path}")) for _ in range(5)]
        await begun.wait()
        assert (await asked(f"{users}/other/{path}")).status_code == 200
        assert reads == ["user", "other"]
        released.set()
    assert [each.result().status_code for each in waiting] == [200] * 5


async def test_a_row_has_the_turn_of_its_session(
    service: MongoSessionService, url: str
) -> None:
    """As its own route has it: one that runs, one that ended; or none."""
    for session_id in ("never", "ended", "runs"):
        await create(service, session_id)
    async with service.turn(**IDS, session_id="ended"):
        pass
    async with service.turn(**IDS, session_id="runs"):
        rows = (await asked(url)).json()["sessions"]
        turns = [await asked(f"{url}/{each}/turn") for each in ("runs", "ended")]
    assert [each.get("turn") for each in rows] == [*(it.json() for it in turns), None]
    assert [each.get("turn", {}).get("status") for each in rows] == [
        "running",
        "ended",
        None,
    ]
    assert rows[0]["turn"]["epoch"] == 1


async def test_what_was_rewound_can_be_left_out(
    service: MongoSessionService, url: str
) -> None:
    """Of pages of events, with the rewinds; by default all is listed."""
    session = await create(service, "s")
    for n, rewinds in enumerate((None, None, "i1", None)):
        event = new_event(n=n)
        event.invocation_id = f"i{n}"
        event.actions.rewind_before_invocation_id = rewinds
        await service.append_event(session, event)

    async def revisions(**query: Any) -> list[int]:
        page = (await asked(f"{url}/s/events", **query)).json()
        return [each["revision"] for each in page["events"]]

    assert await revisions() == [1, 2, 3, 4]
    assert await revisions(rewound="false") == [1, 4]
    assert await revisions(rewound="false", newest_first="true", limit=1) == [4]


@pytest.mark.limits(http_page_bytes=1000)
async def test_a_page_of_large_events_is_shorter(
    service: MongoSessionService, url: str
) -> None:
    """It ends after so many bytes, and has_more is true."""
    session = await create(service, "s")
    for _ in range(4):
        await service.append_event(session, new_event(n="x" * 600))

    page = (await asked(f"{url}/s/events")).json()

    assert [each["revision"] for each in page["events"]] == [1, 2]
    assert page["has_more"]


SENSELESS = [
    (f"{USER}/sessions", {"limit": "0"}),
    (f"{USER}/sessions", {"limit": "201"}),
    (f"{USER}/sessions", {"limit": "-1"}),
    (f"{USER}/sessions", {"order_by": "title"}),
    (f"{USER}/sessions", {"label": "env"}),
    (f"{USER}/sessions", {"page_token": "x"}),
    (f"{USER}/sessions", {"session_id": ""}),
    (EVENTS, {"limit": "0"}),
    (EVENTS, {"after_revision": "x"}),
    (EVENTS, {"before_revision": "-1"}),
    (EVENTS, {"newest_first": "perhaps"}),
]


async def test_a_list_that_makes_no_sense_is_refused(
    service: MongoSessionService, url: str, subtests: pytest.Subtests
) -> None:
    """The answer names what was wrong."""
    await create(service, "s")
    for path, query in SENSELESS:
        at = url.replace(f"{USER}/sessions", path)
        with subtests.test(path=path, **query):
            response = await asked(at, **query)
            assert response.status_code == 422
            assert response.json()["detail"]


async def test_a_list_may_be_in_the_order_of_activity(
    service: MongoSessionService, url: str
) -> None:
    """If a user's is asked for so; a tool's of an app is in order of creation."""
    first = await create(service, "first")
    await create(service, "second")
    await service.append_event(first, new_event(n=1))
    app = live_app(service, authorize=may_read)

    assert await listed(url) == ["second", "first"]
    assert await listed(url, order_by="update_time") == ["first", "second"]
    async with serving(app) as tool:
        of_app = (await asked(f"{tool}/apps/app/sessions")).json()

    assert ids(of_app) == ["second", "first"]


async def test_a_users_stream_has_the_changes_of_all_their_sessions(
    service: MongoSessionService, url: str
) -> None:
    """It begins now, and holds outlines: where and when, and no content."""
    session = await create(service, "before")
    other = await create(service, "s", user_id="other")
    stream = url.replace(f"{USER}/sessions", USER_CHANGES)
    async with Client(stream) as client:
        assert (await client.line()).startswith(":")
        await service.append_event(other, new_event(n=0))
        await service.append_event(session, new_event(n=1))
        await create(service, "new")
        await service.delete_session(**IDS, session_id="before")
        received = await client.take(3)

    assert [each.summary for each in received] == [
        ("appended", None),
        ("created", None),
        ("deleted", None),
    ]
    assert [each.data["session_id"] for each in received] == ["before", "new", "before"]
    assert received[0].data == {
        "kind": "appended",
        **IDS,
        "session_id": "before",
        "revision": 1,
        "time": session.last_update_time,
    }


async def test_a_tool_lists_the_apps_with_their_counts(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Those that hold what authorize permits; a name that is none harms nobody."""
    await create(service, "a", app_name="quiet", title="Trip")
    await create(service, "b", app_name="hidden")
    for number in range(2):
        await create(service, f"s{number}")
    broken = {"_id": {**IDS, "session_id": "x", "app_name": 7}, "revision": 0}
    admin[database].sessions.insert_one(broken)
    app = live_app(service, authorize=lambda _, *, app_name, **__: app_name != "hidden")

    async with serving(app) as url:
        listed = (await asked(f"{url}/apps")).json()

    found = {each["app_name"]: each for each in listed["apps"]}
    assert list(found) == ["app", "quiet"]
    assert (found["app"]["sessions"], found["app"]["has_more"]) == (2, False)
    assert found["app"]["latest"]["session_id"] == "s1"
    assert found["quiet"]["latest"]["title"] == "Trip"
    assert listed["within"] == {"app_name": None, "user_id": None}


@pytest.mark.parametrize("path", ["/apps", "/apps/app/sessions"])
async def test_only_a_token_shows_the_name_of_the_database(
    service: MongoSessionService, mongodb_uri: str, database: str, path: str
) -> None:
    """Users of an own app do not learn which database it has."""
    async with serving(live_app(service, authorize=may_read)) as url:
        own = (await asked(f"{url}{path}")).json()
    app = live_app(service, authorize=may_read, token=database)
    async with serving(app) as url:
        tool = (await asked(f"{url}{path}", token=database)).json()

    assert own["database"] is None
    assert tool["database"]["name"] == database
    assert tool["database"]["server"] in mongodb_uri


async def test_evaluations_are_hidden_from_lists(
    service: MongoSessionService, url: str
) -> None:
    """From those of a user, of an app and of all apps, unless they are asked for."""
    await create(service, "s")
    for session_id in ("adk-eval-session-1", "___eval___session___2"):
        await create(service, session_id)
        await create(service, session_id, app_name="evaluated")
    async with serving(live_app(service, authorize=may_read)) as tool:
        of_app = f"{tool}/apps/app/sessions"
        assert ids((await asked(of_app)).json()) == ["s"]
        assert len(ids((await asked(of_app, include_eval="true")).json())) == 3
        apps = (await asked(f"{tool}/apps")).json()["apps"]
        all_apps = (await asked(f"{tool}/apps", include_eval="true")).json()["apps"]

    assert await listed(url) == ["s"]
    assert len(await listed(url, include_eval="true")) == 3
    assert [each["app_name"] for each in apps] == ["app"]
    assert [each["app_name"] for each in all_apps] == ["app", "evaluated"]


async def test_a_tool_limited_to_an_app_shows_no_other(
    service: MongoSessionService,
) -> None:
    """Of an app, however many newer sessions others have; of no other app."""
    await create(service, "a", app_name="quiet")
    for number in range(3):
        await create(service, f"s{number}")
    app = live_app(service, authorize=may_read, app_name="quiet")

    async with serving(app) as url:
        apps = (await asked(f"{url}/apps")).json()
        alone = (await asked(f"{url}/apps/quiet/sessions", limit=1)).json()
        others = [
            (await asked(f"{url}/apps/app{path}")).status_code
            for path in ("/sessions", "/changes", "/users/user/sessions")
        ]

    assert ids(alone) == ["a"]
    assert [each["app_name"] for each in apps["apps"]] == ["quiet"]
    assert alone["within"] == {"app_name": "quiet", "user_id": None}
    assert others == [403, 403, 403]


async def test_a_tools_stream_has_permitted_sessions_only(
    service: MongoSessionService,
) -> None:
    """Sessions that are hidden from lists are hidden from the stream."""
    app = live_app(service, authorize=lambda _, *, user_id, **__: user_id != "hidden")
    async with serving(app) as url, Client(f"{url}/changes") as client:
        assert (await client.line()).startswith(":")
        await create(service, "s", user_id="hidden", state={"user:k": "hidden"})
        await create(service, "s", app_name="y")
        received = await client.next()

    assert (received.kind, received.data["app_name"]) == ("created", "y")
    assert "hidden" not in json.dumps(received.data)


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
                await asked(f"{tool}/apps/app/sessions", **query)
            await asked(f"{tool}/apps")
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
