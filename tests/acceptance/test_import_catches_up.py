"""A store that is still written is moved and caught up with, as the docs say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import pytest
from google.adk.events import Event, EventActions
from support.cli_runner import call
from support.foreign_stores import (
    Place,
    adk_mongodb,
    sql_postgresql,
    sql_sqlite,
    sqlite,
)
from support.sample_data import KEYS

from mongo_session_service.transfer import EVERYTHING, Selection
from mongo_session_service.transfer.source_items import Item

MOST: Final = 12
"""Turns while one command runs."""
SOURCES = "mongo_session_service.transfer.sources"


class Users:
    """They go on in the old service: one turn after each item that a source gives."""

    def __init__(self, service: Any) -> None:
        self.turns = 0
        self._left = 0
        self._service = service
        self._loop = asyncio.get_running_loop()

    def watch(self, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Take turns with sources of a kind, which are read in other loops."""
        read = kind.read

        async def reading(
            source: Any, selection: Selection = EVERYTHING
        ) -> AsyncGenerator[Item]:
            async with aclosing(read(source, selection)) as items:
                async for item in items:
                    yield item
                    turn = asyncio.run_coroutine_threadsafe(self.turn(), self._loop)
                    await asyncio.wrap_future(turn)

        monkeypatch.setattr(kind, "read", reading)

    async def during(self, *command: str) -> str:
        """Run a command, and go on meanwhile; what it prints."""
        self._left = MOST
        return await self.without(*command)

    async def without(self, *command: str) -> str:
        """Run a command when the turns have ended, unless there are some left."""
        done = await asyncio.to_thread(call, *command)
        self._left = 0
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    async def turn(self) -> None:
        """Append to one of the sessions, and begin another now and then."""
        if self._left == 0:
            return
        self._left -= 1
        self.turns += 1
        app_name, user_id, session_id = KEYS[self.turns % len(KEYS)]
        ids = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
        if self.turns % 5 == 0:
            ids["session_id"] = f"new-{self.turns}"
            state = {"topic": "new", "user:new": self.turns}
            await self._service.create_session(**ids, state=state)
        session = await self._service.get_session(**ids)
        delta = {f"{scope}count": self.turns for scope in ("", "user:", "app:")}
        event = Event(author="user", actions=EventActions(state_delta=delta))
        await self._service.append_event(session, event)


@pytest.fixture(autouse=True)
def little_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has sources read again and again, and sessions be moved in parts."""
    for name, few in (
        ("base_source._TOGETHER", 1),
        ("adk_sql._SESSIONS_TOGETHER", 2),
        ("adk_mongodb._SESSIONS_TOGETHER", 1),
    ):
        monkeypatch.setattr(f"{SOURCES}.{name}", few)
    monkeypatch.setattr("mongo_session_service.transfer.import_batches.MAX_EVENTS", 3)


@pytest.mark.parametrize("make", [sql_sqlite, sql_postgresql, sqlite, adk_mongodb])
async def test_a_store_in_use_is_moved_and_caught_up_with(
    make: Any,
    place: Place,
    mongodb_uri: str,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No turn waits or is lost; after the last, a catch-up makes both the same."""
    store = await make(place)
    users = Users(store.service)
    users.watch(type(store.source), monkeypatch)
    command = [*store.command, mongodb_uri, "--database", database]

    told = await users.during("import", *command)
    (since,) = re.findall(r"--since \S+", told)
    caught_up = await users.during("import", *command, *since.split())
    last = await users.without("import", *command, *since.split())
    verified = await users.without("verify", *command, "--exact")

    assert users.turns == 2 * MOST
    assert "caught up" in caught_up
    assert "caught up" in last
    assert "no differences" in verified
    assert f"with {24 + 2 * MOST} events" in verified
