"""A rewind and an append at the same time: exactly one of them is stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions import Session
from pymongo import MongoClient
from support.patience import PATIENCE
from support.scripted_model import (
    APP,
    ScriptedModel,
    ask,
    folded,
    revisions,
    rewind,
    start,
    stored,
)
from typing_extensions import override

from mongo_session_service import MongoSessionService

ROUNDS = 20


class Overtaken(MongoSessionService):
    """A service that lets something happen at the last moment before each append."""

    before_append: Callable[[], Awaitable[Any]]

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        await self.before_append()
        return await super().append_event(session, event)


def painter(service: MongoSessionService, *answers: str) -> Runner:
    agent = LlmAgent(
        name="painter",
        model=ScriptedModel(script=answers),
        output_key="color",
    )
    return Runner(agent=agent, app_name=APP, session_service=service)


def rivals_event() -> Event:
    delta = {"color": "theirs", "rival": True, "user:color": "theirs", "app:n": 1}
    actions = EventActions(state_delta=delta)
    return Event(author="rival", invocation_id="rivals", actions=actions)


async def succeeds(attempt: Awaitable[Any]) -> bool:
    try:
        await attempt
    except StaleSessionError:
        return False
    return True


async def append_from(line: threading.Barrier, uri: str, database: str) -> bool:
    async with Overtaken(uri, database=database) as service:
        service.before_append = lambda: asyncio.to_thread(line.wait)
        session = await stored(service, "s")
        return await succeeds(service.append_event(session, rivals_event()))


async def test_rewind_races_append(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """One of the two is stored, the other one stale, and state is the log's fold."""
    line = threading.Barrier(2, timeout=PATIENCE)
    runner = painter(service, "red", "blue")
    await start(service, "s")
    turns = [await ask(runner, "s", "Next") for _ in range(2)]

    async with Overtaken(mongodb_uri, database=database) as late:
        late.before_append = lambda: asyncio.to_thread(line.wait)
        rewinder = painter(late)
        for count in range(5, 5 + ROUNDS):
            rewound, appended = await asyncio.gather(
                succeeds(rewind(rewinder, "s", turns[1])),
                append_from(line, mongodb_uri, database),
            )
            assert rewound is not appended
            session = await stored(service, "s")
            assert session.state == folded(session)
            assert session.state["color"] == ("red" if rewound else "theirs")
            assert session.state.get("rival") is (None if rewound else True)
            assert revisions(admin, database, "s") == (
                count,
                list(range(1, count + 1)),
            )
