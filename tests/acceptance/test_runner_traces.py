"""An agent's trace, in which the calls to its session service have their place."""

from __future__ import annotations

from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from opentelemetry import trace
from support.otel_recorder import recording
from support.scripted_model import APP, ScriptedModel, ask, start

from mongo_session_service import MongoSessionService


async def test_the_store_is_in_the_agents_trace(
    service: MongoSessionService, database: str
) -> None:
    """What an invocation stores and reads are spans of its trace, below its own."""
    recorded = recording()
    await start(service, "s")
    agent = LlmAgent(name="greeter", model=ScriptedModel(script=["Hello."]))
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    before = len(recorded.all_spans())

    with trace.get_tracer("app").start_as_current_span("request") as request:
        await ask(runner, "s", "Hello?")

    spans = recorded.all_spans()[before:]
    names = {each.context.span_id: each.name for each in spans if each.context}
    stored = [
        (each.name.removesuffix(f" {database}"), names[each.parent.span_id])
        for each in spans
        if each in recorded.spans(database) and each.parent
    ]
    trace_id = request.get_span_context().trace_id
    assert {each.context and each.context.trace_id for each in spans} == {trace_id}
    assert ("get_session", "request") in stored
    appending = [parent for name, parent in stored if name == "append_event"]
    assert len(appending) == 2
    assert "request" not in appending
