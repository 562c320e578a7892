"""What clients over HTTP that read share of a service's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import httpx
import pytest
from google.adk.events import Event
from google.genai import types
from support.http_paths import CHANGES, EVENTS, app_of
from support.http_server import PATIENCE, Client, serving, unread
from support.subscriptions import SESSION

from mongo_session_service import MongoSessionService

pytestmark = pytest.mark.limits(
    http_held_bytes=1_000_000, http_reading_bytes=1_000_000, http_answer_seconds=0.5
)


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Where a session is served whose two events are larger than the budget."""
    session = await service.create_session(**SESSION)
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


@pytest.mark.parametrize("path", [EVENTS, f"{CHANGES}?history=all"])
async def test_others_wait_for_who_does_not_read(
    url: str, http: httpx.AsyncClient, path: str
) -> None:
    """Not for ever: they are told to come back, and answered once it has left."""
    with closing(unread(url, path)) as client:
        await asyncio.to_thread(client.recv, 1)
        refused = [await http.get(f"{url}{each}") for each in (EVENTS, CHANGES)]
    await until_answered(http, f"{url}{EVENTS}")

    assert [each.status_code for each in refused] == [503, 503]
    assert refused[0].headers["retry-after"] == "10"


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        ("all", ["snapshot", "appended", "appended"]),
        ("newest_first", ["snapshot", "earlier", "earlier", "beginning"]),
    ],
)
async def test_a_stream_whose_history_is_read_holds_nothing(
    url: str, http: httpx.AsyncClient, history: str, kinds: list[str]
) -> None:
    """What it had of the budget is there for others, while it stays open."""
    async with Client(f"{url}{CHANGES}", history=history) as client:
        told = await client.take(len(kinds))
        await until_answered(http, f"{url}{EVENTS}")

    assert [each.kind for each in told] == kinds
