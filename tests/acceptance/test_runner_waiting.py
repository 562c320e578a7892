"""Calls that wait for a person, as ADK's own ``Runner`` makes and answers them."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from fastapi.openapi.models import APIKey, APIKeyIn
from google.adk import Workflow
from google.adk.agents import LlmAgent
from google.adk.auth import AuthConfig, AuthCredential, AuthCredentialTypes
from google.adk.events import Event
from google.adk.events.request_input import RequestInput
from google.adk.runners import Runner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types
from support.scripted_model import (
    APP,
    USER,
    ScriptedModel,
    ask,
    call,
    start,
    stored,
    texts_of,
)

from mongo_session_service import MongoSessionService, WaitingCall

SHIPPED: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_shipped() -> None:
    SHIPPED.clear()


def ship(parcel: str) -> str:
    """Ships a parcel."""
    SHIPPED.append(parcel)
    return f"shipped {parcel}"


def apply_for(parcel: str) -> dict[str, str]:
    """Applies for a parcel, which takes days."""
    return {"status": f"{parcel} is pending"}


def look_up(parcel: str, tool_context: ToolContext) -> str:
    """Looks a parcel up, with the user's key."""
    scheme = APIKey(**{"in": APIKeyIn.header, "name": "X-Key"})
    config = AuthConfig(
        auth_scheme=scheme,
        raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY),
        credential_key="parcels",
    )
    given = tool_context.get_auth_response(config)
    if given is None:
        tool_context.request_credential(config)
        return "needs a key"
    return f"{parcel} found with {given.api_key}"


def clerk(service: MongoSessionService, tool: Any, *script: Any) -> Runner:
    model = ScriptedModel(script=script)
    agent = LlmAgent(name="clerk", model=model, tools=[tool])
    return Runner(agent=agent, app_name=APP, session_service=service)


async def inbox(service: MongoSessionService) -> dict[str, tuple[WaitingCall, ...]]:
    page = await service.find_sessions(app_name=APP, waiting=True)
    return {each.id: each.waiting for each in page.sessions}


async def the_call(service: MongoSessionService, session_id: str) -> WaitingCall:
    """The one call that waits in a session."""
    (waiting,) = (await inbox(service))[session_id]
    return waiting


def answer_to(waiting: WaitingCall, **response: Any) -> types.Content:
    answer = types.FunctionResponse(
        id=waiting.call_id, name=waiting.name, response=response
    )
    return types.Content(role="user", parts=[types.Part(function_response=answer)])


def said(events: list[Event]) -> list[str]:
    return [text for each in events for text in texts_of(each.content)]


CALL = {"parcel": "A1"}


async def test_a_confirmation_is_answered_after_other_turns(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """At another service, the answer keeps the first invocation's id."""
    await start(service, "s")
    tool = FunctionTool(ship, require_confirmation=True)
    runner = clerk(service, tool, call("ship", **CALL), "Sunny.")
    asked = await ask(runner, "s", "Ship it")
    waiting = await the_call(service, "s")
    assert (waiting.name, waiting.author) == ("adk_request_confirmation", "clerk")

    between = await ask(runner, "s", "How is the weather?")
    assert await the_call(service, "s") == waiting
    assert SHIPPED == []
    async with MongoSessionService(mongodb_uri, database=database) as other_service:
        runner = clerk(other_service, tool, "Done.")
        done = await ask(runner, "s", answer_to(waiting, confirmed=True))

    assert said(done) == ["Done."]
    assert SHIPPED == ["A1"]
    assert await inbox(service) == {}
    first, other = asked[0].invocation_id, between[0].invocation_id
    of_events = [each.invocation_id for each in (await stored(service, "s")).events]
    assert [each for each, _ in groupby(of_events)] == [first, other, first]
    key = {"app_name": APP, "user_id": USER, "session_id": "s"}
    found = [
        revision
        async for revision, _ in service.iter_events(**key, invocation_id=first)
    ]
    assert found == [at for at, it in enumerate(of_events, 1) if it == first]
    fork = await service.fork_session(**key, before_invocation_id=other)
    assert await the_call(service, fork.id) == waiting


async def test_a_long_running_tool_waits_for_its_end(
    service: MongoSessionService,
) -> None:
    """Its first response is the agent's own, and does not end the wait."""
    await start(service, "s")
    tool = LongRunningFunctionTool(apply_for)
    runner = clerk(service, tool, call("apply_for", **CALL), "Pending.", "Granted.")
    await ask(runner, "s", "Apply")
    waiting = await the_call(service, "s")
    assert waiting.name == "apply_for"
    done = await ask(runner, "s", answer_to(waiting, status="granted"))
    assert said(done) == ["Granted."]
    assert await inbox(service) == {}


async def test_a_credential_is_given(service: MongoSessionService) -> None:
    """The request for it waits; with the answer the tool runs again."""
    await start(service, "s")
    runner = clerk(
        service, FunctionTool(look_up), call("look_up", **CALL), "Wait.", "Found."
    )
    await ask(runner, "s", "Where is it?")
    waiting = await the_call(service, "s")
    assert waiting.name == "adk_request_credential"
    log = service.iter_events(
        app_name=APP, user_id=USER, session_id="s", after_revision=waiting.revision - 1
    )
    _, asking = await anext(log)
    await log.aclose()
    (request,) = asking.get_function_calls()
    config = AuthConfig.model_validate((request.args or {})["authConfig"])
    config.exchanged_auth_credential = AuthCredential(
        auth_type=AuthCredentialTypes.API_KEY, api_key="secret"
    )
    given = config.model_dump(by_alias=True, exclude_none=True, mode="json")
    done = await ask(runner, "s", answer_to(waiting, **given))
    results = [it.response for each in done for it in each.get_function_responses()]
    assert {"result": "A1 found with secret"} in results
    assert await inbox(service) == {}


async def test_a_workflow_gets_its_input(service: MongoSessionService) -> None:
    """A node that asks for input goes on with what the user has said."""

    async def ask_colour() -> Any:
        yield RequestInput(interrupt_id="colour", message="Which colour?")

    def paint(node_input: Any) -> str:
        SHIPPED.append(str(node_input))
        return "painted"

    await start(service, "s")
    workflow = Workflow(name="painter", edges=[("START", ask_colour, paint)])
    runner = Runner(agent=workflow, app_name=APP, session_service=service)
    await ask(runner, "s", "Paint it")
    waiting = await the_call(service, "s")
    assert (waiting.call_id, waiting.name) == ("colour", "adk_request_input")
    await ask(runner, "s", answer_to(waiting, result="red"))
    assert SHIPPED
    assert "red" in SHIPPED[0]
    assert await inbox(service) == {}
