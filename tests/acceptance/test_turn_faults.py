"""Turns of processes that are killed, paused and cut off while they hold one."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.turns import campaign
from pymongo import MongoClient

from mongo_session_service.embedded import EmbeddedReplicaSet

FAULTS = ["kill", "pause", "cut_off"] * 2


@pytest.mark.release
@pytest.mark.xdist_group("heavy")
def test_never_do_two_bodies_append(tmp_path: Path) -> None:
    """Each turn is taken over in time, and whoever has lost one appends no more."""
    with EmbeddedReplicaSet() as replica_set, MongoClient(replica_set.uri) as admin:
        outcome = campaign(admin, tmp_path, FAULTS)

    assert not outcome.complaints, "\n".join(outcome.complaints)
    assert outcome.answers["done"] > 100, outcome.answers
    assert outcome.answers["spoken"] > 30, outcome.answers
    assert outcome.partials > 100
    assert outcome.answers["LeaseLostError"] > 0, outcome.answers
    assert max(outcome.longest_gaps) > 3, "no fault has hit anybody who held a turn"
