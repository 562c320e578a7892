"""A store that is still written is moved and caught up with, as the docs say."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest
from google.adk.events import Event, EventActions
from support.cli_runner import call
from support.doc_blocks import blocks_of
from support.foreign_stores import (
    Place,
    adk_mongodb,
    sql_postgresql,
    sql_sqlite,
    sqlite,
)
from support.sample_data import KEYS

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import EVERYTHING, Selection
from mongo_session_service.transfer.sources import Item

MOST: Final = 12
"""Turns while one command runs."""
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "importing.md"
BEFORE = PAGE.read_text().partition("## Move without downtime")[0].count("\n")
STEPS = [each for each in blocks_of(PAGE) if each.line > BEFORE]
TRANSFER = "mongo_session_service.transfer"


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
        delta = {f"{scope}count": self.turns for scope in ("", "user:", "app:")}
        await say(self._service, tuple(ids.values()), delta)


async def say(service: Any, key: tuple[str, ...], delta: dict[str, Any]) -> None:
    """Append to a session, in whichever service."""
    ids = dict(zip(("app_name", "user_id", "session_id"), key, strict=True))
    session = await service.get_session(**ids)
    event = Event(author="user", actions=EventActions(state_delta=delta))
    await service.append_event(session, event)


@pytest.fixture(autouse=True)
def little_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has sources read again and again, and sessions be moved in parts."""
    for name, few in (
        ("sources._CHUNK_ELEMENTS", 1),
        ("adk_sources._SESSIONS_TOGETHER", 2),
        ("adk_sources._SESSIONS_IN_PAGE", 1),
        ("batches.MAX_EVENTS", 3),
    ):
        monkeypatch.setattr(f"{TRANSFER}.{name}", few)


@pytest.mark.long
@pytest.mark.daily(2)
@pytest.mark.parametrize("make", [sql_sqlite, sql_postgresql, sqlite, adk_mongodb])
async def test_a_store_in_use_is_moved_and_caught_up_with(
    make: Any,
    place: Place,
    mongodb_uri: str,
    database: str,
    service: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No turn waits or is lost, in the old service or in the new one."""
    store = await make(place)
    users = Users(store.service)
    users.watch(type(store.source), monkeypatch)
    command = [*store.command, mongodb_uri, "--database", database]
    since = ""

    def step(number: int) -> list[str]:
        """A command of the page, for this store."""
        shown = STEPS[number].commands
        _, verb, _, _, _, *options = shlex.split(*shown)
        options = [since if it.startswith("20") else it for it in options]
        return [verb, *command, *options]

    told = await users.during(*step(0))
    (since,) = re.findall(r"--since (\S+)", told)
    caught_up = await users.during(*step(1))
    again = await users.without(*step(1))
    verified = await users.without(*step(3), "--exact")

    assert users.turns == 2 * MOST
    assert "caught up" in caught_up
    assert "caught up" in again
    assert "no differences" in verified
    assert f"with {24 + 2 * MOST} events" in verified

    await say(service, KEYS[0], {"user:count": "new", "app:count": "new"})
    await say(store.service, KEYS[1], {"count": "old"})
    last = await users.without(*step(2))

    assert "1 caught up" in last
    assert "1 continued here, 2 shared states changed here" in last
    went_on = await service.get_user_state(app_name=KEYS[0][0], user_id=KEYS[0][1])
    assert went_on["count"] == "new"
