"""The AI SDK's own client, from npm, with examples/ai_sdk.py in two processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support import npm
from support.adk_tools import with_database

from mongo_session_service.embedded.mongod import HOST, free_ports

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A program with the newest ``ai`` beside it."""
    npm.install(tmp_path, "ai")
    shutil.copy(ROOT / "tests/support/ai_sdk_client.mjs", tmp_path)
    return tmp_path / "ai_sdk_client.mjs"


@asynccontextmanager
async def server(uri: str, port: int) -> AsyncIterator[str]:
    """The program in a process of its own; the address of its chats."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", ROOT / "examples/ai_sdk.py"),
        env=os.environ | {"MONGODB_URI": uri, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"running on" not in await process.stderr.readline():
                assert not process.stderr.at_eof()
        yield f"http://{HOST}:{port}/api/chat"
    finally:
        process.terminate()
        await process.communicate()


async def test_a_page_resumes_its_answer_at_another_server(
    client: Path, mongodb_uri: str, database: str
) -> None:
    """It leaves in the middle, and reads the whole answer once; then nothing runs."""
    uri = with_database(mongodb_uri, database)
    async with AsyncExitStack() as servers:
        ports = free_ports(2)
        urls = [await servers.enter_async_context(server(uri, it)) for it in ports]
        page = await asyncio.create_subprocess_exec(
            *("node", client, *urls), stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE):
            printed, _ = await page.communicate()
        told = json.loads(printed)

    whole = "".join(f"{number} " for number in range(1, 31))
    assert told == {"seen": told["seen"], "resumed": whole, "over": None}
    assert whole.startswith(told["seen"])
    assert 0 < len(told["seen"]) < len(whole)
