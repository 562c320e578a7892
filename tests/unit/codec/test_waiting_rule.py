"""Waiting calls: the rule by which a log tells which calls wait for people."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from google.adk.events.event import Event
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.codec.waiting_calls import (
    waiting_calls,
    waiting_step,
)

INTERRUPTS = find_spec("google.adk.events._interrupts")
IDS = ["c1", "c2", "c3", "c4"]
NAMES = ["ship", "adk_request_input", "adk_request_credential"]


def call_part(call_id: str | None, name: str) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=call_id, name=name, args={}))


def response_part(call_id: str | None, name: str = "ship") -> types.Part:
    response = types.FunctionResponse(id=call_id, name=name, response={})
    return types.Part(function_response=response)


ids = st.sampled_from([*IDS, None])
parts = st.one_of(
    st.builds(call_part, ids, st.sampled_from(NAMES)),
    st.builds(response_part, ids),
    st.just(types.Part(text="hello")),
)
events = st.builds(
    Event,
    author=st.sampled_from(["user", "clerk", "agent"]),
    branch=st.sampled_from([None, "root", "root@c1", "root@c1.ship@c2", "@c3", "a@"]),
    content=st.none()
    | st.lists(parts, max_size=3).map(lambda it: types.Content(parts=it)),
    long_running_tool_ids=st.none() | st.sets(st.sampled_from(IDS), max_size=2),
)


def waiting(log: list[Event]) -> list[tuple[str, str | None]]:
    """The ids of the calls that wait after a log, and who called them."""
    steps = enumerate(map(waiting_step, log), 1)
    return [(each.call_id, each.author) for each in waiting_calls(steps)]


@given(st.lists(events, max_size=12))
def test_the_rule_is_that_of_adk(log: list[Event]) -> None:
    """Of any log, the installed ADK's own index names the same calls and authors."""
    if INTERRUPTS is None:
        return  # of a release before 2.13
    index = import_module(INTERRUPTS.name).index_open_interrupts(log)
    assert dict(waiting(log)) == {name: it.author for name, it in index.items()}


@given(st.lists(events, max_size=12), st.integers(0, 12))
def test_a_log_is_the_sum_of_its_appends(log: list[Event], cut: int) -> None:
    """Event by event, or all at once, the same calls wait."""
    steps = [*enumerate(map(waiting_step, log), 1)]
    assert waiting_calls(steps[cut:], waiting_calls(steps[:cut])) == waiting_calls(
        steps
    )


def test_a_closing_event_answers() -> None:
    """What an invocation that was cut off had asked waits no longer."""
    asked = Event(
        author="agent",
        content=types.Content(parts=[call_part("c1", "ship")]),
        long_running_tool_ids={"c1"},
    )
    answer = types.Content(role="user", parts=[response_part("c1")])
    pending = Event(author="agent", content=answer)
    closing = Event(author="agent", content=answer, error_code="INVOCATION_ABORTED")
    assert waiting([asked, pending]) == [("c1", "agent")]
    assert waiting([asked, pending, closing]) == []
