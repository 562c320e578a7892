"""Closing events of a stopped turn are those of ADK when a client aborts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from google.adk.events import Event
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.turns.closing_events import closing_events_of_stopped

NEW = {"id", "timestamp"}
"""Fields that each closing event has of its own."""

ids = st.sampled_from(["1", "2", "3", "4"])
calls = ids.map(lambda id_: types.Part(function_call={"id": id_, "name": f"f{id_}"}))
answers = ids.map(
    lambda id_: types.Part(
        function_response={"id": id_, "name": f"f{id_}", "response": {}}
    )
)
texts = st.just(types.Part(text="well"))


@st.composite
def events(draw: st.DrawFn) -> Event:
    """An event of one invocation, by one of two agents, on one of two branches."""
    parts = draw(st.lists(calls | answers | texts, max_size=3))
    return Event(
        invocation_id="i",
        author=draw(st.sampled_from(["user", "root", "helper"])),
        branch=draw(st.sampled_from([None, "root.helper"])),
        isolation_scope=draw(st.sampled_from([None, "task"])),
        long_running_tool_ids=draw(st.sets(ids)) or None,
        content=types.Content(role="model", parts=parts),
    )


def bare(events: list[Event]) -> list[dict[str, Any]]:
    return [each.model_dump(exclude=NEW, exclude_none=True) for each in events]


@given(log=st.lists(events(), min_size=1, max_size=6))
def test_a_stop_closes_as_adk_does(log: list[Event]) -> None:
    """The same events, whatever was called, answered and left open."""
    build: Any = vars(import_module("google.adk.events._abort_events"))
    theirs = build["_build_abort_events"](
        log, invocation_id="i", root_agent_name="root", branch=None
    )
    assert bare(closing_events_of_stopped(log, "root")) == bare(theirs)


def test_calls_that_adk_has_closed_are_not_closed_again() -> None:
    """As where the agent itself has heeded the signal."""
    call = types.Part(function_call={"id": "1", "name": "f"})
    log = [
        Event(
            invocation_id="i",
            author="root",
            content=types.Content(role="model", parts=[call]),
        )
    ]
    closing = closing_events_of_stopped(log, "root")
    assert len(closing) == 1
    assert closing_events_of_stopped([*log, *closing], "root") == []
