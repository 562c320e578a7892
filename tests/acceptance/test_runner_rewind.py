"""ADK's session rewind: what it restores, what it keeps, what the model sees."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.adk.tools import ToolContext
from pymongo import MongoClient
from support.scripted_model import (
    APP,
    USER,
    ScriptedModel,
    Turn,
    ask,
    call,
    conversation_in,
    folded,
    revisions,
    rewind,
    start,
    stored,
)

from mongo_session_service import MongoSessionService


def set_color(color: str, tool_context: ToolContext) -> str:
    """Set the color."""
    tool_context.state["color"] = color
    tool_context.state["user:last_color"] = color
    tool_context.state["app:last_color"] = color
    tool_context.state[f"was_{color}"] = True
    return f"The color is {color}."


def painter(
    service: MongoSessionService, *script: Turn
) -> tuple[Runner, ScriptedModel]:
    model = ScriptedModel(script=script)
    agent = LlmAgent(name="painter", model=model, tools=[set_color])
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    return runner, model


def paint(*colors: str) -> list[Turn]:
    """The script of one turn per color."""
    return [
        turn
        for color in colors
        for turn in (call("set_color", color=color), f"Now {color}.")
    ]


def present(session: Session) -> dict[str, Any]:
    """A session's state without the keys that a rewind has emptied."""
    return {key: value for key, value in session.state.items() if value is not None}


async def test_rewind(service: MongoSessionService) -> None:
    """Session state goes back, the rest stays; the model forgets, the log does not."""
    runner, model = painter(service, *paint("red", "blue", "green"), "It is red.")
    await start(service, "s")
    turns = [
        await ask(runner, "s", f"set state color to {color}")
        for color in ("red", "blue", "green")
    ]
    log = (await stored(service, "s")).events

    await rewind(runner, "s", turns[1])

    session = await stored(service, "s")
    shared = {"user:last_color": "green", "app:last_color": "green"}
    assert present(session) == {"color": "red", "was_red": True, **shared}
    assert session.state == folded(session)
    assert session.events[:-1] == log
    rewound = session.events[-1].actions
    assert rewound.rewind_before_invocation_id == turns[1][0].invocation_id

    await ask(runner, "s", "Which color is it?")

    conversation = ["set state color to red", "Now red.", "Which color is it?"]
    assert conversation_in(model.requests[-1]) == conversation
    assert len((await stored(service, "s")).events) == len(log) + 3


async def test_rewind_keeps_the_initial_state(service: MongoSessionService) -> None:
    """The stored event, the log's fold, subscribers and the model agree about it."""
    runner, _ = painter(service, *paint("red", "blue"), "Hello.")
    initial = {"tenant": "t1", "color": "white", "was_blue": "never"}
    session = await start(service, "s", initial)
    turns = [await ask(runner, "s", f"set {color}") for color in ("red", "blue")]

    async with service.watch(APP, USER, session.id) as changes:
        state = (await anext(changes)).state
        await rewind(runner, "s", turns[0])
        told = await anext(changes)

    undone = await stored(service, "s")
    assert {k: v for k, v in present(undone).items() if ":" not in k} == initial
    assert undone.state == initial | folded(undone)
    assert told.event == undone.events[-1]
    assert told.state_delta == undone.events[-1].actions.state_delta
    assert (state or {}) | told.state_delta == undone.state
    assert "tenant" not in told.state_delta
    await ask(runner, "s", "Hello?")
    assert (await stored(service, "s")).state["color"] == "white"


async def test_rewinding_twice(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """A rewind may follow another, and may reach behind it."""
    colors = ("red", "blue", "green")
    runner, model = painter(service, *paint(*colors), "It is blue.", "Hello.")
    await start(service, "s")
    turns = [await ask(runner, "s", f"set {color}") for color in colors]

    await rewind(runner, "s", turns[2])
    assert present(await stored(service, "s"))["color"] == "blue"
    await ask(runner, "s", "Which color is it?")
    await rewind(runner, "s", turns[1])
    assert present(await stored(service, "s"))["color"] == "red"
    await rewind(runner, "s", turns[0])
    await ask(runner, "s", "Who are you?")

    session = await stored(service, "s")
    shared = {"user:last_color": "green", "app:last_color": "green"}
    assert present(session) == shared
    assert session.state == folded(session)
    assert conversation_in(model.requests[-1]) == ["Who are you?"]
    count = 3 * 4 + 1 + 2 + 1 + 1 + 2
    assert revisions(admin, database, "s") == (count, list(range(1, count + 1)))
