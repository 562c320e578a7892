"""Callers in the line for a turn."""

from __future__ import annotations

import pytest

from mongo_session_service.model.records import SessionKey
from mongo_session_service.turns.waiting_line import Ticket, Waiter


async def test_a_waiter_that_was_failed_is_not_called_instead() -> None:
    """A check that was under way when the service was closed may call it too late."""
    key = SessionKey("app", "ada", "monday")
    waiter = Waiter(Ticket(key, number=1, create_time=1.0, interrupts=False))
    waiter.wake(RuntimeError("closed"))
    waiter.wake()
    with pytest.raises(RuntimeError, match="closed"):
        await waiter.wait_until_called()
