"""Events in which a model calls functions, and in which they respond."""

from __future__ import annotations

from google.adk.events import Event
from google.genai import types


def called(
    *names: str, turn: str = "theirs", id_: str | None = "", long_running: bool = False
) -> Event:
    """The model calls functions; an id is its function's name."""
    parts = [
        types.Part(
            function_call=types.FunctionCall(id=each if id_ == "" else id_, name=each)
        )
        for each in names
    ]
    return Event(
        author="agent",
        invocation_id=turn,
        content=types.Content(role="model", parts=parts),
        long_running_tool_ids=set(names) if long_running else None,
    )


def responded(name: str, turn: str = "theirs", id_: str | None = "") -> Event:
    response = types.FunctionResponse(
        id=name if id_ == "" else id_, name=name, response={"done": True}
    )
    parts = [types.Part(function_response=response)]
    return Event(
        author="agent",
        invocation_id=turn,
        content=types.Content(role="user", parts=parts),
    )


def open_calls(events: list[Event]) -> set[str | None]:
    """Ids of the calls in a log that have no response."""
    calls = {each.id for event in events for each in event.get_function_calls()}
    return calls - {it.id for event in events for it in event.get_function_responses()}
