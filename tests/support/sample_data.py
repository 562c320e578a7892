"""A small store's content, given to any ADK session service."""

from __future__ import annotations

from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

KEYS = [
    ("weather", "ada", "s1"),
    ("weather", "ada", "s2"),
    ("weather", "bob/x", "s/3"),
    ("bank", "ada", "s1"),
]
EMPTY = ("weather", "carl", "empty")
APPS = ["bank", "weather"]
STARTED = 1735689600.125


async def fill(service: Any, *, started: float = STARTED) -> None:
    """Give a service five sessions, 24 events, and state of every scope."""
    number = 0
    for app_name, user_id, session_id in KEYS:
        key = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
        state = {"topic": "start", "keep": [1, {"a": None}]}
        shared = {"user:city": "Turin", "app:greeting": "hello"}
        session = await service.create_session(**key, state=state | shared)
        for turn in range(3):
            number += 1
            for event in events(session.id, turn, number, started):
                await service.append_event(session, event)
            session = await service.get_session(**key)
    app_name, user_id, session_id = EMPTY
    await service.create_session(
        app_name=app_name,
        user_id=user_id,
        session_id=session_id,
        state={"only": "initial"},
    )


def events(session_id: str, turn: int, number: int, started: float) -> list[Event]:
    """What is said in one turn."""
    at = started + 100 * number
    delta = {"topic": f"turn {turn}", "temp:draft": "gone", "float": 0.1 + 0.2}
    actions: dict[str, Any] = {}
    if turn == 1:
        delta |= {"user:last": number, "app:count": number}
    if turn == 2:
        actions = {"transfer_to_agent": "other"}
    question = types.Part(text=f"Question {turn}: how is the weather in Zürich? ☀")
    call = types.FunctionCall(
        id=f"call-{turn}", name="get_weather", args={"city": "Zürich", "days": turn}
    )
    picture = types.Blob(data=bytes(range(16)), mime_type="image/png")
    return [
        Event(
            id=f"{session_id}-{turn}-user",
            invocation_id=f"inv-{turn}",
            author="user",
            content=types.Content(role="user", parts=[question]),
            timestamp=at,
        ),
        Event(
            id=f"{session_id}-{turn}-agent",
            invocation_id=f"inv-{turn}",
            author="weather_agent",
            content=types.Content(
                role="model",
                parts=[
                    types.Part(text=f"Answer {turn}."),
                    types.Part(function_call=call),
                    types.Part(inline_data=picture),
                ],
            ),
            actions=EventActions(
                state_delta=delta, artifact_delta={"map.png": turn}, **actions
            ),
            long_running_tool_ids={f"call-{turn}", "another"},
            branch="root.weather",
            turn_complete=True,
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                total_token_count=100 + turn
            ),
            timestamp=at + 0.5,
        ),
    ]
