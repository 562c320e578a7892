"""What ``consumers`` says of a consumer that needs attention."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.terminals import printed

from mongo_session_service.cli.consumer_commands import advice, consumer_row
from mongo_session_service.cli.terminal import table
from mongo_session_service.consumers.checkpoint import ConsumerStatus

WELL = ConsumerStatus(
    name="billing",
    app_name="shop",
    is_active=True,
    owner="host:1:a",
    epoch=1,
    is_replaying=False,
    lag_seconds=12.0,
    checkpoint_age_seconds=12.0,
    dead_letters=0,
)


def test_a_long_name_leaves_room_for_the_lag() -> None:
    """In a narrow terminal the name goes on below, not the numbers."""
    named = replace(WELL, name="memory-" + "0" * 40, lag_seconds=112.0)

    _, line, below, *_ = printed(table([consumer_row(named)]), 60)

    assert re.fullmatch(r"memory-0+  shop +112 s +12 s +0 +host:1:a", line)
    assert re.fullmatch("0+", below)


def test_a_consumer_that_is_well_needs_no_advice() -> None:
    """Nothing is said of one that runs and is not behind."""
    assert list(advice(WELL)) == []


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (replace(WELL, is_active=False), "nobody runs it. Start the program"),
        (
            replace(WELL, is_active=False, lag_seconds=7200.0),
            "nobody runs it, and it is 2 h behind",
        ),
        (replace(WELL, lag_seconds=600.0), "is 10 min behind. Its handler is slow"),
        (replace(WELL, lag_seconds=600.0, is_replaying=True), "so its lag is normal"),
        (replace(WELL, dead_letters=2), "2 dead letters. `mongo-session-service con"),
        (
            replace(WELL, dead_letters=2),
            "`mongo-session-service consumers replay billing --handler MODULE:",
        ),
    ],
)
def test_a_consumer_that_is_unwell_is_explained(
    status: ConsumerStatus, says: str
) -> None:
    """One line says what it is, and what to do about it."""
    (line,) = advice(status)

    assert line.startswith("billing: ")
    assert says in line
