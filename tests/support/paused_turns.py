"""Turns that wait for a person: begun in one process, finished in another.

Usage: MONGODB_URI=... python paused_turns.py DATABASE begin|finish

After ``begin`` the process kills itself: what is not in the database is lost. After
``finish`` it prints, as JSON, the call that waited in each case and what the model was
told in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.runners import Runner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types

from mongo_session_service import MongoSessionService
from support.scripted_model import APP, ScriptedModel, Turn, ask, call, start, stored


def send(amount: int, tool_context: ToolContext) -> dict[str, int]:
    """Send money."""
    tool_context.state["balance"] = tool_context.state["balance"] - amount
    tool_context.state["user:sent"] = tool_context.state.get("user:sent", 0) + amount
    return {"sent": amount}


def send_what_is_approved(amount: int, tool_context: ToolContext) -> dict[str, Any]:
    """Send as much money as a person approves of."""
    if tool_context.tool_confirmation is None:
        tool_context.request_confirmation(
            hint="How much may be sent?", payload={"approved": 0, "$of": amount}
        )
        return {"status": "waiting"}
    assert isinstance(tool_context.tool_confirmation.payload, dict)
    return send(tool_context.tool_confirmation.payload["approved"], tool_context)


def apply_for(amount: int, tool_context: ToolContext) -> dict[str, str]:
    """Apply for money, which takes days."""
    tool_context.state["applied"] = amount
    return {"status": "pending"}


def confirmed(tool: Callable[..., Any]) -> FunctionTool:
    """A tool that ADK itself asks a person about."""
    return FunctionTool(tool, require_confirmation=True)


@dataclass(frozen=True)
class Case:
    """A tool call that has to wait, and what a person finally says to it."""

    tool: FunctionTool
    answer: dict[str, Any]
    is_resumable: bool = False


CASES = {
    "approved": Case(confirmed(send), {"confirmed": True}),
    "approved, resumable": Case(
        confirmed(send), {"confirmed": True}, is_resumable=True
    ),
    "rejected": Case(confirmed(send), {"confirmed": False}),
    "payload": Case(
        FunctionTool(send_what_is_approved),
        {"confirmed": True, "payload": {"approved": 20}},
    ),
    "long running": Case(LongRunningFunctionTool(apply_for), {"status": "granted"}),
}


def bank(
    case: Case, service: MongoSessionService, *script: Turn
) -> tuple[Runner, ScriptedModel]:
    """A bank whose model follows the script."""
    model = ScriptedModel(script=script)
    agent = LlmAgent(name="bank", model=model, tools=[case.tool])
    app = App(
        name=APP,
        root_agent=agent,
        resumability_config=ResumabilityConfig(is_resumable=case.is_resumable),
    )
    return Runner(app=app, session_service=service), model


async def begin(name: str, case: Case, service: MongoSessionService) -> None:
    """Let the model call the tool, up to where a person has to answer."""
    await start(service, name, {"balance": 100})
    runner, _ = bank(case, service, call(case.tool.name, amount=50), "One moment.")
    await ask(runner, name, "50, please")


async def finish(name: str, case: Case, service: MongoSessionService) -> dict[str, Any]:
    """Give the person's answer to the call that storage says is waiting."""
    session = await stored(service, name)
    page = await service.find_sessions(app_name=APP, waiting=True)
    (known,) = next(each.waiting for each in page.sessions if each.id == name)
    (waiting,) = (
        call
        for event in session.events
        for call in event.get_function_calls()
        if call.id == known.call_id
    )
    answer = types.Part.from_function_response(
        name=waiting.name or "", response=case.answer
    )
    assert answer.function_response is not None
    answer.function_response.id = waiting.id
    runner, model = bank(case, service, "Done.")
    await ask(runner, name, types.Content(role="user", parts=[answer]))
    (request,) = model.requests
    parts = [part for content in request.contents for part in content.parts or []]
    responses = [part.function_response for part in parts if part.function_response]
    return {
        "waited": waiting.name,
        "asked": (waiting.args or {}).get("toolConfirmation"),
        "told": [response.response for response in responses],
    }


async def main(database: str, half: str) -> None:
    """Go through one half of every case."""
    uri = os.environ["MONGODB_URI"]
    async with MongoSessionService(uri, database=database) as service:
        if half == "begin":
            for name, case in CASES.items():
                await begin(name, case, service)
            os.kill(os.getpid(), signal.SIGKILL)
        ends = {name: await finish(name, case, service) for name, case in CASES.items()}
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
