"""Front ends from npm, in Chromium, with their examples' servers in two processes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from support.adk_tools import with_database
from support.front_ends import bundle, serve_page
from support.patience import PATIENCE

from mongo_session_service.embedded.mongod import HOST, free_ports

pytestmark = pytest.mark.release

EXAMPLES = Path(__file__).parents[2] / "examples"
AI_SDK = ("ai@7", "@ai-sdk/react@4")
# Later ones need packages that npm does not have.
ASSISTANT_UI = ("@assistant-ui/core@0.3.20", "@assistant-ui/react@0.15.21")
GOOGLE_ADK = (*ASSISTANT_UI, "@assistant-ui/react-google-adk@0.0.27")
TO_30 = " ".join(map(str, range(1, 31)))


@asynccontextmanager
async def server(program: str, uri: str, port: int) -> AsyncIterator[str]:
    """A program in a process of its own, and where it is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", EXAMPLES / program),
        env=os.environ | {"MONGODB_URI": uri, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"running on" not in await process.stderr.readline():
                assert not process.stderr.at_eof()
        yield f"http://{HOST}:{port}/"
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def two_servers(program: str, uri: str) -> AsyncIterator[tuple[str, str]]:
    first, second = free_ports(2)
    async with server(program, uri, first) as one, server(program, uri, second) as two:
        yield one, two


async def ask(page: Page, text: str, *, label: str = "Message") -> None:
    await page.get_by_label(label, exact=True).fill(text)
    await page.get_by_label(label, exact=True).press("Enter")


async def test_a_page_resumes_its_answer_at_another_server(
    page: Page, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """An answer streams; a page loaded elsewhere shows the whole of it once."""
    script = bundle(EXAMPLES / "ai_sdk.jsx", AI_SDK, tmp_path)
    uri = with_database(mongodb_uri, database)
    async with two_servers("ai_sdk.py", uri) as (one, other):
        await serve_page(page, script)
        await page.goto(one)
        messages = page.locator(".message")
        await ask(page, "Count to 30")
        await expect(messages).to_have_text(["user: Count to 30", re.compile("1 2 3")])
        seen = await messages.last.text_content()
        assert seen != f"assistant: {TO_30} "
        for url in (other, other):  # while it is said, and when it is stored
            async with page.expect_response("**/stream?*") as resumed:
                await page.goto(url)
            await (await resumed.value).finished()
            shown = ["user: Count to 30", f"assistant: {TO_30}"]
            await expect(messages).to_have_text(shown)
        await ask(page, "Count to 2")
        await expect(messages).to_have_text(
            [*shown, "user: Count to 2", "assistant: 1 2"]
        )


async def test_all_tabs_show_the_version_that_one_of_them_flips_to(
    page: Page, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Assistant-ui edits, asks again, flips, stops; other tabs and reloads follow."""
    script = bundle(EXAMPLES / "assistant_ui.jsx", ASSISTANT_UI, tmp_path)
    uri = with_database(mongodb_uri, database)
    other = await page.context.new_page()
    tabs = (page, other)

    async def shows(
        *messages: str | re.Pattern[str], versions: list[str], is_over: bool = True
    ) -> None:
        for tab in tabs:
            await expect(tab.locator(".message")).to_have_text(messages)
            await expect(tab.locator(".version")).to_have_text(versions)
            if is_over:  # until then, the page neither sends nor flips
                await expect(tab.get_by_text("Stop")).to_be_disabled()

    async with two_servers("live_turns.py", uri) as (one, two):
        for tab in tabs:
            await serve_page(tab, script)
        await page.goto(one)
        await expect(page.get_by_label("Message")).to_be_visible()
        await other.goto(two + await page.evaluate("location.hash"))

        await ask(page, "Count to 30")
        first = ("user: Count to 30", f"assistant: {TO_30}")
        await shows(first[0], re.compile("1 2 3"), versions=[], is_over=False)
        await other.reload()  # while it is said
        await shows(*first, versions=[])

        await page.get_by_text("Edit").click()
        await ask(page, "Count to 2", label="Edited message")
        second = ("user: Count to 2", "assistant: 1 2")
        await shows(*second, versions=["2/2"])
        await other.get_by_text("Ask again").click()
        await shows(*second, versions=["3/3"])

        await ask(other, "Count to 3")
        await shows(*second, "user: Count to 3", "assistant: 1 2 3", versions=["3/3"])
        await page.get_by_text("Edit").last.click()
        await ask(page, "Count to 1", label="Edited message")
        latest = (*second, "user: Count to 1", "assistant: 1")
        await shows(*latest, versions=["3/3", "2/2"])

        await page.get_by_label("Previous").first.click()
        await shows(*second, versions=["2/3"])
        await other.get_by_label("Previous").click()
        await shows(*first, versions=["1/3"])
        await other.reload()
        await shows(*first, versions=["1/3"])
        for versions in (["2/3"], ["3/3", "2/2"]):
            await other.get_by_label("Next").first.click()
            await expect(other.locator(".version")).to_have_text(versions)
        await shows(*latest, versions=["3/3", "2/2"])

        await page.get_by_text("Edit").first.click()
        await ask(page, "Count to 100", label="Edited message")
        stopped = ("user: Count to 100", re.compile("1 2 3"))
        await shows(*stopped, versions=["4/4"], is_over=False)
        await other.get_by_text("Stop").click()
        await page.get_by_label("Previous").click()
        await shows(*latest, versions=["3/4", "2/2"])
        await page.get_by_label("Next").first.click()
        await shows(*stopped, versions=["4/4"])


async def test_adks_own_client_has_answers_that_outlive_it(
    page: Page, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """It sends, streams, is reloaded in the middle, lists, and deletes."""
    script = bundle(EXAMPLES / "google_adk.jsx", GOOGLE_ADK, tmp_path)
    uri = with_database(mongodb_uri, database)
    messages, sessions = page.locator(".message"), page.locator(".session")
    answered = ["user: Count to 30", f"assistant: {TO_30}"]
    async with two_servers("adk_server.py", uri) as (one, other):
        await serve_page(page, script)
        await page.goto(one)
        await expect(page.get_by_label("Message")).to_be_visible()
        await ask(page, "Count to 30")
        await expect(messages).to_have_text([answered[0], re.compile("1 2 3")])
        where = await page.evaluate("location.hash")
        assert await messages.last.text_content() != answered[1]
        await page.goto("about:blank")
        await page.goto(other + where)  # while it is said, at another server
        await expect(messages).to_have_text(answered)
        await page.reload()
        await expect(messages).to_have_text(answered)

        await ask(page, "Count to 2")
        await expect(messages).to_have_text(
            [*answered, "user: Count to 2", "assistant: 1 2"]
        )
        await expect(sessions).to_have_count(1)
        await page.get_by_text("New chat").click()
        await expect(messages).to_have_count(0)
        await ask(page, "Count to 3")
        await expect(messages).to_have_text(["user: Count to 3", "assistant: 1 2 3"])
        await page.reload()
        await expect(sessions).to_have_count(2)
        await sessions.first.get_by_text("Delete").click()  # the latest is the last
        await expect(sessions).to_have_count(1)
        await page.reload()
        await expect(messages).to_have_text(["user: Count to 3", "assistant: 1 2 3"])
        await expect(sessions).to_have_count(1)
