"""Front ends from npm, in Chromium, with examples/ai_sdk.py in two processes."""

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

from mongo_session_service.embedded.mongod import HOST, free_ports

pytestmark = pytest.mark.release

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 60.0
AI_SDK = ("ai@7", "@ai-sdk/react@4")
PACKAGES = {
    "ai_sdk.jsx": AI_SDK,
    # Later ones need packages that npm does not have.
    "assistant_ui.jsx": (
        *AI_SDK,
        "@assistant-ui/core@0.3.20",
        "@assistant-ui/react@0.15.21",
        "@assistant-ui/react-ai-sdk@1.4.12",
    ),
}


@asynccontextmanager
async def server(uri: str, port: int) -> AsyncIterator[str]:
    """The program in a process of its own, and where it is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", EXAMPLES / "ai_sdk.py"),
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


@pytest.mark.parametrize("name", PACKAGES)
async def test_a_page_resumes_its_answer_at_another_server(
    name: str, page: Page, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """An answer streams; a page loaded elsewhere shows the whole of it once."""
    script = bundle(EXAMPLES / name, PACKAGES[name], tmp_path)
    uri = with_database(mongodb_uri, database)
    first, second = free_ports(2)
    async with server(uri, first) as one, server(uri, second) as other:
        await serve_page(page, script)
        await page.goto(one)
        messages = page.locator(".message")
        whole = "".join(f"{number} " for number in range(1, 31))
        await page.get_by_label("Message").fill("Count to 30")
        await page.get_by_label("Message").press("Enter")
        await expect(messages).to_have_text(["user: Count to 30", re.compile("1 2 3")])
        seen = await messages.last.text_content()
        assert seen != f"assistant: {whole}"
        for url in (other, other):  # while it is said, and when it is stored
            async with page.expect_response("**/stream?*") as resumed:
                await page.goto(url)
            await (await resumed.value).finished()
            shown = ["user: Count to 30", f"assistant: {whole.strip()}"]
            await expect(messages).to_have_text(shown)
        await page.get_by_label("Message").fill("Count to 2")
        await page.get_by_label("Message").press("Enter")
        await expect(messages).to_have_text(
            [*shown, "user: Count to 2", "assistant: 1 2"]
        )
