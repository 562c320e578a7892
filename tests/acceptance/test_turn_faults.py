"""Turns of processes that are killed, paused and cut off while they hold one."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.turns import campaign
from support.replica_set import FailingReplicaSet

FAULTS = ["kill", "kill_in_append", "pause", "cut_off"] * 2
CROWD = 100
"""Callers in each of three processes."""


@pytest.mark.release
@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize(
    ("members", "faults", "callers"),
    [
        pytest.param(1, FAULTS, 4, id="one member"),
        pytest.param(3, ["kill", "kill_in_append"] * 4, 4, id="elections"),
        pytest.param(1, FAULTS[:4], CROWD, id="300 waiters"),
    ],
)
def test_never_do_two_bodies_append(
    tmp_path: Path, members: int, faults: list[str], callers: int
) -> None:
    """Each turn is taken over in time, and whoever has lost one appends no more."""
    with FailingReplicaSet(members) as replica_set:
        outcome = campaign(replica_set, tmp_path, faults, callers)

    assert not outcome.complaints, "\n".join(outcome.complaints)
    assert outcome.answers["done"] > 5 * len(faults), outcome.answers
    assert outcome.answers["spoken"] > 3 * len(faults), outcome.answers
    assert outcome.partials > 100
    if "pause" in faults:
        assert outcome.answers["LeaseLostError"] > 0, outcome.answers
    assert max(outcome.longest_gaps) > 3, "no fault has hit anybody who held a turn"
