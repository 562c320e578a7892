"""A session's changes over HTTP, from a real server to real clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from google.adk.sessions import Session
from support.http_paths import CHANGES, USER, USER_CHANGES, app_of
from support.http_server import Client, serving
from support.subscriptions import IDS, SESSION, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.codec import public_view


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    session = await service.create_session(**SESSION, state={"a": 0, "user:b": 0})
    for number in (1, 2):
        await service.append_event(session, new_event(a=number))
    return session


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Where sessions are served to everyone."""
    async with serving(app_of(service)) as url:
        yield url


async def refused(url: str, last: str = "", **query: Any) -> httpx.Response:
    """The answer to a request that gets no stream."""
    headers = {"Last-Event-ID": last.encode()} if last else {}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        return await http.get(url, params=query, headers=headers)


async def test_a_snapshot_comes_first_and_then_what_happens(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """A stream is a snapshot, then each change with its revision as its id."""
    async with Client(f"{url}{CHANGES}") as client:
        snapshot = await client.next()
        await service.append_event(session, new_event(a=3, app_c=1))
        appended = await client.next()
        other = await service.create_session(**IDS)
        await service.append_event(other, new_event(user_b=7))
        state = await client.next()
        headers = client.response.headers

    assert snapshot.summary == ("snapshot", "2")
    assert snapshot.data["state"] == {"a": 2, "user:b": 0}
    assert appended.summary == ("appended", "3")
    assert appended.data["state_delta"] == {"a": 3, "app:c": 1}
    assert appended.data["event"] == json.loads(
        session.events[-1].model_dump_json(exclude_none=True, by_alias=True)
    )
    assert state.summary == ("state", None)
    assert state.data["state_delta"] == {"user:b": 7}
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


async def test_last_event_id_goes_on_without_gap_or_repetition(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """Who comes back gets every event after the last one, and no other."""
    for number in range(5):
        await service.append_event(session, new_event(a=number))
    async with Client(f"{url}{CHANGES}", {"Last-Event-ID": "3"}) as client:
        received = await client.take(4)
        assert [await client.next()][0].kind == "state"
        await service.append_event(session, new_event(a=99))
        received.append(await client.next())
        assert client.retry == 2000
    async with Client(
        f"{url}{CHANGES}", {"Last-Event-ID": "1"}, after_revision=0
    ) as client:
        assert (await client.next()).summary == ("appended", "2")

    assert [each.summary for each in received] == [
        ("appended", str(revision)) for revision in (4, 5, 6, 7, 8)
    ]


async def test_a_log_that_was_trimmed(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """Who comes back from before it gets a snapshot; its history is what is left."""
    for number in range(3, 6):
        await service.append_event(session, new_event(a=number))
    await service.trim_session(**SESSION, keep_last=2)

    async with Client(f"{url}{CHANGES}", {"Last-Event-ID": "1"}) as client:
        assert (await client.next()).summary == ("snapshot", "5")
    for headers in ({}, {"Last-Event-ID": "1"}):
        async with Client(f"{url}{CHANGES}", headers, history="all") as client:
            received = [each.summary for each in await client.take(3)]
        assert received == [("snapshot", None), ("appended", "4"), ("appended", "5")]
    answer = await refused(f"{url}{CHANGES}", after_revision=2)
    assert answer.status_code == 422
    assert "begins after revision 3" in answer.json()["detail"]


async def test_the_whole_history_follows_the_snapshot(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """With history=all the snapshot has no id, and every event follows in order."""
    async with Client(f"{url}{CHANGES}", history="all") as client:
        received = await client.take(4)
        await service.append_event(session, new_event(a=3))
        received.append(await client.next())
    async with Client(
        f"{url}{CHANGES}", {"Last-Event-ID": "1"}, history="all"
    ) as client:
        back = await client.next()

    assert [each.summary for each in received] == [
        ("snapshot", None),
        ("appended", "1"),
        ("appended", "2"),
        ("state", None),
        ("appended", "3"),
    ]
    assert received[0].data["revision"] == 2
    assert back.summary == ("appended", "2")


async def test_one_stream_has_a_users_sessions_and_the_content_of_one(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """Outlines of all others, all of the one, and an id that resumes after it."""
    stream = f"{url}{USER_CHANGES}"
    async with Client(stream, session_id="s") as client:
        first = await client.next()
        other = await service.create_session(**IDS, session_id="o", state={"k": 1})
        created = await client.next()
        await service.append_event(session, new_event(a=3))
        appended = await client.next()
        await service.append_event(other, new_event(k=2))
        outline = await client.next()
        await service.update_session(**IDS, session_id="o", title="Trip")
        renamed = await client.next()
    await service.append_event(session, new_event(a=4))
    async with Client(
        stream, {"Last-Event-ID": appended.id or ""}, session_id="s"
    ) as client:
        missed = await client.next()
        assert (await client.next()).kind == "state"
        await service.delete_session(**SESSION)
        assert (await client.next()).kind == "deleted"
        await service.append_event(other, new_event(k=3))
        received = await client.next()
    async with Client(stream, {"Last-Event-ID": "4"}, session_id="s") as client:
        assert (await client.next()).kind == "deleted"

    assert first.summary == ("snapshot", "2")
    assert appended.data["state_delta"] == {"a": 3}
    assert (created.kind, renamed.data["title"]) == ("created", "Trip")
    assert outline.summary == ("appended", None)
    assert outline.data["session_id"] == "o"
    assert not outline.data.keys() & {"event", "state", "state_delta"}
    assert missed.summary == ("appended", "4")
    assert received.data["session_id"] == "o"


async def test_evaluations_are_hidden_from_a_users_stream(
    service: MongoSessionService, url: str
) -> None:
    """What ADK's evaluations do is sent to those who ask for it."""
    stream = f"{url}{USER_CHANGES}"
    async with Client(stream) as client, Client(stream, include_eval="true") as all_of:
        await client.line()
        await all_of.line()
        for session_id in ("adk-eval-session-1", "___eval___session___2", "s"):
            await service.create_session(**IDS, session_id=session_id)
        received = [(await client.next()).data["session_id"]]
        everything = [each.data["session_id"] for each in await all_of.take(3)]

    assert received == ["s"]
    assert everything == ["adk-eval-session-1", "___eval___session___2", "s"]


@pytest.mark.parametrize("last", ["3", "9" * 18, "1-2-3"])
@pytest.mark.usefixtures("session")
async def test_an_id_from_the_future_begins_anew(url: str, last: str) -> None:
    """As a browser's whose session was made anew; one of an earlier release, too."""
    for stream, query in ((CHANGES, {}), (USER_CHANGES, {"session_id": "s"})):
        async with Client(f"{url}{stream}", {"Last-Event-ID": last}, **query) as client:
            assert (await client.next()).summary == ("snapshot", "2")


@pytest.mark.parametrize(
    ("query", "last"),
    [
        ({"after_revision": "x"}, ""),
        ({"after_revision": "-1"}, ""),
        ({"after_revision": "9" * 30}, ""),
        ({"after_revision": "3"}, ""),
        ({"history": "some"}, ""),
        ({"history": "all", "after_revision": "1"}, ""),
        ({"partials": "often"}, ""),
        *(({}, last) for last in ("9" * 40, "x", "-1", "1.5", "²", "1-2", "1-2-3-4")),
    ],
    ids=str,
)
@pytest.mark.usefixtures("session")
async def test_a_stream_that_makes_no_sense_is_refused(
    url: str, query: dict[str, Any], last: str
) -> None:
    """Beginnings that are none, and ids that are forged."""
    for stream, more in ((CHANGES, {}), (USER_CHANGES, {"session_id": "s"})):
        response = await refused(f"{url}{stream}", last, **query, **more)

        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"]


async def test_an_unknown_session_is_not_found(url: str) -> None:
    """A session that is not stored is answered with 404, whatever was seen of it."""
    for answer in (
        await refused(f"{url}{CHANGES}"),
        await refused(f"{url}{CHANGES}", "7", history="all"),
        await refused(f"{url}{USER_CHANGES}", session_id="s"),
    ):
        assert answer.status_code == 404
        assert answer.json() == {
            "type": "urn:mongo-session-service:no-session",
            "title": "Not Found",
            "status": 404,
            "detail": "There is no such session.",
        }


async def test_one_change_is_serialised_once(
    service: MongoSessionService,
    session: Session,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many clients get a change, its JSON is made once."""
    kinds: list[Any] = []
    encode = public_view.json_text

    def spy(fields: Any) -> str:
        kinds.append(fields.get("kind"))
        return encode(fields)

    async with Client(f"{url}{CHANGES}") as one, Client(f"{url}{CHANGES}") as other:
        await one.next()
        await other.next()
        monkeypatch.setattr(public_view, "json_text", spy)
        await service.append_event(session, new_event(a=3))
        await one.next()
        await other.next()

    assert kinds == ["appended"]


async def test_any_id_can_be_named(service: MongoSessionService, url: str) -> None:
    """Ids hold any character, slashes as well, and arrive as they are."""
    id_ = "a/b?c&d=e#f%2Fg é"
    await service.create_session(**IDS, session_id=id_)
    path = f"{USER}/sessions/{quote(id_, safe='')}"
    async with Client(f"{url}{path}/changes") as client:
        assert (await client.next()).data["session_id"] == id_


def test_the_extra_is_asked_for_by_name() -> None:
    """Without sse-starlette the import names what to install."""
    program = (
        "import sys; sys.modules['sse_starlette'] = None\n"
        "import mongo_session_service.http"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "pip install 'mongo-session-service[sse]'" in done.stderr


@pytest.mark.daily(4)
@pytest.mark.parametrize("count", [0, 2, 5])
@pytest.mark.parametrize("query", [{}, {"history": "all"}])
@pytest.mark.parametrize("stream", [CHANGES, USER_CHANGES])
async def test_a_session_made_anew_is_told_from_the_former_one(
    service: MongoSessionService,
    session: Session,
    url: str,
    stream: str,
    query: dict[str, str],
    count: int,
) -> None:
    """A browser that comes back receives deleted, and the new one from its begin."""
    one = query | ({"session_id": "s"} if stream == USER_CHANGES else {})
    async with Client(f"{url}{stream}", **one) as client:
        last = (await client.take(2 if query else 1))[-1].id
    await service.delete_session(**SESSION)
    session = await service.create_session(**SESSION, state={"new": True})
    for number in range(count):
        await service.append_event(session, new_event(n=number))
    async with Client(f"{url}{stream}", {"Last-Event-ID": last or ""}, **one) as client:
        deleted, snapshot, *events = await client.take(2 + (count if query else 0))
        await service.append_event(session, new_event(n="more"))
        while (more := await client.next()).kind != "appended":
            pass
    assert deleted.summary == ("deleted", None)
    assert snapshot.summary == ("snapshot", None if query else str(count))
    assert snapshot.data["state"]["new"]
    assert [each.data["revision"] for each in events] == [*range(1, len(events) + 1)]
    assert more.data["state_delta"] == {"n": "more"}


@pytest.mark.usefixtures("session")
async def test_a_client_looks_back_at_its_own_session(
    service: MongoSessionService, url: str
) -> None:
    """With the id of an event in place of a revision: 404 once another has its id."""
    async with Client(f"{url}{CHANGES}") as client:
        place = (await client.next()).id
    one = f"{url}{CHANGES.removesuffix('/changes')}"
    asked = ((one, "at_revision"), (f"{one}/events", "before_revision"))
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for address, name in asked:
            assert (await http.get(address, params={name: place})).status_code == 200
        await service.delete_session(**SESSION)
        await service.create_session(**SESSION)
        for address, name in asked:
            assert (await http.get(address, params={name: place})).status_code == 404
            wrong = await http.get(address, params={name: f"{place}0"})
            assert wrong.status_code == 422


async def test_a_users_stream_goes_on_with_a_session_made_anew(
    service: MongoSessionService, session: Session, url: str
) -> None:
    """After the end of its content, in outlines as of any other."""
    async with Client(f"{url}{USER_CHANGES}", session_id="s") as client:
        await client.next()
        await service.delete_session(**SESSION)
        session = await service.create_session(**SESSION)
        await service.append_event(session, new_event(a=1))
        received = [each.summary for each in await client.take(3)]
    assert received == [("deleted", None), ("created", None), ("appended", None)]
