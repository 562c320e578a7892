"""Several agents in one invocation, and several invocations at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from pymongo import MongoClient
from support.scripted_model import (
    APP,
    ScriptedModel,
    ask,
    call,
    revisions,
    start,
    stored,
)

from mongo_session_service import MongoSessionService

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Sequential|Parallel)Agent is deprecated:DeprecationWarning"
)


async def test_parallel_branches(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Branches that write at once: all keys and events are stored, none twice."""
    branches = [f"branch{number}" for number in range(6)]
    together = asyncio.Barrier(len(branches))

    async def research(topic: str, tool_context: ToolContext) -> str:
        """Research a topic."""
        await together.wait()
        for prefix in ("", "user:", "app:"):
            tool_context.state[f"{prefix}{topic}"] = [topic]
        tool_context.state["temp:topic"] = topic
        return topic

    agent = ParallelAgent(
        name="researchers",
        sub_agents=[
            LlmAgent(
                name=name,
                model=ScriptedModel(script=[call("research", topic=name), "Done."]),
                tools=[research],
                output_key=f"{name}_answer",
            )
            for name in branches
        ],
    )
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s")

    events = await ask(runner, "s", "Research everything")

    session = await stored(service, "s")
    assert session.state == {
        **{f"{name}_answer": "Done." for name in branches},
        **{f"{prefix}{n}": [n] for prefix in ("", "user:", "app:") for n in branches},
    }
    assert [event.id for event in session.events[1:]] == [event.id for event in events]
    for name in branches:
        own = [event for event in session.events if event.author == name]
        assert len(own) == 3
        assert {event.branch for event in own} == {f"researchers.{name}"}
    count = 1 + 3 * len(branches)
    log = list(range(1, count + 1))
    assert revisions(admin, database, "s") == (count, log)
