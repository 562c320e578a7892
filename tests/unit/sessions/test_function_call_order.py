"""Which events wait for others, and which come too late."""

from __future__ import annotations

import pytest
from google.adk.events import Event
from support.function_calls import called, responded

from mongo_session_service.sessions.appender import is_overtaken, unanswered

MINE = Event(author="webhook", invocation_id="mine")


@pytest.mark.parametrize(
    ("missed", "event", "ids"),
    [
        ([], MINE, set()),
        ([Event(author="x")], MINE, set()),
        ([called("a")], MINE, {"a"}),
        ([called("a"), responded("a")], MINE, set()),
        ([called("a", "b"), responded("b")], MINE, {"a"}),
        ([called("a"), responded("a"), called("b")], MINE, {"b"}),
        ([called("a")], responded("a"), set()),
        ([called("a", "b")], responded("a"), {"b"}),
        ([called("a", long_running=True)], MINE, set()),
        ([called("a", id_=None)], MINE, {"a"}),
        ([called("a", id_=None), responded("a", id_=None)], MINE, set()),
        ([responded("a")], MINE, set()),
    ],
)
def test_calls_are_waited_for_until_they_are_answered(
    missed: list[Event], event: Event, ids: set[str]
) -> None:
    """A call that was missed is waited for, unless it is long-running or answered."""
    assert unanswered(missed, event) == ids


@pytest.mark.parametrize(
    ("seen", "missed", "event", "outcome"),
    [
        ([called("a")], [responded("a")], responded("a"), True),
        ([called("a")], [responded("b")], responded("a"), False),
        ([called("a", long_running=True)], [responded("a")], responded("a"), False),
        ([], [called("a", long_running=True)], responded("a"), False),
        ([], [called("a", turn="t")], called("b", turn="t"), True),
        ([], [called("a", turn="t")], called("b", turn="u"), False),
        ([], [called("a", turn="")], called("b", turn=""), False),
        ([], [called("a", turn="t")], Event(author="x", invocation_id="t"), False),
        ([called("a", turn="t")], [], called("b", turn="t"), False),
    ],
)
def test_one_run_of_a_turn_goes_on(
    seen: list[Event],
    missed: list[Event],
    event: Event,
    outcome: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """A response given twice, and calls of the same turn by two, are told apart."""
    assert is_overtaken(seen, missed, event) is outcome
