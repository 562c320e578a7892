"""What a read has to wait for, right after another primary was elected."""

from __future__ import annotations

from bson.timestamp import Timestamp

from mongo_session_service.storage.clocks import LatestWrite

EARLIER, LATER = Timestamp(1, 1), Timestamp(2, 1)


def test_nothing_is_missing_before_the_first_write() -> None:
    """Who has written nothing waits for nothing."""
    assert LatestWrite().is_included(EARLIER, "any")


def test_only_another_primary_may_lack_a_write() -> None:
    """The primary that has confirmed a write shows it; another may need to catch up."""
    latest = LatestWrite()
    latest.advance(LATER, "first")

    assert latest.is_included(EARLIER, "first")
    assert not latest.is_included(EARLIER, "second")
    assert latest.is_included(LATER, "second")


def test_it_is_the_latest_of_all() -> None:
    """An earlier write, noted late by another thread, takes nothing back."""
    latest = LatestWrite()
    latest.advance(LATER, "second")
    latest.advance(EARLIER, "first")

    assert not latest.is_included(EARLIER, "first")
