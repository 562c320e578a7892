"""Who waits for clients over HTTP that read slowly, and how long these may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing

import httpx
import pytest
from google.adk.events import Event
from google.genai import types
from support.http_paths import CHANGES, EVENTS, SESSION, app_of
from support.http_server import PATIENCE, Client, serving, unread
from support.subscriptions import SESSION as IDS

from mongo_session_service import MongoSessionService

OTHER = {**IDS, "user_id": "other"}

pytestmark = pytest.mark.limits(http_user_pages=1, http_answer_seconds=2.0)


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Where two users' sessions are served, each with two large events."""
    for ids in (IDS, OTHER):
        session = await service.create_session(**ids)
        for _ in range(2):
            content = types.ModelContent("x" * 5_000_000)
            await service.append_event(session, Event(author="x", content=content))
    async with serving(app_of(service)) as url:
        yield url


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client for requests that are answered at once."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        yield http


async def until_answered(http: httpx.AsyncClient, url: str) -> None:
    """Return once a request is answered, which a busy machine may not do in time."""
    async with asyncio.timeout(PATIENCE):
        while (await http.get(url)).status_code == 503:
            pass


@pytest.mark.parametrize("path", [SESSION, EVENTS, f"{CHANGES}?history=all"])
async def test_a_slow_reader_delays_its_own_user_alone(
    url: str, http: httpx.AsyncClient, path: str
) -> None:
    """Others are answered; the user is sent to come back, and answered afterwards."""
    others = f"{url}{EVENTS.replace('/users/user/', '/users/other/')}"
    with closing(unread(url, path)) as client:
        await asyncio.to_thread(client.recv, 1)
        refused = [await http.get(f"{url}{each}") for each in (EVENTS, CHANGES)]
        await until_answered(http, others)
    await until_answered(http, f"{url}{EVENTS}")

    assert [each.status_code for each in refused] == [503, 503]
    assert refused[0].headers["retry-after"] == "10"
    assert all("have not been read" in each.json()["detail"] for each in refused)


async def test_a_stream_whose_history_is_read_holds_nothing(
    url: str, http: httpx.AsyncClient
) -> None:
    """The user's other requests are answered while it stays open."""
    async with Client(f"{url}{CHANGES}", history="all") as client:
        received = await client.take(3)
        await until_answered(http, f"{url}{EVENTS}")

    assert [each.kind for each in received] == ["snapshot", "appended", "appended"]


@pytest.mark.parametrize("path", [SESSION, EVENTS, f"{CHANGES}?history=all"])
@pytest.mark.limits(http_unread_seconds=0.5, http_least_rate=10**9)
async def test_a_reader_that_takes_too_little_is_cut_off(
    url: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it never stops reading for long."""
    caplog.set_level("INFO", "mongo_session_service")
    with closing(unread(url, path)) as client:
        began = time.monotonic()
        while not caplog.messages:
            await asyncio.to_thread(client.recv, 256)
            assert time.monotonic() - began < PATIENCE

    assert caplog.messages[0].endswith("It did not read.")
