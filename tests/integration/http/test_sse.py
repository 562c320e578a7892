"""A session's changes over HTTP, from a real server to real clients."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.sessions import Session
from starlette.applications import Starlette
from starlette.requests import Request
from support.http_server import Client, serving, until
from support.subscriptions import IDS, SESSION, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.codec import public_view
from mongo_session_service.http import changes_route, sse
from mongo_session_service.model.records import SessionKey


def everyone(_: Request, __: SessionKey) -> bool:
    return True


def app_of(service: MongoSessionService, **options: Any) -> Starlette:
    options = {"authorize": everyone} | options
    return Starlette(routes=[changes_route(service, **options)])


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    """A session with two events."""
    session = await service.create_session(**SESSION, state={"a": 0, "user:b": 0})
    await append(service, session, a=1)
    await append(service, session, a=2)
    return session


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Where changes are served to everyone."""
    async with serving(app_of(service)) as url:
        yield f"{url}/changes"


async def append(
    service: MongoSessionService, session: Session, /, **delta: Any
) -> None:
    await service.append_event(session, new_event("x", **delta))


async def refused(url: str, **query: Any) -> httpx.Response:
    """The answer to a request that gets no stream."""
    headers = {"Last-Event-ID": query.pop("last")} if "last" in query else {}
    async with httpx.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.get(url, params=SESSION | query, headers=headers)


async def test_a_snapshot_comes_first_and_then_what_happens(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """A stream is a snapshot, then each change with its revision as its id."""
    async with Client(url) as client:
        snapshot = await client.next()
        await append(service, session, a=3, app_c=1)
        appended = await client.next()
        other = await service.create_session(**IDS)
        await append(service, other, user_b=7)
        state = await client.next()

    assert snapshot.summary == ("snapshot", "2")
    assert snapshot.data["state"] == {"a": 2, "user:b": 0}
    assert appended.summary == ("appended", "3")
    assert appended.data["state_delta"] == {"a": 3, "app:c": 1}
    assert appended.data["event"] == json.loads(
        session.events[-1].model_dump_json(exclude_none=True, by_alias=True)
    )
    assert state.summary == ("state", None)
    assert state.data["state_delta"] == {"user:b": 7}


@pytest.mark.usefixtures("session")
async def test_headers_keep_proxies_from_holding_changes_back(url: str) -> None:
    """The answer says what it is, and that nobody may store or collect it."""
    async with Client(url) as client:
        headers = client.response.headers

    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


async def test_last_event_id_goes_on_without_gap_or_repetition(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """Who comes back gets every event after the last one, and no other."""
    async with Client(url) as client:
        await client.next()
    for number in range(5):
        await append(service, session, a=number)
    async with Client(url, {"Last-Event-ID": "3"}) as client:
        told = await client.take(4)
        assert [await client.next()][0].kind == "state"
        await append(service, session, a=99)
        told.append(await client.next())
        assert client.retry == 2000

    assert [each.summary for each in told] == [
        ("appended", str(revision)) for revision in (4, 5, 6, 7, 8)
    ]


async def test_a_log_that_was_trimmed(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """Who comes back from before it gets a snapshot; its history is what is left."""
    for number in range(3, 6):
        await append(service, session, a=number)
    await service.trim_session(**SESSION, keep_last=2)

    async with Client(url, {"Last-Event-ID": "1"}) as client:
        assert (await client.next()).summary == ("snapshot", "5")
    for headers in ({}, {"Last-Event-ID": "1"}):
        async with Client(url, headers, history="all") as client:
            told = [each.summary for each in await client.take(3)]
        assert told == [("snapshot", None), ("appended", "4"), ("appended", "5")]
    answer = await refused(url, after_revision=2)
    assert answer.status_code == 400
    assert "begins after revision 3" in answer.text
    assert (await refused(url, at_revision=2)).status_code == 400
    assert (await refused(url, at_revision=3)).json()["state"] == {"a": 3, "user:b": 0}


@pytest.mark.usefixtures("session")
async def test_after_revision_goes_on_as_well(url: str) -> None:
    """A client that cannot set headers names the revision in its query."""
    async with Client(url, after_revision=1) as client:
        assert (await client.next()).summary == ("appended", "2")
    async with Client(url, {"Last-Event-ID": "1"}, after_revision=0) as client:
        assert (await client.next()).summary == ("appended", "2")


async def test_history_is_told_whole_after_the_snapshot(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """With history=all the snapshot has no id, and every event follows in order."""
    async with Client(url, history="all") as client:
        told = await client.take(4)
        await append(service, session, a=3)
        told.append(await client.next())
    async with Client(url, {"Last-Event-ID": "1"}, history="all") as client:
        back = await client.next()

    assert [each.summary for each in told] == [
        ("snapshot", None),
        ("appended", "1"),
        ("appended", "2"),
        ("state", None),
        ("appended", "3"),
    ]
    assert told[0].data["revision"] == 2
    assert back.summary == ("appended", "2")


@pytest.mark.parametrize("last", ["3", "9" * 18, "9" * 40, "x", "-1", "1.5", "²"])
@pytest.mark.usefixtures("session")
async def test_an_impossible_last_event_id_begins_anew(url: str, last: str) -> None:
    """A browser whose id is rubbish, or from the future, starts over."""
    async with Client(url, {"Last-Event-ID": last.encode()}) as client:
        assert (await client.next()).summary == ("snapshot", "2")


@pytest.mark.parametrize(
    "query",
    [
        {"app_name": ""},
        {"session_id": "  "},
        {"after_revision": "x"},
        {"after_revision": "-1"},
        {"after_revision": "9" * 30},
        {"after_revision": "3"},
        {"history": "some"},
        {"history": "all", "after_revision": "1"},
    ],
    ids=str,
)
@pytest.mark.usefixtures("session")
async def test_a_request_that_makes_no_sense_is_refused(
    url: str, query: dict[str, str]
) -> None:
    """Bad ids, and a revision that is none or in the future, get 400."""
    response = await refused(url, **query)

    assert response.status_code == 400
    assert response.json()["detail"]


@pytest.mark.usefixtures("session")
async def test_an_unknown_session_is_not_found(url: str) -> None:
    """A session that is not stored is answered with 404, whatever was seen of it."""
    answers = [await refused(url, session_id="no"), await refused(url, user_id="no")]
    answers.append(await refused(url, session_id="no", last="7", history="all"))

    assert [each.status_code for each in answers] == [404] * 3
    assert answers[0].json() == {"detail": "There is no such session."}


async def test_one_change_is_serialised_once(
    service: MongoSessionService,
    session: Session,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many clients get a change, its JSON is made once."""
    made = []
    original = public_view.json_text

    def counted(fields: Any) -> str:
        made.append(fields["kind"])
        return original(fields)

    monkeypatch.setattr(public_view, "json_text", counted)
    clients = [Client(url) for _ in range(25)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(client.__aenter__() for client in clients))
        await asyncio.gather(*(client.next() for client in clients))
        await append(service, session, a=3)
        told = await asyncio.gather(*(client.next() for client in clients))
        await asyncio.gather(*(client.__aexit__() for client in clients))

    assert {each.summary for each in told} == {("appended", "3")}
    assert made.count("appended") == 1


async def test_it_mounts_into_adks_own_server(
    service: MongoSessionService, session: Session, tmp_path: Path
) -> None:
    """The route works beside ADK's REST API, in the app ADK makes."""
    app = get_fast_api_app(agents_dir=str(tmp_path), web=False)
    app.router.routes.append(changes_route(service, authorize=everyone))

    async with serving(app) as url, Client(f"{url}/changes") as client:
        assert (await client.next()).summary == ("snapshot", "2")
        await append(service, session, a=3)
        assert (await client.next()).summary == ("appended", "3")
        assert (await refused(f"{url}/list-apps")).json() == []


async def test_any_id_can_be_named(service: MongoSessionService, url: str) -> None:
    """Ids hold any character, and arrive as they are."""
    ids = {"app_name": "a/b?c=d&e", "user_id": "ü #%2F\n\x00", "session_id": "😀 ../s"}
    await service.create_session(**ids)

    async with Client(url, **ids) as client:
        snapshot = await client.next()

    assert {name: snapshot.data[name] for name in ids} == ids


def test_the_extra_is_asked_for_by_name() -> None:
    """Without sse-starlette the import says what to install."""
    code = f"import sys; sys.modules['sse_starlette'] = None; import {sse.__name__}"

    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert "pip install 'mongo-session-service[sse]'" in ran.stderr
    assert ran.returncode == 1


async def test_nothing_but_revisions_names_a_place(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """Resume tokens stay on the server: an id is a number, and no change holds one."""
    async with Client(url, history="all") as client:
        await append(service, session, a=3)
        told = await client.take(5)
    await until(lambda: service.feed_stats().subscriptions == 0)

    assert {each.id for each in told} == {None, "1", "2", "3"}
    assert not any("_data" in json.dumps(each.data) for each in told)
