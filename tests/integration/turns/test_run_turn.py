"""ADK's Runner in turns: requests for one session run one after another."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from pymongo import MongoClient
from support.one_session import IDS, read
from support.scripted_model import ScriptedModel, call, said

from mongo_session_service import LeaseLostError, MongoSessionService

OF_USER = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}


def runner_of(service: MongoSessionService, tool: Any, *script: Any) -> Runner:
    agent = LlmAgent(name="agent", model=ScriptedModel(script=script), tools=[tool])
    return Runner(agent=agent, app_name=IDS["app_name"], session_service=service)


def count(tool_context: ToolContext) -> int:
    number: int = tool_context.state.get("count", 0) + 1
    tool_context.state["count"] = number
    return number


async def test_parallel_requests_take_turns(service: MongoSessionService) -> None:
    """Each sees what the one before has stored, and its events stay together."""
    await service.create_session(**IDS)

    async def request(number: int) -> list[str]:
        runner = runner_of(service, count, call("count"), f"done {number}")
        running = service.run_turn(
            runner, **OF_USER, new_message=said(f"request {number}")
        )
        return [event.id async for event in running]

    told = await asyncio.gather(*map(request, range(3)))

    stored = await read(service)
    assert stored.state["count"] == 3
    turns = [stored.events[first : first + 4] for first in range(0, 12, 4)]
    assert [[each.id for each in turn[1:]] for turn in turns] == told
    assert all(len({each.invocation_id for each in turn}) == 1 for turn in turns)


async def test_the_runner_holds_the_turn_and_its_reader_does_not(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Once it is taken over, the Runner's next append is refused."""
    await service.create_session(**IDS)
    runner = runner_of(service, count, call("count"), "done")
    running = service.run_turn(runner, **OF_USER, new_message=said("hello"))
    async with aclosing(running) as events:
        await anext(events)
        admin[database].sessions.update_one({}, {"$inc": {"turn.epoch": 1}})
        with pytest.raises(LeaseLostError):
            await anext(events)


async def test_a_reader_that_stops_early_ends_the_turn(
    service: MongoSessionService,
) -> None:
    """The next request follows at once."""
    await service.create_session(**IDS)
    for _ in range(2):
        runner = runner_of(service, count, call("count"), "done")
        running = service.run_turn(runner, **OF_USER, wait=0, new_message=said("hello"))
        async with aclosing(running) as events:
            await anext(events)
    assert len((await read(service)).events) >= 4
