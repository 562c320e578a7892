"""Who waits for clients over HTTP that read slowly, and how long these may take."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing

import httpx
import pytest
from google.adk.events import Event
from google.genai import types
from support.http_paths import CHANGES, EVENTS, SESSION, USER, app_of
from support.http_server import PATIENCE, Client, serving, unread
from support.subscriptions import SESSION as IDS
from support.subscriptions import until

from mongo_session_service import Change, MongoSessionService

OTHER = {**IDS, "user_id": "other"}

ASTRAL = "\N{GRINNING FACE}"
"""Beside it, a character has four bytes in memory."""


@pytest.fixture
async def url(service: MongoSessionService) -> AsyncIterator[str]:
    """Where two users' sessions are served, each with two large events."""
    for ids in (IDS, OTHER):
        session = await service.create_session(**ids)
        for _ in range(2):
            content = types.ModelContent("x" * 5_000_000 + ASTRAL)
            await service.append_event(session, Event(author="x", content=content))
    async with serving(app_of(service)) as url:
        yield url


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client for requests that are answered at once."""
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        yield http


@pytest.mark.long
@pytest.mark.daily(1)
@pytest.mark.parametrize("path", [SESSION, EVENTS, f"{CHANGES}?history=all"])
async def test_a_slow_reader_delays_nobody(
    url: str, http: httpx.AsyncClient, path: str
) -> None:
    """Neither other users nor its own."""
    others = EVENTS.replace("/users/user/", "/users/other/")
    with ExitStack() as clients:
        for _ in range(3):
            slow = clients.enter_context(closing(unread(url, path)))
            await asyncio.to_thread(slow.recv, 1)
        answers = [await http.get(f"{url}{each}") for each in (others, EVENTS, SESSION)]
        async with Client(f"{url}{CHANGES}", history="all") as client:
            received = await client.take(3)

    assert [each.status_code for each in answers] == [200] * 3
    assert len(answers[1].json()["events"]) == 1
    assert len(answers[2].json()["events"]) == len(received) - 1 == 2


async def test_a_stream_whose_history_is_read_holds_nothing(url: str) -> None:
    """However large the last event is."""

    def is_change(it: object) -> bool:
        return issubclass(type(it), Change)  # `isinstance` asks a proxy of what is gone

    async with Client(f"{url}{CHANGES}", history="all") as client:
        received = await client.take(3)
        await until(lambda: not any(map(is_change, gc.get_objects())))

    assert [each.kind for each in received] == ["snapshot", "appended", "appended"]


@pytest.mark.parametrize(
    "path", [SESSION, EVENTS, f"{CHANGES}?history=all", f"{USER}/sessions?limit=200"]
)
@pytest.mark.limits(http_unread_seconds=0.01, http_page_bytes=10**8)
async def test_a_reader_that_takes_too_little_is_cut_off(
    service: MongoSessionService,
    url: str,
    path: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Though it never stops reading for long."""
    if "limit" in path:  # as large as labels make a list
        ids = {name: IDS[name] for name in ("app_name", "user_id")}
        labels = {f"{n:0256}": "x" * 256 for n in range(64)}
        creating = (service.create_session(**ids, labels=labels) for _ in range(199))
        await asyncio.gather(*creating)
    caplog.set_level("INFO", "mongo_session_service")
    with closing(unread(url, path)) as client:
        began = time.monotonic()
        while not caplog.messages:
            await asyncio.to_thread(client.recv, 256)
            assert time.monotonic() - began < PATIENCE

    assert caplog.messages[0].endswith("It did not read.")
