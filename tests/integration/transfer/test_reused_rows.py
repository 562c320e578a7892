"""An SQLite file gives deleted rows' places to others, while it is being read."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from mongo_session_service.transfer import Selection, SqliteSource, SqlSource
from mongo_session_service.transfer.records import (
    Item,
    Problem,
    SessionHeader,
    SharedState,
)

GONE = "a part of it is missing; was it just deleted?"
SOURCES = "mongo_session_service.transfer.sources"


class Store:
    """A service of ADK's, its file, and how that is read."""

    def __init__(self, service: Any, source: Any, path: Path) -> None:
        self.service, self._source, self.path = service, source, path

    async def fill(self, user: str, events: int, author: str = "agent") -> None:
        """Have a user be told something, and live in a city."""
        session = await self.service.create_session(
            app_name="app", user_id=user, session_id="s", state={"user:city": user}
        )
        for _ in range(events):
            await self.service.append_event(session, Event(author=author))

    async def forget(self, user: str) -> None:
        """Delete a user's session."""
        await self.service.delete_session(app_name="app", user_id=user, session_id="s")

    async def read(
        self,
        selection: Selection,
        at: Callable[[Item], bool],
        act: Callable[[], Awaitable[None]],
    ) -> list[Item]:
        """What is read by whoever acts once something has been given out."""
        items = []
        async with self._source as source:
            async for item in source.read(selection):
                items.append(item)
                if at(item):
                    await act()
        return items


@pytest.fixture(params=["sql", "sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Store]:
    """Read row by row."""
    for name in (
        "base._TOGETHER",
        "sqlite_rows._TOGETHER",
        "adk_sqlite._ROWS_TOGETHER",
    ):
        monkeypatch.setattr(f"{SOURCES}.{name}", 1)
    path = tmp_path / "adk.db"
    if request.param == "sqlite":
        yield Store(SqliteSessionService(str(path)), SqliteSource(path), path)
        return
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
    yield Store(service, SqlSource(f"sqlite:///{path}"), path)
    await service.close()


def of(user: str) -> Callable[[Item], bool]:
    return lambda item: isinstance(item, SessionHeader) and item.key.user_id == user


def told(items: list[Item]) -> list[str]:
    return [str(item) for item in items if isinstance(item, Problem)]


def authors_by_user(items: list[Item]) -> dict[str, list[str]]:
    authors: dict[str, list[str]] = {}
    user = ""
    for item in items:
        if isinstance(item, SessionHeader):
            user = item.key.user_id
            authors[user] = []
        elif isinstance(item, Event):
            authors[user].append(item.author)
    return authors


@pytest.mark.parametrize("later", ["mallory", "bob"])
async def test_no_event_is_taken_for_one_that_was_in_its_place(
    store: Store, later: str
) -> None:
    """Whose session is deleted is told, and given nothing that was written since."""
    await store.fill("alice", 2)
    await store.fill("bob", 3)

    async def make_way() -> None:
        await store.forget("bob")
        await store.fill(later, 5, author="later")

    items = await store.read(Selection(), of("bob"), make_way)

    authors = authors_by_user(items)
    assert authors["alice"] == ["agent"] * 2
    assert "later" not in authors["bob"]
    assert authors.get("mallory", []) == ["later"] * (5 if later == "mallory" else 0)
    assert told(items) == [f"session 's' of user 'bob' in app 'app': {GONE}"]


async def test_no_state_is_taken_for_one_that_was_in_its_place(store: Store) -> None:
    """The state of a user who was not chosen is not read, wherever it is put."""
    for user in ("alice", "bob", "mallory"):
        await store.fill(user, 0)

    async def make_way() -> None:
        with sqlite3.connect(store.path) as file:
            file.execute("DELETE FROM user_states WHERE user_id = 'bob'")
            file.execute("UPDATE user_states SET rowid = 2 WHERE user_id = 'mallory'")
        file.close()

    chosen = Selection(users=frozenset({"alice", "bob"}))
    alices = SharedState("app", "alice", {"city": "alice"})
    items = await store.read(chosen, lambda item: item == alices, make_way)

    states = [each for each in items if isinstance(each, SharedState)]
    assert [each for each in states if each.user_id] == [alices]
    assert told(items) == [f"state of user 'bob' in app 'app': {GONE}"]
