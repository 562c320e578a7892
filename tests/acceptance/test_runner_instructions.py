"""State in instructions: what the model's request really holds."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.llm_agent import InstructionProvider
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from support.scripted_model import (
    APP,
    ScriptedModel,
    ask,
    call,
    conversation_in,
    instruction_of,
    start,
)

from mongo_session_service import MongoSessionService


def assistant(
    model: ScriptedModel, instruction: str | InstructionProvider, **options: Any
) -> LlmAgent:
    return LlmAgent(name="assistant", model=model, instruction=instruction, **options)


@pytest.mark.parametrize(
    ("instruction", "state", "expected"),
    [
        pytest.param(
            "Write a story about a cat, focusing on the theme: {topic}.",
            {"topic": "friendship"},
            "Write a story about a cat, focusing on the theme: friendship.",
            id="session",
        ),
        pytest.param(
            "Help {user:name} with {topic} in {user:language}, version {app:version}.",
            {
                "user:name": "Alice",
                "topic": "state",
                "user:language": "en",
                "app:version": "1.0.0",
            },
            "Help Alice with state in en, version 1.0.0.",
            id="all scopes",
        ),
        pytest.param(
            "Topic: {topic?}, mood: {mood?}, look: {user:look?}.",
            {"topic": "cats"},
            "Topic: cats, mood: , look: .",
            id="optional",
        ),
        pytest.param(
            "{count} of {ratio}, {flag}, {items}, {nothing}, {nested}.",
            {
                "count": 3,
                "ratio": 0.5,
                "flag": True,
                "items": ["a", 1],
                "nothing": None,
                "nested": {"a.b": {"$c": None}},
            },
            "3 of 0.5, True, ['a', 1], , {'a.b': {'$c': None}}.",
            id="not only strings",
        ),
        pytest.param(
            'Answer as {"name": "..."}, with {no name}.',
            {"name": "unused"},
            'Answer as {"name": "..."}, with {no name}.',
            id="literal braces",
        ),
    ],
)
async def test_state_in_instruction(
    service: MongoSessionService,
    instruction: str,
    state: dict[str, Any],
    expected: str,
) -> None:
    """Keys in braces are replaced by stored values, exactly as they were given."""
    model = ScriptedModel(script=["Done."])
    agent = assistant(model, instruction)
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s", state)

    await ask(runner, "s", "Go on")

    (request,) = model.requests
    assert instruction_of(request)[0] == expected
    assert conversation_in(request) == ["Go on"]


async def test_instruction_follows_state(service: MongoSessionService) -> None:
    """Each request has the state of its moment, whichever session wrote it."""

    def choose(theme: str, tool_context: ToolContext) -> str:
        """Choose a theme."""
        tool_context.state["user:theme"] = theme
        return "chosen"

    model = ScriptedModel(script=[call("choose", theme="dark"), "Done.", "Still."])
    agent = assistant(model, "{user:theme?}/{app:motd?}", tools=[choose])
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s1")
    await start(service, "s2")

    await ask(runner, "s1", "Dark, please")
    await service.create_session(
        app_name=APP, user_id="operator", state={"app:motd": "Welcome", "user:theme": 0}
    )
    await ask(runner, "s2", "Which theme?")

    lines = [instruction_of(request)[0] for request in model.requests]
    assert lines == ["/", "dark/", "dark/Welcome"]
