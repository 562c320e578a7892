"""A rewind and an append at the same time: exactly one of them is stored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeAlias

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions import Session
from pymongo import MongoClient
from support.forks import FORKS
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

ROUNDS = 40
PATIENCE = 60
"""Seconds until a rival is given up; nothing waits for them to pass."""


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


async def test_append_during_a_rewind(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """A rewind that was computed from an outdated log is refused, changing nothing."""
    runner = painter(service, "red", "blue")
    await start(service, "s")
    turns = [await ask(runner, "s", "Next") for _ in range(2)]
    session = await stored(service, "s")

    async with Overtaken(mongodb_uri, database=database) as late:
        late.before_append = lambda: service.append_event(session, rivals_event())
        with pytest.raises(StaleSessionError):
            await rewind(painter(late), "s", turns[1])

    assert await stored(service, "s") == session
    assert session.events[-1].author == "rival"
    assert session.state == folded(session)


async def test_rewind_during_a_turn(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """A turn that began before a rewind is refused; begun anew, it is accepted."""
    runner = painter(service, "red", "blue", "green")
    await start(service, "s")
    turns = [await ask(runner, "s", "Next") for _ in range(2)]

    async with Overtaken(mongodb_uri, database=database) as late:
        late.before_append = lambda: rewind(runner, "s", turns[1])
        with pytest.raises(StaleSessionError):
            await ask(painter(late, "black"), "s", "Next")

    session = await stored(service, "s")
    rewound = session.events[-1].actions.rewind_before_invocation_id
    assert rewound == turns[1][0].invocation_id
    assert session.state == folded(session) == {"color": "red"}
    await ask(runner, "s", "Next")
    assert (await stored(service, "s")).state == {"color": "green"}


class Line(Protocol):
    """Where two racers wait for each other; a barrier of threads or processes."""

    def wait(self) -> int:
        """Return when both have arrived."""


Rival: TypeAlias = Callable[[str, str], Awaitable[bool]]
"""Takes a URI and a database, appends to the session ``s``, tells if it was stored."""


async def succeeds(attempt: Awaitable[Any]) -> bool:
    try:
        await attempt
    except StaleSessionError:
        return False
    return True


async def append_from(line: Line, uri: str, database: str) -> bool:
    async with Overtaken(uri, database=database) as service:
        service.before_append = lambda: asyncio.to_thread(line.wait)
        session = await stored(service, "s")
        return await succeeds(service.append_event(session, rivals_event()))


class Elsewhere:
    """A rival in the worker of an executor, with an event loop of its own."""

    line: Line

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @classmethod
    def set_up(cls, line: Line) -> None:
        """Receive, in the worker, what only a new process can inherit."""
        cls.line = line

    @classmethod
    def append(cls, uri: str, database: str) -> bool:
        """Take part, in the worker."""
        return asyncio.run(append_from(cls.line, uri, database))

    async def race(self, uri: str, database: str) -> bool:
        """Have the worker take part in a race."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self.append, uri, database)


@pytest.fixture(params=["another service", "another loop", "another process"])
def race(request: pytest.FixtureRequest) -> Iterator[tuple[Line, Rival]]:
    """A line, and a rival that waits at it before it appends."""
    if request.param == "another process":
        line: Line = FORKS.Barrier(2, timeout=PATIENCE)
        with ProcessPoolExecutor(1, FORKS, Elsewhere.set_up, (line,)) as process:
            yield line, Elsewhere(process).race
        return
    line = threading.Barrier(2, timeout=PATIENCE)
    if request.param == "another loop":
        with ThreadPoolExecutor(
            1, initializer=Elsewhere.set_up, initargs=(line,)
        ) as thread:
            yield line, Elsewhere(thread).race
    else:
        yield line, partial(append_from, line)


async def test_rewind_races_append(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
    race: tuple[Line, Rival],
) -> None:
    """One of the two is stored, the other one stale, and state is the log's fold."""
    line, rival = race
    runner = painter(service, "red", "blue")
    await start(service, "s")
    turns = [await ask(runner, "s", "Next") for _ in range(2)]

    async with Overtaken(mongodb_uri, database=database) as late:
        late.before_append = lambda: asyncio.to_thread(line.wait)
        rewinder = painter(late)
        for count in range(5, 5 + ROUNDS):
            rewound, appended = await asyncio.gather(
                succeeds(rewind(rewinder, "s", turns[1])), rival(mongodb_uri, database)
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
