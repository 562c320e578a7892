"""Events needed since a compaction: the model's request is that of the whole log."""

from __future__ import annotations

import dataclasses
from itertools import chain, count, product
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event_actions import EventCompaction
from google.adk.flows.llm_flows import contents
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from mongo_session_service.codec import compaction
from mongo_session_service.codec.compaction import Trace
from mongo_session_service.codec.documents import encode_event_fields


def fields(event: Event) -> dict[str, Any]:
    """An event as it is stored."""
    return encode_event_fields(event)


AGENTS = ("root", "helper")
BRANCHES = (None, "root", "root.helper", "root.other")


class Log:
    """A conversation in the making, each event a second after the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls: list[str] = []
        self.invocation_id = "i0"
        self._numbers = count()

    def add(self, author: str, *parts: types.Part, **fields: Any) -> None:
        """An event of any kind."""
        number = next(self._numbers)
        content = types.Content(role="user", parts=[*parts]) if parts else None
        given = {"invocation_id": self.invocation_id, "content": content, **fields}
        event = Event(id=f"e{number}", author=author, timestamp=float(number), **given)
        self.events.append(event)

    def say(self, author: str, **fields: Any) -> None:
        """An event of text."""
        self.add(author, types.Part(text=f"text {len(self.events)}"), **fields)

    def call(self, author: str, **fields: Any) -> str:
        """A call of a tool; its id."""
        id_ = f"call-{len(self.calls)}"
        self.calls.append(id_)
        asked = types.FunctionCall(id=id_, name="f", args={"n": len(self.calls)})
        if fields.pop("is_long", False):
            fields["long_running_tool_ids"] = {id_}
        self.add(author, types.Part(function_call=asked), **fields)
        return id_

    def answer(self, author: str, id_: str, **fields: Any) -> None:
        """A response to a call."""
        told = {"said": len(self.events)}
        part = types.FunctionResponse(id=id_, name="f", response=told)
        self.add(author, types.Part(function_response=part), **fields)


def talk(log: Log, draw: Any) -> None:
    """An ordinary turn, perhaps with a tool."""
    log.invocation_id = f"i{len(log.events)}"
    log.say("user")
    author, branch = draw(st.sampled_from(AGENTS)), draw(st.sampled_from(BRANCHES))
    if draw(st.booleans()):
        log.answer(author, log.call(author, branch=branch), branch=branch)
    log.say(author, branch=branch)


def start_long(log: Log, draw: Any) -> None:
    """A call that is answered later, with a note for now."""
    id_ = log.call("root", is_long=True)
    if draw(st.booleans()):
        log.answer("root", id_)


def answer_late(log: Log, draw: Any) -> None:
    """The answer to a call of any time that is not over, nor undone."""
    waiting = [
        part.function_call.id
        for event in _apply_rewinds(log.events)
        if event.long_running_tool_ids and event.content
        for part in event.content.parts
    ]
    if waiting:
        log.invocation_id = f"i{len(log.events)}"
        log.answer("user", draw(st.sampled_from(waiting)))


def run_task(log: Log, draw: Any) -> None:
    """A task of its own, which others do not see, perhaps answered."""
    id_ = log.call("root")
    for _ in range(draw(st.integers(1, 2))):
        log.say("helper", isolation_scope=id_)
    if draw(st.booleans()):
        log.answer("root", id_)


def run_tool(log: Log, draw: Any) -> None:
    """A tool that shows what it does in a branch of its own."""
    id_ = log.call("root")
    log.say("helper", branch=f"f@{id_}")
    if draw(st.booleans()):
        log.answer("root", id_)


def compact(log: Log, draw: Any) -> None:
    """A summary of some time that has passed."""
    if not log.events:
        return
    last = len(log.events) - 1
    end = draw(st.integers(max(last - 3, 0), last))
    start = draw(st.just(0) | st.integers(0, end))
    tasks = [event.isolation_scope for event in log.events if event.isolation_scope]
    scopes = [None, None, None, *tasks[-1:]]
    summary = EventCompaction(
        start_timestamp=log.events[start].timestamp,
        end_timestamp=log.events[end].timestamp,
        compacted_content=types.Content(
            role="model", parts=[types.Part(text=f"summary {last}")]
        ),
    )
    log.add(
        "user",
        actions=EventActions(compaction=summary),
        isolation_scope=draw(st.sampled_from(scopes)),
        branch=draw(st.sampled_from([None, None, *BRANCHES])),
        invocation_id=f"s{len(log.events)}",
    )


def rewind(log: Log, draw: Any) -> None:
    """Everything since an invocation is undone."""
    if log.events:
        undone = draw(st.sampled_from(log.events)).invocation_id
        log.invocation_id = f"i{len(log.events)}"
        actions = EventActions(rewind_before_invocation_id=undone)
        log.add("user", actions=actions)


BUILDERS = (
    contents._get_contents,  # noqa: SLF001  what the promise is about
    contents._get_current_turn_contents,  # noqa: SLF001
)

STEPS = (
    *(talk, talk, talk, compact, compact),
    *(start_long, answer_late, run_task, run_tool),
)


@st.composite
def logs(draw: Any) -> tuple[list[Event], list[Event]]:
    """What is stored when a turn begins, and what the turn adds."""
    log = Log()
    for step in draw(
        st.lists(st.sampled_from((*STEPS, rewind)), min_size=6, max_size=20)
    ):
        step(log, draw)
    stored = len(log.events)
    log.invocation_id = f"i{stored}"
    log.say("user")
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=4)):
        step(log, draw)
    return log.events[:stored], log.events[stored:]


def needed(
    traces: list[Trace], overlap: int, special: list[Trace] | None = None
) -> set[int]:
    """What is needed of a log, of which as many traces are known as are special."""
    log = compaction.Log.of(traces)
    if special is not None:
        log = dataclasses.replace(log, traces=special)
    return {*chain.from_iterable(compaction.needed(log, overlap))}


def has(value: Any, path: list[str]) -> bool:
    """Whether a field is there, as MongoDB looks for it."""
    if isinstance(value, list):
        return any(has(each, path) for each in value)
    if not path:
        return True
    return isinstance(value, dict) and has(value.get(path[0], []), path[1:])


@settings(max_examples=100, deadline=None)
@given(logs(), st.integers(0, 3))
def test_ordinary_events_need_no_trace(
    log: tuple[list[Event], list[Event]], overlap: int
) -> None:
    """Their times and invocations decide."""
    stored = [fields(event) for event in log[0]]
    traces = [Trace.of(at, each) for at, each in enumerate(stored)]
    special = [
        trace
        if any(has(each, path.split(".")) for path in compaction.SPECIAL)
        else Trace(
            trace.revision,
            trace.time,
            trace.invocation_id,
            trace.calls,
            trace.answers,
        )
        for trace, each in zip(traces, stored, strict=True)
        if trace.calls
        or trace.answers
        or any(has(each, path.split(".")) for path in compaction.SPECIAL)
    ]

    assert needed(traces, overlap, special) == needed(traces, overlap)


def request(events: list[Event], agent: str, branch: str | None, **view: Any) -> Any:
    """What an agent's model receives, with its history and without.

    Without, ADK takes the end of the log before it looks for rewinds. What was undone
    is then shown if its rewind goes back further, so here it is left out before.
    """
    made = []
    for build, log in zip(BUILDERS, (events, _apply_rewinds(events)), strict=True):
        try:
            made.append(build(branch, log, agent, **view))
        except ValueError as error:  # a response without its call
            made.append(str(error))
    return made


@settings(max_examples=100, deadline=None)
@given(logs(), st.lists(st.integers(0, 99), min_size=4, max_size=4))
def test_requests_are_those_of_the_whole_log(
    log: tuple[list[Event], list[Event]], numbers: list[int]
) -> None:
    """For every agent, branch and task, in the turn and in a turn without history."""
    stored, added = log
    wanted = needed([Trace.of(at, fields(it)) for at, it in enumerate(stored)], 0)
    loaded = [event for at, event in enumerate(stored) if at in wanted]
    every = [*stored, *added]
    live = _apply_rewinds(every)  # what was undone, or is over, does not run again
    over = {f"f@{it.id}" for each in live for it in each.get_function_responses()}
    running = {each.branch for each in live} - over
    branches = sorted({*BRANCHES, *running}, key=str)
    scopes = sorted({None, *(event.isolation_scope for event in live)}, key=str)
    drawn = [branches[each % len(branches)] for each in numbers]
    views = product(AGENTS, (False, True))
    for branch, (agent, is_single) in zip(drawn, views, strict=True):
        for scope in scopes:
            view = {"isolation_scope": scope, "is_single_turn": is_single}
            expected = request(every, agent, branch, **view)
            assert request([*loaded, *added], agent, branch, **view) == expected
