"""Everything at once: two processes at work while a replica set of three fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from chaos import removals, versions
from chaos.run import Plan, run
from support.replica_set import FailingReplicaSet

FAULTS = (
    "SIGKILL in a transaction",
    "connections cut",
    "unknown commits",
    "SIGKILL of the primary",  # also ends what the killed client had open, in no time
    "SIGKILL of a client",
    "step-down",
    "transient errors",
    "SIGSTOP of the primary",
    "late majority",
    "disk full",
)


@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize(
    ("faults", "uri_options"),
    [
        (FAULTS[:4], ""),
        pytest.param(FAULTS, "", marks=pytest.mark.release),
        pytest.param(FAULTS, "&timeoutMS=5000", marks=pytest.mark.release),
    ],
)
def test_answers_to_clients_are_true_under_faults(
    tmp_path: Path, faults: tuple[str, ...], uri_options: str
) -> None:
    """Each answer and each event that is delivered agrees with what is stored."""
    plan = Plan(
        seed=7,
        seconds=0,
        calm=0.5,
        clients=4,
        freeze=3,
        faults=faults,
        uri_options=uri_options,
    )
    with FailingReplicaSet(members=3) as replica_set:
        outcome = run(plan, replica_set, tmp_path)

    assert outcome.complaints == []
    assert outcome.faults == dict.fromkeys(faults, 1)
    answers = Counter(
        (each.kind, each.outcome) for each in outcome.history.operations.values()
    )
    assert answers["append", "ok"] > 5 * len(faults), answers
    for kind in ("create", "get", "delete"):
        assert answers[kind, "ok"], answers
    kinds = {each.kind for each in outcome.history.readers if each.received}
    assert kinds == {"watch", "follow", "consume"}


@pytest.mark.release
@pytest.mark.xdist_group("heavy")
def test_what_was_removed_is_nowhere_under_faults() -> None:
    """Redactions, deletions and erasures beside turns, forks and readers, and kills."""
    with FailingReplicaSet(members=3) as replica_set:
        outcome = removals.campaign(replica_set, seconds=40)

    assert outcome.left == []
    assert len(outcome.removed) > 50
    for action in ("erased", "redact", "fork", "speak", "ask_again", "trim_copy"):
        assert outcome.done[action] > 5, outcome.done
    assert outcome.done["bytes"] > 10_000


@pytest.mark.release
@pytest.mark.xdist_group("heavy")
def test_a_family_shows_one_whole_version_whatever_is_killed() -> None:
    """Processes that edit, flip and delete are killed before each of their commands."""
    with FailingReplicaSet(1) as replica_set:
        outcome = versions.campaign(replica_set, seconds=4)

    assert outcome.complaints == []
    assert {*outcome.killed} == {*versions.ACTIONS, "act"}
    assert outcome.killed["edit"] > 20
    assert outcome.snapshots > 50
    assert len(outcome.seen) > 10
