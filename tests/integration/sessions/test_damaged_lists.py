"""Lists of sessions, one of which another tool has damaged."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpx
import pytest
from pymongo import MongoClient
from support.http_server import may_read, serving

from mongo_session_service import MongoSessionService
from mongo_session_service.http import live_app

APP, USER = "my_app", "ada"
OF_USER = {"app_name": APP, "user_id": USER}
BANG = "hunter2"
ID = {**OF_USER, "session_id": "bad"}
GOOD = {"_id": ID, "state": {}, "revision": 0, "create_time": 5.0, "update_time": 5.0}
SEARCHES: list[dict[str, Any]] = [
    {**scope, "newest_first": newest, "limit": limit}
    for scope in ({"app_name": APP}, {**OF_USER, "order_by": "update_time"})
    for newest in (True, False)
    for limit in (1, 50)
]


DAMAGES: list[dict[str, Any]] = [
    {"create_time": BANG},
    {"create_time": math.nan},
    {"create_time": None},
    {"update_time": BANG},
    {"update_time": math.inf},
    {"update_time": None},
    {"labels": {"a": BANG}},
    {"title": 5},
    {"state": [BANG]},
    {"revision": 0.5},
    {"_id": {**ID, "x": BANG}},
    {"_id": {"user_id": USER, "app_name": APP, "session_id": "bad"}},
    {"_id": OF_USER},
    {"_id": {"app_name": APP, "x": "bad"}},
    {"_id": {**ID, "user_id": 5}},
    {"_id": {**ID, "session_id": 5}},
    {"_id": {**ID, "session_id": {"a": BANG}}},
]


@pytest.fixture
async def damaged(
    service: MongoSessionService, database: str, admin: MongoClient
) -> MongoSessionService:
    """Two sessions, and around them documents that hardly one can read."""
    for each in ("one", "two"):
        await service.create_session(**OF_USER, session_id=each)
    for number, damage in enumerate(DAMAGES):
        id_ = {**ID, "session_id": f"bad{number}"}
        admin[database].sessions.insert_one({**GOOD, "_id": id_, **damage})
    return service


def _good(ids: Iterable[str]) -> list[str]:
    return sorted(each for each in ids if not each.startswith("bad"))


async def _found(service: MongoSessionService, **wanted: Any) -> list[str]:
    ids: list[str] = []
    token = None
    while True:
        page = await service.find_sessions(**wanted, page_token=token)
        ids += [each.id for each in page.sessions]
        token = page.next_page_token
        if token is None:
            return ids


async def test_a_search_finds_the_sessions_beside_a_damaged_one(
    damaged: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """On pages of any size, in any order, and with or without their state."""
    for wanted in SEARCHES:
        for with_state in (True, False):
            found = await _found(damaged, **wanted, with_state=with_state)
            assert _good(found) == ["one", "two"]

    assert BANG not in caplog.text


async def test_a_list_has_the_sessions_beside_a_damaged_one(
    damaged: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """As ADK lists an app's and a user's sessions."""
    for user_id in (USER, None):
        listed = await damaged.list_sessions(app_name=APP, user_id=user_id)
        ids = (each.id for each in listed.sessions)
        assert _good(ids) == ["one", "two"]

    assert BANG not in caplog.text


async def test_a_browser_gets_the_sessions_beside_a_damaged_one(
    damaged: MongoSessionService,
) -> None:
    """The lists over HTTP answer, and so does the search for an id."""
    app = live_app(damaged, authorize=may_read)
    async with serving(app) as url, httpx.AsyncClient(trust_env=False) as http:
        of_app = f"{url}/apps/{APP}"
        for path in ("/sessions", f"/users/{USER}/sessions"):
            response = await http.get(f"{of_app}{path}")
            assert response.status_code == 200, response.text
            ids = {each["session_id"] for each in response.json()["sessions"]}
            assert _good(ids) == ["one", "two"]
        by_id = await http.get(f"{of_app}/sessions?session_id=bad3")
        assert by_id.status_code == 200


async def test_a_damaged_session_is_named_once(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each list warns of it once, by its id."""
    admin[database].sessions.insert_one({**GOOD, "update_time": BANG, "title": BANG})
    reads: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: service.list_sessions(app_name=APP),
        lambda: service.find_sessions(app_name=APP),
        lambda: service.find_sessions(app_name=APP, with_state=False),
        lambda: service.find_sessions(**OF_USER, order_by="update_time"),
    )
    for read in reads:
        caplog.clear()
        assert (await read()).sessions == []
        (warning,) = caplog.messages
        assert warning.startswith("A session is missing from a list. Session 'bad' is")
        assert BANG not in warning
