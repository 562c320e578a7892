"""How a stream of changes over HTTP ends, and what is left of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import Any

import httpx
import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from google.genai import types
from pymongo import MongoClient
from starlette.types import Message, Receive, Scope, Send
from support import http_paths
from support.failpoints import failing, victim_uri
from support.http_paths import CHANGES, app_of
from support.http_server import PATIENCE, Client, serving, unread
from support.subscriptions import SESSION, new_event, until
from support.tcp_proxy import Proxy

from mongo_session_service import MongoSessionService


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    return await service.create_session(**SESSION)


def read_to_end(client: socket.socket) -> None:
    """Read until the end of a chunked answer."""
    end = b""
    while end != b"0\r\n\r\n":
        read = client.recv(2**20)
        assert read
        end = (end + read)[-5:]


async def flood(service: MongoSessionService, session: Session, until_: Any) -> int:
    """Append large events until a condition holds; gives how many it took."""
    part = types.Part(text="x" * 500_000)
    while not until_():
        event = Event(author="x", content=types.ModelContent(part))
        await service.append_event(session, event)
        assert len(session.events) < 200
    return len(session.events)


@pytest.mark.usefixtures("session")
async def test_a_deleted_session_ends_the_stream_for_good(
    service: MongoSessionService,
) -> None:
    """The stream ends after deleted; who comes back is refused, and so stays away."""
    async with serving(app_of(service)) as url:
        async with Client(f"{url}{CHANGES}") as client:
            await client.next()
            await service.delete_session(**SESSION)
            received = await client.rest()
        async with Client(f"{url}{CHANGES}", {"Last-Event-ID": "0"}) as client:
            assert client.response.status_code == 404

    assert [each.kind for each in received] == ["deleted"]


@pytest.mark.usefixtures("session")
@pytest.mark.limits(http_heartbeat_seconds=0.05)
async def test_an_idle_stream_has_heartbeats(
    service: MongoSessionService,
) -> None:
    """A comment comes at once and again and again, which no client takes for more."""
    async with (
        serving(app_of(service)) as url,
        Client(f"{url}{CHANGES}") as client,
    ):
        while len(client.comments) < 4:
            await client.line()

    assert set(client.comments) == {": heartbeat 0.05"}


async def test_a_large_event_is_sent_in_pieces(
    service: MongoSessionService, session: Session
) -> None:
    """None takes much of the server's memory; it is there once, among others."""
    for number in (1, 400_000, 2):
        await service.append_event(session, new_event(n="x" * number))
    app = app_of(service)
    sent: list[bytes] = []

    async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
        async def note(message: Message) -> None:
            sent.append(message.get("body", b""))
            await send(message)

        await app(scope, receive, note)

    async with (
        serving(recorded) as url,
        Client(f"{url}{CHANGES}", history="all") as client,
    ):
        snapshot, *received = await client.take(4)

    assert snapshot.kind == "snapshot"
    assert [len(each.data["state_delta"]["n"]) for each in received] == [1, 400_000, 2]
    assert max(map(len, sent)) < 140_000


@pytest.mark.parametrize("query", [{}, {"history": "all"}], ids=str)
@pytest.mark.usefixtures("session")
async def test_a_client_that_leaves_frees_its_subscription(
    service: MongoSessionService, query: dict[str, str]
) -> None:
    """A closed connection leaves nothing behind, even if nothing happens next."""
    async with serving(app_of(service)) as url:
        async with Client(f"{url}{CHANGES}", **query) as client:
            await client.next()
            await until(lambda: service.feed_stats().subscriptions == 1)
        await until(lambda: service.feed_stats().subscriptions == 0)


@pytest.mark.limits(inbox_changes=8)
async def test_a_slow_client_is_ended_and_comes_back(
    service: MongoSessionService, session: Session
) -> None:
    """What a slow client did not get is there when it comes back; others go on."""
    async with serving(app_of(service)) as url:
        slow = Client(f"{url}{CHANGES}")
        async with slow, Client(f"{url}{CHANGES}") as quick:
            await slow.next()
            await quick.next()
            appended = 0
            while not service.feed_stats().drops:
                text = types.Part(text="x" * 1_000_000)
                event = Event(author="x", content=types.ModelContent(text))
                await service.append_event(session, event)
                appended += 1
                assert (await quick.next()).summary == ("appended", str(appended))
                assert appended < 60
            *read, trouble = await slow.rest()
        last = len(read)
        async with Client(f"{url}{CHANGES}", {"Last-Event-ID": str(last)}) as client:
            read += await client.take(appended - last)

    assert trouble.kind == "trouble"
    assert trouble.data == {"reason": "This client read too slowly."}
    assert [each.data["revision"] for each in read] == [*range(1, appended + 1)]


@pytest.mark.limits(http_unread_seconds=0.3, http_unread_bytes=10**9)
async def test_a_client_that_never_reads_is_cut_off(
    service: MongoSessionService, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once; should it read after all, it finds the end."""
    caplog.set_level("INFO")
    async with serving(app_of(service), log_level="info") as url:
        with closing(unread(url, f"{CHANGES}?history=all")) as client:
            await until(lambda: service.feed_stats().subscriptions == 1)
            await flood(
                service, session, lambda: service.feed_stats().subscriptions == 0
            )
            client.settimeout(PATIENCE)
            await asyncio.to_thread(read_to_end, client)
    ours = [each for each in caplog.records if each.name.startswith("mongo_session")]
    theirs = [each for each in caplog.records if each.name == "uvicorn.error"]

    assert [each.getMessage() for each in ours] == [
        "A client's stream ends. It did not read."
    ]
    assert [each for each in theirs if each.levelname in {"WARNING", "ERROR"}] == []


async def test_a_stream_that_fails_ends_with_an_error_event(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """It holds no stored value, and a time after which to return."""
    async with (
        MongoSessionService(victim_uri(mongodb_uri), database=database) as service,
        serving(app_of(service)) as url,
    ):
        await service.create_session(**SESSION)
        async with Client(f"{url}{CHANGES}") as client:
            await client.next()
            with failing(admin, "getMore", errorCode=2):
                received = await client.rest()

    assert [each.summary for each in received] == [("trouble", None)]
    assert received[0].data == {
        "reason": "Sessions cannot be read or written; see the server's log."
    }
    assert client.retry == 60_000


@pytest.mark.usefixtures("session")
async def test_a_closed_service_ends_its_streams(
    service: MongoSessionService,
) -> None:
    """A service that closes lets its clients go, who may come back."""
    async with serving(app_of(service)) as url, Client(f"{url}{CHANGES}") as client:
        await client.next()
        await service.close()

        assert await client.rest() == []


@pytest.mark.limits(http_answer_seconds=0.3)
async def test_a_slow_mongodb_is_answered_503_in_time(
    victim: MongoSessionService, admin: MongoClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing stays open; the log has the cause."""
    session = await victim.create_session(**SESSION)
    await victim.append_event(session, new_event(a=1))
    stuck = {"blockConnection": True, "blockTimeMS": 1_500}

    async with serving(app_of(victim)) as url, httpx.AsyncClient() as http:
        with failing(admin, "aggregate", **stuck):
            response = await http.get(f"{url}{CHANGES}")
        await until(lambda: victim.feed_stats().subscriptions == 0)

    assert response.status_code == 503
    assert "503. MongoDB is unavailable: no answer within 0.3 seconds." in caplog.text


@pytest.mark.usefixtures("session")
async def test_an_outage_is_logged_once_with_its_cause(
    service: MongoSessionService, admin: MongoClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Its begin as a warning, not each request; its end as information."""
    caplog.set_level("INFO", "mongo_session_service.http")
    async with Proxy(*admin.address) as proxy:
        uri = f"{proxy.uri}&serverSelectionTimeoutMS=100"
        behind = MongoSessionService(uri, database=service.database_name)
        async with (
            behind,
            serving(app_of(behind)) as url,
            httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http,
        ):
            target = f"{url}{http_paths.SESSION}"
            assert (await http.get(target)).status_code == 200
            for _ in range(2):
                await proxy.close()
                for _ in range(2):
                    answer = await http.get(target)
                    assert answer.status_code == 503
                    assert answer.headers["retry-after"] == "10"
                    assert answer.json()["detail"] == "MongoDB is unavailable."
                await proxy.open()
                async with asyncio.timeout(PATIENCE):
                    while (await http.get(target)).status_code != 200:
                        pass

    began, ended, *again = caplog.records
    assert (began.levelname, ended.levelname) == ("WARNING", "INFO")
    assert "503. MongoDB is unavailable: 127.0.0.1:" in began.message
    assert "Connection refused" in began.message
    assert ended.message == "MongoDB answers again."
    assert [each.message for each in again] == [began.message, ended.message]


@pytest.mark.usefixtures("session")
async def test_the_end_of_an_unread_stream_may_fail(
    service: MongoSessionService,
) -> None:
    """ASGI lets a server raise an error once the client has left; none is logged."""
    has_left, sent = asyncio.Event(), []

    async def receive() -> Message:
        await has_left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if has_left.is_set():
            raise ConnectionResetError
        sent.append(message)
        if b"event: snapshot" in message.get("body", b""):
            has_left.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "method": "GET",
        "path": CHANGES,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
    }
    await app_of(service)(scope, receive, send)

    assert sent[0]["status"] == 200
