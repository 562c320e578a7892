"""Turns that run by themselves: read by anybody, stopped from anywhere, never lost."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.tools import LongRunningFunctionTool
from google.genai import types
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.conversations import STREAMED
from support.function_calls import open_calls
from support.one_session import IDS, read
from support.scripted_model import ScriptedModel, call, said
from support.spoken_model import SpokenModel

from mongo_session_service import (
    InvalidInputError,
    LeaseLostError,
    MongoSessionService,
    RunningTurn,
)
from mongo_session_service.turns.turn import turns_filter

OWNER = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}
SEALED = "INVOCATION_ABORTED"


def runner_of(service: MongoSessionService, model: BaseLlm, *tools: Any) -> Runner:
    agent = LlmAgent(name="agent", model=model, tools=list(tools))
    return Runner(agent=agent, app_name=IDS["app_name"], session_service=service)


def streamed(*pieces: str) -> list[LlmResponse]:
    """An answer in pieces, and then as a whole."""
    return [
        *(response(each, partial=True) for each in pieces),
        response("".join(pieces)),
    ]


def response(text: str, *, partial: bool | None = None) -> LlmResponse:
    """An answer, or a piece of it."""
    content = types.Content(role="model", parts=[types.Part(text=text)])
    return LlmResponse(content=content, partial=partial)


async def start(
    service: MongoSessionService, runner: Runner, text: str = "hi", **options: Any
) -> RunningTurn:
    """A running turn of the session."""
    return await service.start_turn(
        runner, **OWNER, new_message=said(text), run_config=STREAMED, **options
    )


def texts(events: list[Event]) -> list[str]:
    return [
        part.text
        for event in events
        if event.content
        for part in event.content.parts or []
        if part.text
    ]


async def heard_all(running: RunningTurn) -> None:
    """Read until the model has said both words, after which it says nothing more."""
    async for event in running:
        if "I" in "".join(texts([event])):
            break


async def test_an_answer_survives_its_readers(service: MongoSessionService) -> None:
    """One reads all, one leaves after the first piece, one comes when it is over."""
    await service.create_session(**IDS)
    model = ScriptedModel(script=[streamed("one ", "two ", "three")])
    running = await start(service, runner_of(service, model))

    async for _ in running:
        break
    followed = [event async for event in running]
    whole = await running.result()
    late = [event async for event in running]

    assert "".join(texts([it for it in followed if it.partial])) in (
        "",
        "one two three",
    )
    assert texts(whole) == texts(late) == ["one two three"]
    assert texts((await read(service)).events) == ["hi", "one two three"]
    assert running.epoch == 1


async def test_a_failure_is_raised_to_all_that_wait(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, and the session's next turn works."""
    await service.create_session(**IDS)

    def explode() -> None:
        raise ZeroDivisionError

    runner = runner_of(
        service, ScriptedModel(script=[call("explode"), "sorry"]), explode
    )
    running = await start(service, runner)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await running.result()
    with pytest.raises(ZeroDivisionError):
        [event async for event in running]

    assert [it.levelname for it in caplog.records if "has failed" in it.message] == [
        "WARNING"
    ]
    (turn,) = await service.find_turns(status="failed")
    assert (turn.epoch, turn.error_type) == (1, "ZeroDivisionError")
    assert open_calls((await read(service)).events) == set()
    again = await start(service, runner, "again")
    assert texts(await again.result()) == ["sorry"]


@pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated")
@pytest.mark.parametrize("is_sequential", [False, True])
async def test_a_stop_ends_the_agent_and_keeps_the_partial_answer(
    service: MongoSessionService, *, is_sequential: bool
) -> None:
    """Also of a model that answers no more, below an agent that ignores the signal."""
    await service.create_session(**IDS)
    model = SpokenModel()
    model.say("Well, ", "I")
    runner = runner_of(service, model)
    if is_sequential:
        agent = LlmAgent(name="agent", model=model)
        root = SequentialAgent(name="root", sub_agents=[agent])
        runner = Runner(agent=root, app_name=IDS["app_name"], session_service=service)
    running = await start(service, runner)
    await heard_all(running)
    (turn,) = await service.find_turns(app_name="app")
    assert (turn.status, turn.epoch) == ("running", 1)

    await running.stop("enough")

    events = (await read(service)).events
    assert texts(events) == ["hi", "Well, I"]
    assert [it.interrupted for it in events if texts([it]) == ["Well, I"]] == [True]
    assert [it.error_code for it in events].count(SEALED) == 1
    told = [(it.custom_metadata or {}).get("stop_reason") for it in events]
    assert told[-2:] == ["enough", "enough"]
    assert await service.find_turns() == []
    (turn,) = await service.find_turns(status="stopped")
    assert turn.reason == "enough"


@pytest.mark.limits(stop_poll_seconds=0.05)
async def test_any_process_can_stop_a_turn(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Another service asks for it; the holder notices while its tool waits."""
    await service.create_session(**IDS)
    has_begun = asyncio.Event()

    async def wait_for_ever() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    model = ScriptedModel(script=[call("wait_for_ever")])
    running = await start(service, runner_of(service, model, wait_for_ever))
    await has_begun.wait()
    async with MongoSessionService(mongodb_uri, database=database) as other:
        assert await other.stop_turn(**IDS, reason="from elsewhere")
        await running.result()
        assert not await other.stop_turn(**IDS)

    assert open_calls((await read(service)).events) == set()
    (turn,) = await service.find_turns(status="stopped")
    assert turn.reason == "from elsewhere"


async def test_a_turn_may_interrupt_the_one_before(
    service: MongoSessionService,
) -> None:
    """The new message is answered after the stopped turn was sealed."""
    await service.create_session(**IDS)
    model = SpokenModel()
    model.say("Well, ", "I")
    first = await start(service, runner_of(service, model), keep_partial_answer=False)
    await heard_all(first)
    scripted = runner_of(service, ScriptedModel(script=["here"]))
    second = await start(service, scripted, "listen", interrupt=True)
    await second.result()

    assert first.is_done
    assert texts((await read(service)).events) == ["hi", "listen", "here"]


@pytest.mark.limits(lease_renewal_seconds=0.1)
async def test_a_turn_that_was_taken_over_ends(
    service: MongoSessionService,
    second: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its model is not paid for what nobody can store."""
    await service.create_session(**IDS)
    model = SpokenModel()
    model.say("Well, ", "I")
    running = await start(service, runner_of(service, model))
    await heard_all(running)
    admin[database].sessions.update_one({}, {"$unset": {"turn.holder": ""}})
    async with second.turn(**IDS) as session:
        with pytest.raises(LeaseLostError, match="was taken over"):
            await running.result()
        assert session.events == (await read(service)).events
    assert "has failed with LeaseLostError" in caplog.text


@pytest.mark.limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
async def test_the_next_turn_closes_an_abandoned_one(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """The open call is answered; one that waits for a person since before stays."""
    await service.create_session(**IDS)

    def ask_person() -> None:
        """Ask."""

    model = ScriptedModel(script=[call("ask_person"), "wait please"])
    tool = LongRunningFunctionTool(ask_person)
    await (await start(service, runner_of(service, model, tool))).result()
    waiting = open_calls((await read(service)).events)
    await abandon_turn(service, database, admin)
    (turn,) = await service.find_turns()
    assert turn.status == "abandoned"

    async with service.turn(**IDS) as session:
        assert session.events[-1].error_code == SEALED
    assert open_calls((await read(service)).events) == waiting
    async with service.turn(**IDS) as session:
        assert [it.error_code for it in session.events].count(SEALED) == 1


async def test_closing_stops_running_turns(mongodb_uri: str, database: str) -> None:
    """After the grace, and with closing events in the log."""
    service = MongoSessionService(mongodb_uri, database=database)
    await service.create_session(**IDS)
    model = SpokenModel()
    model.say("Well, ", "I")
    running = await start(service, runner_of(service, model))
    await heard_all(running)
    await service.close(grace=0.1)

    assert running.is_done
    async with MongoSessionService(mongodb_uri, database=database) as other:
        assert (await read(other)).events[-1].interrupted
        (turn,) = await other.find_turns(status="stopped")
        assert turn.reason == "the service was closed"


async def test_turns_are_found_by_app_and_user(service: MongoSessionService) -> None:
    """Whoever asks for one user's gets no other's."""
    for app_name, user_id in [("a", "ada"), ("a", "bob"), ("b", "ada")]:
        ids = {"app_name": app_name, "user_id": user_id, "session_id": "s"}
        await service.create_session(**ids)
        async with service.turn(**ids):
            running = await service.find_turns(app_name=app_name, user_id=user_id)
        assert [turn[:2] for turn in running] == [(app_name, user_id)]

    ended = await service.find_turns(status="ended")
    of_app = await service.find_turns(app_name="a", status="ended")
    assert [turn[:2] for turn in ended] == [("a", "ada"), ("a", "bob"), ("b", "ada")]
    assert of_app == ended[:2]


async def test_running_turns_are_found_by_an_index(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Of any number of sessions, only those that have one are looked at."""
    sessions = admin[database].sessions
    stored = {"state": {}, "revision": 0, "create_time": 1.0, "update_time": 1.0}
    documents = [
        {"_id": IDS | {"session_id": f"s{number}"}, **stored} for number in range(500)
    ]
    await service.setup()
    sessions.insert_many(documents)
    async with service.turn(**IDS | {"session_id": "s7"}):
        for user_id in (None, IDS["user_id"]):
            wanted = turns_filter("app", user_id, None, time.time())
            find = {"find": "sessions", "filter": wanted}
            plan = admin[database].command(
                {"explain": find, "verbosity": "executionStats"}
            )
            assert plan["executionStats"]["totalKeysExamined"] <= 2
            assert plan["executionStats"]["totalDocsExamined"] == 1


async def test_bad_input_starts_nothing(service: MongoSessionService) -> None:
    """No session, no runner, no such status, a turn within itself."""
    runner = runner_of(service, ScriptedModel())
    with pytest.raises(SessionNotFoundError):
        await start(service, runner)
    with pytest.raises(InvalidInputError):
        await service.start_turn("runner", **OWNER)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        await service.find_turns(status="busy")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError):
        await service.find_turns(user_id="ada")
    assert not await service.stop_turn(**IDS)
    assert await service.find_turns() == []


async def test_the_callers_context_is_that_of_the_agent(
    service: MongoSessionService,
) -> None:
    """A copy of it; and a task group of the caller's does not wait for the turn."""
    asked: ContextVar[str] = ContextVar("asked")
    seen: list[str] = []
    may_end = asyncio.Event()

    async def look() -> None:
        seen.append(asked.get())
        asked.set("changed by the agent")
        await may_end.wait()

    await service.create_session(**IDS)
    model = ScriptedModel(script=[call("look"), "done"])
    asked.set("by the caller")
    async with asyncio.TaskGroup() as group:
        starting = group.create_task(start(service, runner_of(service, model, look)))
    may_end.set()
    await starting.result().result()
    assert (seen, asked.get()) == (["by the caller"], "by the caller")
