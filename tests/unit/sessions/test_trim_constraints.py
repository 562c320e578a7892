"""Where a log may be cut, against ADK's own reading of rewinds and calls."""

from __future__ import annotations

import math

from google.adk.events import Event, EventActions
from google.adk.events._rewind_events import _apply_rewinds
from hypothesis import given
from hypothesis import strategies as st
from support.function_calls import called, responded

from mongo_session_service.sessions.trim import (
    CALL_LASTS,
    LONG_CALL_LASTS,
    TrimConstraints,
)

NOW = 100 * CALL_LASTS
NAMES = st.sampled_from(["f", "g"])
TURNS = st.sampled_from(["", "a", "b", "c"])


def rewound(turn: str, target: str) -> Event:
    actions = EventActions(rewind_before_invocation_id=target)
    return Event(author="user", invocation_id=turn, actions=actions)


EVENTS = st.one_of(
    st.builds(lambda turn: Event(author="x", invocation_id=turn), TURNS),
    st.builds(lambda name, turn: called(name, turn=turn), NAMES, TURNS),
    st.builds(lambda turn: called("g", turn=turn, long_running=True), TURNS),
    st.builds(lambda name, turn: responded(name, turn=turn), NAMES, TURNS),
    st.builds(rewound, TURNS, TURNS),
)
AGES = st.sampled_from([0.0, CALL_LASTS + 1, LONG_CALL_LASTS + 1])


def names(event: Event) -> tuple[set[str | None], set[str | None]]:
    """What an event calls, and what it responds to."""
    calls = {each.id for each in event.get_function_calls()}
    return calls, {each.id for each in event.get_function_responses()}


def parts_a_call(events: list[Event], cut: int) -> bool:
    """Whether a response after a cut has its call before it."""
    for index in range(cut, len(events)):
        for name in names(events[index])[1]:
            calls = (at for at in range(index) if name in names(events[at])[0])
            if max(calls, default=cut) < cut:
                return True
    return False


def loses_a_call(events: list[Event], cut: int) -> bool:
    """Whether a call before a cut may still get a response."""
    for index in range(cut):
        event, later = events[index], events[index + 1 :]
        for name in names(event)[0]:
            is_long = bool(event.long_running_tool_ids)
            lasts = LONG_CALL_LASTS if is_long else CALL_LASTS
            is_over = any(name in names(each)[1] for each in later) and not is_long
            is_repeated = any(name in names(each)[0] for each in later)
            if not (is_over or is_repeated) and event.timestamp + lasts > NOW:
                return True
    return False


@given(st.lists(st.tuples(EVENTS, AGES), max_size=12), st.integers(0, 12))
def test_a_cut_parts_nothing_and_keeps_no_more_than_it_must(
    log: list[tuple[Event, float]], wanted: int
) -> None:
    """What is left reads as before; any later cut would part what belongs together."""
    events = [
        event.model_copy(update={"id": str(number), "timestamp": NOW - age})
        for number, (event, age) in enumerate(log)
    ]
    wanted = min(wanted, len(events))
    constraints = TrimConstraints(created=0.0, begins=0, before_time=NOW - 1)
    for revision, event in enumerate(events, 1):
        constraints.add(revision, event)

    cut = constraints.last_safe_revision(wanted, NOW)

    assert 0 <= cut <= wanted
    live = [each.id for each in _apply_rewinds(events)]
    left = [each.id for each in events[cut:]]
    assert [it.id for it in _apply_rewinds(events[cut:])] == [
        it for it in live if it in left
    ]
    assert not parts_a_call(events, cut)
    assert not loses_a_call(events, cut)
    for later in range(cut + 1, wanted + 1):
        beside = [each.id for each in events[later - 1 : later + 1]]
        is_undone = len(beside) == 2 and not {*beside} & {*live}
        is_call = parts_a_call(events, later) or loses_a_call(events, later)
        assert is_undone or is_call
    young = (index for index, each in enumerate(events) if each.timestamp >= NOW - 1)
    assert constraints.older == next(young, len(events))
    assert math.isfinite(cut)
