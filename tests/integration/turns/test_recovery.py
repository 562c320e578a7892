"""Recovery of abandoned turns: one that fails, or kills its process, is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types
from pydantic import PrivateAttr
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.one_session import IDS
from support.scripted_model import texts_of
from support.subscriptions import until

from mongo_session_service import MongoSessionService
from mongo_session_service.turns import recovery

BEFORE = {"invocation_id": "died"}
SEALED = "INVOCATION_ABORTED"

pytestmark = pytest.mark.limits(
    recovery_seconds=0.02, lease_seconds=1.0, lease_renewal_seconds=0.2
)


class GatedModel(BaseLlm):
    """Answers when it may, and knows how many wait for it."""

    model: str = "gated"
    _gate: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _waiting: int = PrivateAttr(default=0)
    _most: int = PrivateAttr(default=0)

    async def generate_content_async(
        self,
        llm_request: LlmRequest,  # noqa: ARG002
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield an answer once the gate is open."""
        self._waiting += 1
        self._most = max(self._most, self._waiting)
        await self._gate.wait()
        self._waiting -= 1
        content = types.Content(role="model", parts=[types.Part(text="answered")])
        yield LlmResponse(content=content)

    def waiting(self) -> int:
        return self._waiting

    def most(self) -> int:
        return self._most

    def let_answer(self) -> None:
        self._gate.set()


def runner_of(service: MongoSessionService, model: BaseLlm) -> Runner:
    app = App(
        name=IDS["app_name"],
        root_agent=LlmAgent(name="agent", model=model),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    return Runner(app=app, session_service=service)


Abandon = Callable[..., Any]


@pytest.fixture
def abandon(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> Abandon:
    """Make sessions that a process has left in the middle of a tool."""

    async def abandon(*session_ids: str, **fields: Any) -> None:
        for session_id in session_ids:
            ids = {**IDS, "session_id": session_id}
            await service.create_session(**ids)
            await abandon_turn(service, database, admin, ids=ids, **fields)

    return abandon


@asynccontextmanager
async def recovering(
    service: MongoSessionService, model: BaseLlm, *, resume: bool = False
) -> AsyncIterator[None]:
    """As a lifespan does it, which nothing but its own end may end."""
    runner = runner_of(service, model)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(service.recover_turns(runner, resume=resume))
        yield
        assert not task.done()
        task.cancel()


async def left_with(service: MongoSessionService, *session_ids: str) -> None:
    """Return when just these have turns, abandoned or being recovered."""
    left = None
    while left != [*session_ids]:
        found = await service.find_turns(app_name=IDS["app_name"])
        left = [each.session_id for each in found]


async def test_a_session_that_cannot_be_read_is_put_aside(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    abandon: Abandon,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others are recovered, and itself once it can be read; each has a log line."""
    await abandon("a", "b", "c")
    events = admin[database].events
    one = {"_id.session_id": "a"}
    stored = events.find_one(one)
    assert stored is not None
    events.update_one(one, {"$set": {"event.actions": "of a later release"}})

    async with recovering(service, GatedModel()), asyncio.timeout(20):
        await left_with(service, "a")
        await until(lambda: "'a' was not recovered" in caplog.text)
        events.update_one(one, {"$set": {"event": stored["event"]}})
        await left_with(service)
    for name in "abc":
        session = await service.get_session(**IDS | {"session_id": name})
        assert session is not None
        assert session.events[-1].error_code == SEALED
        repairs = [
            record.getMessage()
            for record in caplog.records
            if f"of session '{name}' has died" in record.getMessage()
        ]
        assert len(repairs) == 1
        assert "has ended. Closing events: 1." in repairs[0]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, asyncio.CancelledError, TimeoutError]
)
@pytest.mark.parametrize("name", ["find_abandoned", "Turn"])
async def test_nothing_but_a_cancellation_ends_the_recovery(
    service: MongoSessionService,
    abandon: Abandon,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: type[BaseException],
) -> None:
    """Whatever fails: the search for abandoned turns, or one of them."""
    await abandon("a", "b")
    works, failures = getattr(recovery, name), [error, error]

    def fail_first(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return works(*args, **options)

    monkeypatch.setattr(recovery, name, fail_first)
    async with recovering(service, GatedModel()), asyncio.timeout(20):
        await left_with(service)


async def answered(service: MongoSessionService, *session_ids: str) -> None:
    """Wait until the turns of sessions have ended, with an answer."""
    while True:
        ended = await service.find_turns(app_name=IDS["app_name"], status="ended")
        if {*session_ids} <= {each.session_id for each in ended}:
            break
        await asyncio.sleep(0.01)
    for name in session_ids:
        session = await service.get_session(**IDS | {"session_id": name})
        assert session is not None
        texts = [text for each in session.events for text in texts_of(each.content)]
        assert texts == ["answered"]


async def test_those_resumed_before_follow_each_other(
    service: MongoSessionService, abandon: Abandon
) -> None:
    """Any of them may have killed its process; the others run beside."""
    await abandon("a", "b", resumed={**BEFORE, "attempts": 1})
    await abandon("c", "d")
    model = GatedModel()
    async with recovering(service, model, resume=True), asyncio.timeout(20):
        await until(lambda: model.waiting() == 3)
        model.let_answer()
        await answered(service, "a", "b", "c", "d")
    assert model.most() == 3


async def test_one_whose_processes_died_twice_is_given_up(
    service: MongoSessionService,
    abandon: Abandon,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was counted for another invocation of its session does not count."""
    await abandon("a", resumed={"invocation_id": "before", "attempts": 2})
    await abandon("z", resumed={**BEFORE, "attempts": 2})
    model = GatedModel()
    async with recovering(service, model, resume=True), asyncio.timeout(20):
        model.let_answer()
        await answered(service, "a")
        await left_with(service)
    (turn,) = await service.find_turns(status="failed")
    assert (turn.session_id, turn.reason) == ("z", "its process died")
    assert "session 'z' has died. The turn was resumed before, and is given up" in (
        caplog.text
    )
