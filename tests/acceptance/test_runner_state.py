"""State as ADK documents it, through ADK's own Runner."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from google.genai import types
from support.scripted_model import (
    APP,
    USER,
    ScriptedModel,
    ask,
    call,
    said,
    start,
    stored,
)

from mongo_session_service import MongoSessionService


def greeter(*greetings: str, output_key: str = "last_greeting") -> LlmAgent:
    return LlmAgent(
        name="Greeter",
        model=ScriptedModel(script=greetings),
        instruction="Generate a short, friendly greeting.",
        output_key=output_key,
    )


async def test_output_key_with_run(service: MongoSessionService) -> None:
    """Each ``run()`` has a loop of its own, and saves the final answer in state."""
    runner = Runner(
        agent=greeter("Hello there!", "Hello again!"),
        app_name=APP,
        session_service=service,
    )
    session = await start(service, "session1")
    assert session.state == {}

    for greeting in ("Hello there!", "Hello again!"):
        events = list(
            runner.run(user_id=USER, session_id="session1", new_message=said("Hello"))
        )
        assert [event.is_final_response() for event in events] == [True]
        updated = await stored(service, "session1")
        assert updated.state == {"last_greeting": greeting}

    assert [event.author for event in updated.events] == ["user", "Greeter"] * 2


@pytest.mark.parametrize(
    ("key", "is_shared", "is_stored"),
    [
        ("last_greeting", False, True),
        ("user:last_greeting", True, True),
        ("app:last_greeting", True, True),
        ("temp:last_greeting", False, False),
    ],
)
async def test_output_key_with_run_async(
    service: MongoSessionService, key: str, *, is_shared: bool, is_stored: bool
) -> None:
    """An ``output_key`` goes to the scope that its prefix names."""
    runner = Runner(
        agent=greeter("Hello there!", output_key=key),
        app_name=APP,
        session_service=service,
    )
    await start(service, "session1")

    events = await ask(runner, "session1", "Hello")

    assert events[-1].is_final_response()
    greeting = {key: "Hello there!"}
    assert (await stored(service, "session1")).state == (greeting if is_stored else {})
    assert (await start(service, "session2")).state == (greeting if is_shared else {})


async def test_sync_runs_in_threads(service: MongoSessionService) -> None:
    """Runs in several threads at once, a loop each, all arrive in storage."""
    names = [f"session{number}" for number in range(6)]

    def run(name: str) -> None:
        agent = greeter(f"Hello {name}!", output_key=f"app:{name}")
        runner = Runner(agent=agent, app_name=APP, session_service=service)
        for _ in runner.run(user_id=USER, session_id=name, new_message=said("Hi")):
            pass

    for name in names:
        await start(service, name)
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(run, names))

    expected = {f"app:{name}": f"Hello {name}!" for name in names}
    for name in names:
        session = await stored(service, name)
        assert session.state == expected
        assert len(session.events) == 2


async def test_runner_state_delta(service: MongoSessionService) -> None:
    """A ``state_delta`` given to the Runner is stored with the user's message."""
    runner = Runner(agent=greeter("Hi"), app_name=APP, session_service=service)
    await start(service, "s")

    delta = {"page": "/cart", "user:theme": "dark"}
    await ask(runner, "s", "Hello", state_delta=delta)

    session = await stored(service, "s")
    assert session.state == {**delta, "last_greeting": "Hi"}
    assert session.events[0].author == "user"
    assert session.events[0].actions.state_delta == delta


async def test_tool_context_state(service: MongoSessionService) -> None:
    """A tool's writes, into nested values too, are the delta of its response."""

    def add_to_cart(item: str, tool_context: ToolContext) -> dict[str, int]:
        """Put an item into the cart."""
        state = tool_context.state
        if "cart" not in state:
            state["cart"] = {"items": []}
        state["cart"]["items"].append(item)
        state["user:user_action_count"] = state.get("user:user_action_count", 0) + 1
        state["app:last_item"] = item
        state["temp:last_operation_status"] = "success"
        return {"items": len(state["cart"]["items"])}

    agent = LlmAgent(
        name="shop",
        model=ScriptedModel(
            script=[
                call("add_to_cart", item="book"),
                call("add_to_cart", item="pen"),
                "Both are in your cart.",
            ]
        ),
        tools=[add_to_cart],
    )
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s")

    await ask(runner, "s", "A book and a pen, please")

    session = await stored(service, "s")
    assert session.state == {
        "cart": {"items": ["book", "pen"]},
        "user:user_action_count": 2,
        "app:last_item": "pen",
    }
    deltas = [event.actions.state_delta for event in session.events]
    assert [bool(delta) for delta in deltas] == [False, False, True, False, True, False]
    assert deltas[2] == {
        "cart": {"items": ["book"]},
        "user:user_action_count": 1,
        "app:last_item": "book",
    }
    responses = [event.get_function_responses() for event in session.events]
    assert responses[4][0].response == {"items": 2}


async def test_callback_context_state(service: MongoSessionService) -> None:
    """What agent callbacks write before and after is stored, in order."""

    def before(callback_context: CallbackContext) -> None:
        count = callback_context.state.get("user_action_count", 0)
        callback_context.state["user_action_count"] = count + 1
        callback_context.state["temp:last_operation_status"] = "started"

    def after(callback_context: CallbackContext) -> types.Content:
        status = callback_context.state["temp:last_operation_status"]
        callback_context.state["user:seen"] = [status, callback_context.invocation_id]
        return types.ModelContent("Anything else?")

    agent = greeter("Hello there!", "Hello again!")
    agent.before_agent_callback = before
    agent.after_agent_callback = after
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s")

    await ask(runner, "s", "Hello")
    await ask(runner, "s", "Hello")

    session = await stored(service, "s")
    assert session.state == {
        "user_action_count": 2,
        "last_greeting": "Hello again!",
        "user:seen": ["started", session.events[-1].invocation_id],
    }
    assert [list(event.actions.state_delta) for event in session.events] == [
        [],
        ["user_action_count"],
        ["last_greeting"],
        ["user:seen"],
    ] * 2
