"""Reading an SQLite file is broken off, and nothing else breaks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from mongo_session_service.transfer import SqliteSource
from mongo_session_service.transfer.sources import adk_rows


async def test_a_file_is_closed_when_its_last_thread_has_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite ends the whole program if it is closed while it is being read."""
    path = tmp_path / "adk.db"
    service = SqliteSessionService(str(path))
    await service.create_session(app_name="app", user_id="user", session_id="s")
    reading, go_on = threading.Event(), threading.Event()

    async def read() -> None:
        async with SqliteSource(path) as source:
            # What it has asked of the file itself is over.
            monkeypatch.setattr(adk_rows, "header_of", wait)
            _ = [each async for each in source.read()]

    def wait(*_: object) -> None:
        reading.set()
        go_on.wait(20)

    task = asyncio.create_task(read())
    await asyncio.to_thread(reading.wait, 20)
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=0.2)
    go_on.set()
    await asyncio.wait([task])

    assert not ended
    assert task.cancelled()
