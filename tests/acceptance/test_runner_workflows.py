"""Several agents in one invocation, and several invocations at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from pymongo import MongoClient
from support.scripted_model import (
    APP,
    USER,
    ScriptedModel,
    Turn,
    ask,
    call,
    documents,
    instruction_of,
    revisions,
    start,
    stored,
)

from mongo_session_service import MongoSessionService

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Sequential|Parallel)Agent is deprecated:DeprecationWarning"
)


async def test_temp_state_of_an_invocation(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """``temp:`` is shared along a SequentialAgent, then gone, and never stored."""

    def fetch(tool_context: ToolContext) -> str:
        """Fetch the secret."""
        tool_context.state["temp:raw_api_response"] = {"secret": "xyzzy"}
        tool_context.state["temp:sum"] = 40 + tool_context.state["temp:offset"]
        return "fetched"

    def before(callback_context: CallbackContext) -> None:
        assert not [key for key in callback_context.state.to_dict() if "temp:" in key]
        callback_context.state["temp:offset"] = 2

    fetcher = LlmAgent(
        name="fetcher",
        model=ScriptedModel(script=[call("fetch"), "Fetched."] * 2),
        tools=[fetch],
        output_key="temp:report",
    )
    writer_model = ScriptedModel(script=["Written."] * 2)
    writer = LlmAgent(
        name="writer",
        model=writer_model,
        instruction="{temp:report}\n{temp:raw_api_response}\n{temp:sum}",
        output_key="article",
    )
    agent = SequentialAgent(
        name="pipeline", sub_agents=[fetcher, writer], before_agent_callback=before
    )
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s")

    for _ in range(2):  # the callback asserts that the first invocation left nothing
        events = await ask(runner, "s", "Write about the secret")
        assert events[-1].author == "writer"

    for request in writer_model.requests:
        lines = ["Fetched.", "{'secret': 'xyzzy'}", "42"]
        assert instruction_of(request)[:3] == lines
    session = await stored(service, "s")
    assert session.state == {"article": "Written."}
    assert not [event for event in session.events if "temp:" in repr(event)]
    everything = repr(documents(admin, database))
    assert "Written." in everything
    assert "temp:" not in everything
    assert "raw_api_response" not in everything
    assert "xyzzy" not in everything


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


async def test_invocations_at_once(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Turns of many sessions that write one app and user state lose no key."""
    names = [f"session{number}" for number in range(8)]
    together = asyncio.Barrier(len(names))

    async def visit(name: str, tool_context: ToolContext) -> str:
        """Note a visit."""
        await together.wait()
        tool_context.state[f"app:{name}"] = 1
        tool_context.state[f"user:{name}"] = 1
        tool_context.state["visited"] = name
        return "noted"

    async def turn(name: str) -> None:
        agent = LlmAgent(
            name="agent",
            model=ScriptedModel(script=[call("visit", name=name), "Bye."]),
            tools=[visit],
        )
        runner = Runner(agent=agent, app_name=APP, session_service=service)
        await ask(runner, name, "Hello")

    for name in names:
        await start(service, name)
    await asyncio.gather(*map(turn, names))

    shared = {f"{prefix}:{name}": 1 for prefix in ("app", "user") for name in names}
    for name in names:
        assert (await stored(service, name)).state == {"visited": name, **shared}
        assert revisions(admin, database, name) == (4, [1, 2, 3, 4])


async def test_transfer_survives_reloading(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """A transfer is stored: a restarted service goes on with the same agent."""

    def team(*, router: list[Turn], specialist: list[Turn]) -> LlmAgent:
        return LlmAgent(
            name="router",
            model=ScriptedModel(script=router),
            sub_agents=[
                LlmAgent(
                    name="specialist",
                    description="Knows everything.",
                    model=ScriptedModel(script=specialist),
                )
            ],
        )

    transfer = call("transfer_to_agent", agent_name="specialist")
    agent = team(router=[transfer], specialist=["I can help."])
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s")
    await ask(runner, "s", "Hello")

    async with MongoSessionService(mongodb_uri, database=database) as restarted:
        agent = team(router=[], specialist=["Still here."])
        runner = Runner(agent=agent, app_name=APP, session_service=restarted)
        await ask(runner, "s", "Are you there?")
        session = await restarted.get_session(
            app_name=APP, user_id=USER, session_id="s"
        )

    assert session is not None
    assert session.events[2].actions.transfer_to_agent == "specialist"
    authors = ["user", "router", "router", "specialist", "user", "specialist"]
    assert [event.author for event in session.events] == authors
