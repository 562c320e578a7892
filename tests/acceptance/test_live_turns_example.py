"""The program examples/live_turns.py, as processes that are stopped and killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Locator, Page, expect
from support.adk_tools import with_database
from support.patience import PATIENCE

from mongo_session_service.embedded.mongod import free_ports

PROGRAM = Path(__file__).parents[2] / "examples" / "live_turns.py"

Process = asyncio.subprocess.Process


@pytest.fixture
def port() -> int:
    """The same for each server of the test."""
    (port,) = free_ports(1)
    return port


@pytest.fixture
async def serve(
    mongodb_uri: str, database: str, port: int
) -> AsyncIterator[Callable[[], Awaitable[Process]]]:
    """Starts the program, and returns when it serves."""
    started: list[Process] = []
    uri = with_database(mongodb_uri, database)

    async def start() -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", PROGRAM),
            env=os.environ | {"MONGODB_URI": uri, "PORT": str(port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        started.append(process)
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"running on" not in await process.stderr.readline():
                assert not process.stderr.at_eof()
        return process

    yield start
    for each in started:
        if each.returncode is None:
            each.kill()
        await each.communicate()


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


def stored(page: Page) -> Locator:
    """The messages that the page shows as stored."""
    return page.locator("#stored p")


def counted(last: int) -> str:
    """What the agent says when it has counted to a number."""
    return f"agent: {' '.join(map(str, range(1, last + 1)))} "


async def see_it_count(page: Page, last: int) -> None:
    """Return when the answer that is not stored yet has come to a number."""
    beginning = re.compile(f"^{re.escape(counted(last))}")
    await expect(page.locator("#said p")).to_have_text(beginning)


async def test_an_answer_survives_a_reload_a_second_tab_a_stop_and_a_crash(
    serve: Callable[[], Awaitable[Process]], page: Page, port: int
) -> None:
    """Words come as they are said; whatever happens, the session goes on."""
    server = await serve()
    await page.goto(f"http://127.0.0.1:{port}")
    await ask(page, "Count to 20")
    await see_it_count(page, 3)
    await page.reload()
    other = await page.context.new_page()
    await other.goto(page.url)
    answered = ["user: Count to 20", counted(20)]
    for tab in (page, other):
        await see_it_count(tab, 4)
    for tab in (page, other):
        await expect(stored(tab)).to_have_text(answered)
        await expect(tab.get_by_role("button", name="Stop")).to_be_disabled()

    await ask(page, "Count to 1000")
    await see_it_count(other, 3)
    await other.get_by_role("button", name="Stop").click()
    for tab in (page, other):
        await expect(stored(tab)).to_have_count(4)
        await expect(tab.get_by_role("button", name="Stop")).to_be_disabled()
    kept = await stored(page).all_text_contents()
    said = len(kept[3].split()) - 1
    assert kept == [*answered, "user: Count to 1000", counted(said)]
    assert await stored(other).all_text_contents() == kept

    await ask(page, "Count to 999")
    await see_it_count(page, 3)
    server.kill()
    await server.wait()
    await serve()
    why = re.compile("it was cut off|its process died")  # once repaired
    await expect(page.get_by_role("alert")).to_have_text(why)
    await ask(page, "Count to 5")
    for tab in (page, other):
        await expect(stored(tab)).to_have_text(
            [*kept, "user: Count to 999", "user: Count to 5", counted(5)]
        )
        await expect(tab.locator("#said p")).to_have_count(0)


async def test_a_deployment_lets_an_answer_end(
    serve: Callable[[], Awaitable[Process]], page: Page, port: int
) -> None:
    """What a server says after SIGTERM is stored before it ends, and is read then."""
    server = await serve()
    await page.goto(f"http://127.0.0.1:{port}")
    await ask(page, "Count to 30")
    await see_it_count(page, 3)
    server.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        assert await server.wait() == -signal.SIGTERM

    await serve()
    await expect(stored(page)).to_have_text(["user: Count to 30", counted(30)])
