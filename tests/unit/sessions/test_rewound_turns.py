"""What rewinds undo, against ADK's own reading of them."""

from __future__ import annotations

from google.adk.events import Event, EventActions
from google.adk.events._rewind_events import _apply_rewinds
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.sessions.event_log import undone_parts

TURNS = st.sampled_from(["", "a", "b", "c"])
STEPS = st.lists(st.tuples(TURNS, st.none() | TURNS), max_size=14)


@given(STEPS)
def test_rewinds_undo_the_events_that_adk_drops(
    steps: list[tuple[str, str | None]],
) -> None:
    """Of any log, the parts that rewinds undo are what ADK's own function drops."""
    events = [
        Event(
            id=str(revision),
            invocation_id=turn,
            author="x",
            actions=EventActions(rewind_before_invocation_id=to),
        )
        for revision, (turn, to) in enumerate(steps, 1)
    ]
    rewinds = [(revision, to) for revision, (_, to) in enumerate(steps, 1) if to]
    firsts: dict[str, int] = {}
    for revision, (turn, _) in enumerate(steps, 1):
        firsts.setdefault(turn, revision)

    spans = undone_parts(rewinds, firsts)

    undone = {n for first, last in spans for n in range(first, last + 1)}
    kept = [int(each.id) for each in _apply_rewinds(events)]
    assert kept == [n for n in range(1, len(events) + 1) if n not in undone]
    assert all(first <= last for first, last in spans)
    assert len(undone) == sum(last - first + 1 for first, last in spans)
