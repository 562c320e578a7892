"""An SQLite file is read as it was when reading began, while it is written to."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from support.subscriptions import until

from mongo_session_service.errors import SourceError
from mongo_session_service.transfer import Selection, SqliteSource, SqlSource


class Store:
    """A service of ADK's, its file, and how that is read."""

    def __init__(self, service: Any, source: Any, path: Path) -> None:
        self.service, self.source, self.path = service, source, path

    async def fill(self, user: str, author: str) -> None:
        """Begin a session of three events."""
        ids = {"app_name": "app", "user_id": user, "session_id": "s"}
        session = await self.service.create_session(**ids, state={"user:by": author})
        for _ in range(3):
            await self.service.append_event(session, Event(author=author))

    async def items(self) -> list[Any]:
        async with self.source as source:
            return [item async for item in source.read()]


@pytest.fixture(params=["sql", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A file with the sessions of two users."""
    path = tmp_path / "adk.db"
    store = Store(SqliteSessionService(str(path)), SqliteSource(path), path)
    if request.param == "sql":
        service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
        store = Store(service, SqlSource(f"sqlite:///{path}"), path)
    for user in ("alice", "bob"):
        await store.fill(user, author="agent")
    yield store
    if request.param == "sql":
        await store.service.close()


def copies() -> list[str]:
    """The temporary files of SQLite's that this process has open."""
    links = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
    return [each for each in links if "etilqs" in each]


async def test_later_writes_to_the_file_are_not_read(store: Store) -> None:
    """No writer waits; what is deleted is read, and its place is nobody else's."""
    before = await store.items()
    items = []

    async with store.source as source:
        async for item in source.read():
            if not items:
                await store.service.delete_session(
                    app_name="app", user_id="bob", session_id="s"
                )
                for user in ("bob", "mallory"):
                    await store.fill(user, author="later")
            items.append(item)
        again = [item async for item in source.read()]

    assert items == before
    assert "later" in repr(again)


async def test_no_copy_is_left_of_a_reading_that_is_broken_off(
    store: Store,
) -> None:
    """The file in which SQLite keeps the copy has no name while it is read."""
    with sqlite3.connect(store.path) as file:
        file.execute("CREATE TABLE large AS SELECT zeroblob(10000000)")
    file.close()
    async with store.source as source, aclosing(source.read()) as items:
        await anext(items)
        (copy,) = copies()
        assert copy.endswith("(deleted)")

    await until(lambda: not copies())  # the thread that reads ahead ends by itself


async def test_a_file_that_cannot_be_copied_is_named(store: Store) -> None:
    """A file that is damaged while its source is open is one error."""
    async with store.source as source:
        store.path.write_bytes(b"x" * store.path.stat().st_size)
        with pytest.raises(SourceError, match="cannot be copied to a temporary file"):
            await anext(source.read())


@pytest.mark.parametrize("name", [b"a b%20c@d:e#f.db", b"a?b.db", b"\xff.db"])
async def test_a_path_may_look_like_a_part_of_a_url(
    name: bytes, tmp_path: Path
) -> None:
    """It is the file's name as it is, whatever its bytes, also after two slashes."""
    plain, path = tmp_path / "adk.db", tmp_path / os.fsdecode(name)
    await Store(SqliteSessionService(str(plain)), None, plain).fill("alice", "agent")
    plain.rename(path)

    for named in (path, f"/{path}"):
        store = Store(None, SqliteSource(named), path)
        async with store.source as source:
            assert await source.count_events(Selection()) == 3
        assert len(await store.items()) == 5
