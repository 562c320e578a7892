"""No method that waits goes without being cancelled."""

from __future__ import annotations

from support.cancellation.calls import (
    CONSUMERS,
    ENDS_ONLY_SO,
    FOLLOWERS,
    READS,
    WAITS_FOR_NOTHING,
    WRITES,
    methods,
)


def test_every_method_is_cancelled() -> None:
    """A new one has a call in tests/support/cancellation, or it waits for nothing."""
    cases = (*WRITES, *READS, *FOLLOWERS, *CONSUMERS)
    tried = set().union(*(each.methods for each in cases))

    assert set(methods()) == tried | WAITS_FOR_NOTHING | ENDS_ONLY_SO
    assert tried.isdisjoint(WAITS_FOR_NOTHING)
