"""What a subscription to many sessions keeps of their turns is bounded."""

from __future__ import annotations

import gc
from datetime import UTC, datetime

import pytest

from mongo_session_service import Change
from mongo_session_service.feed import turn_filters
from mongo_session_service.model.results import TurnInfo

NOW = datetime.now(UTC)
MOST = 10


@pytest.fixture(autouse=True)
def few_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test passes the bound soon."""
    monkeypatch.setattr(turn_filters, "_SESSIONS", MOST)


def of_turn(session_id: str, position: int) -> Change:
    """The begin of a session's turn, or what is produced in it then."""
    turn = TurnInfo("a", "u", session_id, 1, "running", NOW, "host")
    return Change(
        kind="partial" if position else "turn",
        app_name="a",
        user_id="u",
        session_id=session_id,
        turn=turn,
        turn_position=position,
        time=0.0,
    )


def kept() -> int:
    """How many turns are remembered by anybody."""
    gc.collect()
    # By type(): to ask a proxy whose object is gone for its class fails.
    return sum(type(it) is turn_filters.TurnFilter for it in gc.get_objects())


def test_turns_of_dead_processes_are_not_kept_for_good() -> None:
    """Their end never comes; a turn that still produces is delivered meanwhile."""
    before, filters = kept(), turn_filters.TurnFilters()
    assert filters.admit(of_turn("alive", 0))
    for number in range(5 * MOST):
        assert filters.admit(of_turn(f"dead{number}", 0))
        assert filters.admit(of_turn("alive", number + 1))

    assert kept() - before == MOST
