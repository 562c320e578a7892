"""Events of real turns: what is stored, in which order, and which ones are read."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, RunConfig
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.artifacts import InMemoryArtifactService
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools import ToolContext
from google.genai import types
from support.scripted_model import (
    APP,
    USER,
    ScriptedModel,
    Turn,
    ask,
    call,
    conversation_in,
    start,
    stored,
    texts_of,
)

from mongo_session_service import MongoSessionService


def chat(*answers: Turn, **options: Any) -> tuple[LlmAgent, ScriptedModel]:
    model = ScriptedModel(script=answers)
    return LlmAgent(name="assistant", model=model, **options), model


def texts(events: list[Event]) -> list[str]:
    return [text for event in events for text in texts_of(event.content)]


async def test_invocations_group_events(service: MongoSessionService) -> None:
    """The events of one turn, from message to answer, share an invocation id."""

    def get_weather(city: str) -> dict[str, Any]:
        """Look up a city's weather."""
        return {"city": city, "temp": 22, "condition": "sunny"}

    agent, model = chat(
        call("get_weather", city="東京"),
        "It's 22°C and sunny in 東京.",
        "You're welcome.",
        tools=[get_weather],
    )
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await start(service, "s")

    yielded = [await ask(runner, "s", text) for text in ("The weather?", "Thanks")]

    events = (await stored(service, "s")).events
    first, second = events[0].invocation_id, events[4].invocation_id
    assert first != second
    assert [event.invocation_id for event in events] == [first] * 4 + [second] * 2
    assert [events[1:4], events[5:]] == yielded
    assert [event.author for event in events] == [
        "user",
        *["assistant"] * 3,
        "user",
        "assistant",
    ]
    (function_call,) = events[1].get_function_calls()
    (response,) = events[2].get_function_responses()
    assert function_call.args == {"city": "東京"}
    assert function_call.id == response.id
    assert response.response == {"city": "東京", "temp": 22, "condition": "sunny"}
    assert conversation_in(model.requests[2]) == [
        "The weather?",
        "It's 22°C and sunny in 東京.",
        "Thanks",
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (GetSessionConfig(num_recent_events=0), []),
        (GetSessionConfig(num_recent_events=3), ["1", "q2", "2"]),
        (GetSessionConfig(num_recent_events=99), ["q0", "0", "q1", "1", "q2", "2"]),
        (GetSessionConfig(after_timestamp=21.0), ["1", "q2", "2"]),
        (GetSessionConfig(after_timestamp=21.5), ["q2", "2"]),
        (GetSessionConfig(num_recent_events=2, after_timestamp=20.0), ["q2", "2"]),
        (GetSessionConfig(num_recent_events=4, after_timestamp=31.0), ["2"]),
    ],
)
async def test_limited_history(
    service: MongoSessionService, config: GetSessionConfig, expected: list[str]
) -> None:
    """A reader, and a Runner's turn, may ask for recent events; state stays whole."""
    session = await start(service, "s", {"topic": "cats"})
    for number in range(3):
        for author, text, offset in (("user", "q", 0), ("assistant", "", 1)):
            event = Event(
                author=author,
                invocation_id=f"i{number}",
                content=types.Content(
                    role="user" if author == "user" else "model",
                    parts=[types.Part(text=f"{text}{number}")],
                ),
                timestamp=10.0 * (number + 1) + offset,
            )
            await service.append_event(session, event)

    found = await service.get_session(
        app_name=APP, user_id=USER, session_id="s", config=config
    )
    assert found is not None
    assert texts(found.events) == expected
    assert found.state == {"topic": "cats"}

    agent, model = chat("Done.")
    runner = Runner(agent=agent, app_name=APP, session_service=service)
    await ask(runner, "s", "More", run_config=RunConfig(get_session_config=config))

    assert conversation_in(model.requests[0]) == [*expected, "More"]
    assert len((await stored(service, "s")).events) == 8


async def test_images_and_artifacts(service: MongoSessionService) -> None:
    """A user's image comes back byte for byte, a tool's artifact as a version."""
    image = types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png")

    async def save(tool_context: ToolContext) -> str:
        """Save the chart twice."""
        await tool_context.save_artifact("chart.png", image)
        await tool_context.save_artifact("chart.png", image)
        return "saved"

    agent, _ = chat(call("save"), "Saved.", tools=[save])
    runner = Runner(
        agent=agent,
        app_name=APP,
        session_service=service,
        artifact_service=InMemoryArtifactService(),
    )
    await start(service, "s")

    message = types.Content(role="user", parts=[image, types.Part(text="Save this")])
    await ask(runner, "s", message)

    events = (await stored(service, "s")).events
    assert events[0].content == message
    assert [event.actions.artifact_delta for event in events] == [
        {},
        {},
        {"chart.png": 1},
        {},
    ]


async def test_compaction(service: MongoSessionService) -> None:
    """A summary is stored as an event, and the next request holds it instead."""
    agent, model = chat(*(f"answer {number}" for number in range(1, 5)))
    summaries = ScriptedModel(script=["A summary."])
    compaction = EventsCompactionConfig(
        summarizer=LlmEventSummarizer(llm=summaries),
        compaction_interval=3,
        overlap_size=0,
    )
    app = App(name=APP, root_agent=agent, events_compaction_config=compaction)
    runner = Runner(app=app, session_service=service)
    await start(service, "s")

    for number in range(1, 5):
        await ask(runner, "s", f"question {number}")

    events = (await stored(service, "s")).events
    assert len(events) == 9
    compacted = events[6].actions.compaction
    assert compacted is not None
    assert texts_of(compacted.compacted_content) == ["A summary."]
    assert compacted.start_timestamp == events[0].timestamp
    assert compacted.end_timestamp == events[5].timestamp
    conversations = [conversation_in(request) for request in model.requests]
    assert conversations[2] == [
        "question 1",
        "answer 1",
        "question 2",
        "answer 2",
        "question 3",
    ]
    assert conversations[3] == ["A summary.", "question 4"]
    assert "question 3" in conversation_in(summaries.requests[0])[0]
