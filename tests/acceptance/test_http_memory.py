"""How much a server holds for clients over HTTP that ask for much and read nothing."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from google.adk.events import Event
from google.genai import types
from support.cli_runner import ENVIRONMENT, PATIENCE
from support.http_paths import CHANGES, EVENTS, USER
from support.http_server import unread
from support.subscriptions import SESSION

from mongo_session_service import MongoSessionService

pytestmark = [pytest.mark.release, pytest.mark.xdist_group("heavy")]

LARGE = 200_000
"""Characters of each event."""
CLIENTS = 10 * [EVENTS] + 30 * [f"{CHANGES}?history=all"]
MOST = 32_000
"""Kilobytes that a server may grow by for each: while it reads a page of a history it
has two of up to 16 MB."""


@pytest.fixture
def server(
    mongodb_uri: str, database: str, tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own; its first line is its URL."""
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "support.reading_server", mongodb_uri, database],
            cwd=Path(__file__).parents[1],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        yield process


def memory(process: subprocess.Popen[str], kind: str) -> int:
    """Kilobytes that it has now, VmRSS, or had at most, VmHWM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(rf"{kind}:\s+(\d+)", status)[0])


async def test_readers_of_much_take_little_memory(
    service: MongoSessionService, server: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Those that read nothing of a long session: others are answered.

    Also about another session of the same user, as where nobody logs in.
    """
    session = await service.create_session(**SESSION)
    part = types.Part(text="x" * LARGE)
    for _ in range(200):
        event = Event(author="x", content=types.ModelContent(part))
        await service.append_event(session, event)
        session.events.clear()
    await service.create_session(**{**SESSION, "session_id": "other"})
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    before = memory(server, "VmRSS")
    waits = []

    async with httpx.AsyncClient(timeout=PATIENCE) as others:
        with ExitStack() as clients:
            for path in CLIENTS:
                clients.enter_context(closing(unread(url, path)))
            until = time.monotonic() + 15
            while time.monotonic() < until:
                began = time.monotonic()
                answer = await others.get(f"{url}{USER}/sessions")
                assert answer.status_code == 200
                waits.append(time.monotonic() - began)
                answer = await others.get(f"{url}{USER}/sessions/other/events")
                assert answer.status_code == 200
                await asyncio.sleep(0.01)
    grown = memory(server, "VmHWM") - before
    await asyncio.to_thread(server.communicate)
    logged = (tmp_path / "log").read_text()

    waits.sort()
    assert grown < MOST * len(CLIENTS)
    # Later ones, since the first wait while all connect at once.
    assert waits[len(waits) // 2] < 0.1
    assert "ERROR" not in logged
    assert "Traceback" not in logged
