"""What a read has to wait for, right after another primary was elected."""

from __future__ import annotations

from bson.timestamp import Timestamp

from mongo_session_service.storage.database import LatestWrite

EARLIER, LATER = Timestamp(1, 1), Timestamp(2, 1)


def test_only_another_primary_may_lack_a_write() -> None:
    """The primary that has confirmed a write shows it; another one has to catch up."""
    latest = LatestWrite()
    latest.advance(LATER, "first")

    assert latest.is_included(EARLIER, "first")
    assert not latest.is_included(EARLIER, "second")
    assert latest.is_included(LATER, "second")
