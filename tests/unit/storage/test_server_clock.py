"""The server's time, as this process knows it from the replies to ``hello``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mongo_session_service.storage.database import ServerClock

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize(("behind", "goes_back"), [(0.4, False), (60.0, True)])
def test_a_late_reply_does_not_take_the_time_back(
    behind: float, *, goes_back: bool
) -> None:
    """A server's clock that was set back, or another server's, does."""
    clock = ServerClock()
    clock.set_by({"localTime": NOON})
    before = clock.now()
    clock.set_by({"localTime": NOON - timedelta(seconds=behind)})

    assert (clock.now() < before) is goes_back
