"""Agents that fail, are cut off or go on: what readers and the next turn receive."""

from __future__ import annotations

import asyncio
import gc
import traceback
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import Runner
from pydantic import BaseModel, ValidationError
from pymongo import MongoClient
from support.function_calls import open_calls
from support.one_session import IDS, authors, read
from support.scripted_model import ScriptedModel, call, said
from support.spoken_model import BreakingModel
from support.subscriptions import until

from mongo_session_service import (
    LeaseLostError,
    MongoSessionService,
    MongoSessionServiceError,
    RunningTurn,
)

OWNER = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}


def runner_of(service: MongoSessionService, *script: Any, tool: Any) -> Runner:
    agent = LlmAgent(name="agent", model=ScriptedModel(script=script), tools=[tool])
    return Runner(agent=agent, app_name=IDS["app_name"], session_service=service)


async def start(service: MongoSessionService, runner: Runner) -> RunningTurn:
    return await service.start_turn(runner, **OWNER, new_message=said("hi"))


async def raise_it() -> None:
    raise asyncio.CancelledError


async def cancel_itself() -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    await asyncio.sleep(0)


async def leak_a_scope() -> None:
    """As a client does that cancels what it has begun."""
    leaked = asyncio.get_running_loop().create_future()
    leaked.cancel()
    await leaked


@pytest.mark.parametrize("tool", [raise_it, cancel_itself, leak_a_scope])
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture, tool: Any
) -> None:
    """With a status, an error for each reader, an answered call and one log line."""
    await service.create_session(**IDS)
    runner = runner_of(service, call(tool.__name__), "never said", tool=tool)
    running = await start(service, runner)
    for _ in range(2):
        with pytest.raises(MongoSessionServiceError, match="nobody had stopped"):
            await running.result()
    with pytest.raises(MongoSessionServiceError, match="nobody had stopped"):
        [event async for event in running]

    (turn,) = await service.find_turns(status="failed")
    assert turn.error_type == "CancelledError"
    assert open_calls((await read(service)).events) == set()
    assert sum("failed with CancelledError" in it.message for it in caplog.records) == 1


@pytest.mark.parametrize("keep", [True, False])
async def test_what_a_failed_answer_has_said_is_kept(
    service: MongoSessionService, keep: Any
) -> None:
    """As an interrupted event, as of one that is stopped, unless it is not wanted."""
    await service.create_session(**IDS)
    model = BreakingModel()
    agent = LlmAgent(name="agent", model=model)
    runner = Runner(agent=agent, app_name=IDS["app_name"], session_service=service)
    model.say("It is ", thought=True)
    model.say("It ", "is ")
    model.end_answer()
    running = await service.start_turn(
        runner, **OWNER, new_message=said("hi"), keep_partial_answer=keep
    )
    with pytest.raises(ConnectionError):
        await running.result()
    kept = (await read(service)).events[1:]
    texts = [(it.interrupted, it.content.parts[0].text) for it in kept if it.content]
    assert texts == ([(True, "It is ")] if keep else [])
    assert (await service.find_turns(status="failed"))[0].reason is None


async def test_a_request_is_not_cancelled_by_its_agent(
    service: MongoSessionService,
) -> None:
    """Of run_turn, too: the reader's task gets an error, and the call an answer."""
    await service.create_session(**IDS)
    runner = runner_of(service, call("raise_it"), tool=raise_it)
    running = service.run_turn(runner, **OWNER, new_message=said("hi"))
    with pytest.raises(MongoSessionServiceError, match="nobody had stopped"):
        [event async for event in running]
    assert open_calls((await read(service)).events) == set()


class Refusal(Exception):  # noqa: N818  an application's own
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was refused")
        self.what = what


class Order(BaseModel):
    amount: int


def refuse() -> None:
    raise Refusal("it") from ZeroDivisionError("a cause")


def misread() -> None:
    Order.model_validate({"amount": "many"})


@pytest.mark.parametrize(
    ("tool", "kind", "text"),
    [(refuse, Refusal, "it was refused"), (misread, ValidationError, "amount")],
)
async def test_readers_of_a_failure_do_not_add_to_it(
    service: MongoSessionService, tool: Any, kind: type[Exception], text: str
) -> None:
    """Each has the agent's frames and its own; of those that have gone, none stays."""
    await service.create_session(**IDS)
    runner = runner_of(service, call(tool.__name__), tool=tool)
    running = await start(service, runner)
    kept: list[weakref.ref[Any]] = []

    async def read_it() -> list[str]:
        local = type("Local", (), {})()
        kept.append(weakref.ref(local))
        with pytest.raises(kind, match=text) as caught:
            await running.result()
        return [it.name for it in traceback.extract_tb(caught.tb)]

    first = await read_it()
    assert {"read_it", tool.__name__} <= {*first}
    for _ in range(3):
        assert await read_it() == first
    gc.collect()
    alive = sum(each() is not None for each in kept)
    assert alive <= (kind is ValidationError)  # which cannot be copied
    if kind is Refusal:
        with pytest.raises(Refusal) as caught:
            await running.result()
        assert caught.value.what == "it"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.limits(abort_seconds=0.05, cancel_seconds=0.05)
async def test_a_task_that_outlives_a_stopped_turn_may_write(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the agent that ignores its stop has ended; until then all is refused."""
    await service.create_session(**IDS)
    may_end, has_begun = asyncio.Event(), asyncio.Event()
    asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def work() -> None:
        while True:
            answer = await asked.get()
            try:
                await service.append(**IDS, event=Event(author="worker"))
                runner = runner_of(service, "by the worker", tool=stubborn)
                await (await start(service, runner)).result()
            except LeaseLostError as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)

    working: list[asyncio.Task[None]] = []

    async def stubborn() -> None:
        working.append(asyncio.create_task(work()))
        has_begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    async def ask_worker() -> None:
        answer = asyncio.get_running_loop().create_future()
        asked.put_nowait(answer)
        await answer

    running = await start(service, runner_of(service, call("stubborn"), tool=stubborn))
    await has_begun.wait()
    await running.stop()
    before = len((await read(service)).events)
    with pytest.raises(LeaseLostError):
        await ask_worker()  # it cannot be told from the agent, which goes on
    assert len((await read(service)).events) == before
    assert "ignores that it was stopped" in caplog.text
    may_end.set()
    await asyncio.wait({running.turn.runaway})  # type: ignore[type-var]
    for _ in range(2):
        await ask_worker()
    working[0].cancel()
    assert authors(await read(service))[before:] == ["worker", "user", "agent"] * 2


class OwnRunner:
    """An application's own runner, without an agent of ADK."""

    app_name = IDS["app_name"]

    def __init__(self, service: MongoSessionService) -> None:
        self._service = service

    async def run_async(
        self,
        *,
        user_id: str,  # noqa: ARG002
        session_id: str,  # noqa: ARG002
        new_message: Any,
    ) -> AsyncGenerator[Event, None]:
        """Ask for something, and work on for ever."""
        session = await read(self._service)
        asked = Event(author="user", invocation_id="own", content=new_message)
        yield await self._service.append_event(session, asked)
        await asyncio.Event().wait()


async def test_a_runner_without_an_agent_is_stopped(
    service: MongoSessionService,
) -> None:
    """Nobody is the author of a closing event; the turn ends as stopped."""
    await service.create_session(**IDS)
    running = await start(service, OwnRunner(service))  # type: ignore[arg-type]
    async for _ in running:
        await running.stop("enough")
    (turn,) = await service.find_turns(status="stopped")
    assert turn.reason == "enough"
    assert authors(await read(service)) == ["user"]


async def test_a_stop_after_the_end_leaves_the_status(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """While the turn is released, which may take long."""
    await service.create_session(**IDS)
    with admin.start_session() as slow:
        model = ScriptedModel(script=["done"])
        agent = LlmAgent(name="agent", model=model)
        runner = Runner(agent=agent, app_name=IDS["app_name"], session_service=service)
        running = await start(service, runner)
        async for event in running:
            if event.is_final_response():
                slow.start_transaction()
                change = {"$set": {"held": True}}
                admin[database].sessions.update_one({}, change, session=slow)
                await until(lambda: running.turn.info.status == "ended")
                running.request_stop("too late")
                slow.abort_transaction()
    assert running.turn.info.status == "ended"
    (turn,) = await service.find_turns(status="ended")
    assert turn.reason is None
