"""Events by which an agent asks people for something, and their answers."""

from __future__ import annotations

from google.adk.events import Event
from google.genai import types


def ask(*call_ids: str, turn: str = "i1", name: str = "ship") -> Event:
    """An event of an agent that makes long-running calls."""
    parts = [
        types.Part(function_call=types.FunctionCall(id=each, name=name, args={}))
        for each in call_ids
    ]
    return Event(
        author="clerk",
        invocation_id=turn,
        content=types.Content(role="model", parts=parts),
        long_running_tool_ids=set(call_ids),
    )


def answer(*call_ids: str, turn: str = "i1") -> Event:
    """A user's response to such calls."""
    parts = [
        types.Part(
            function_response=types.FunctionResponse(
                id=each, name="ship", response={"ok": True}
            )
        )
        for each in call_ids
    ]
    content = types.Content(role="user", parts=parts)
    return Event(author="user", invocation_id=turn, content=content)


def say(text: str, turn: str) -> Event:
    return Event(author="user", invocation_id=turn, content=types.UserContent(text))
