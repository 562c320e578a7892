"""How what was looked at is judged."""

from __future__ import annotations

from typing import Any

import pytest

from mongo_session_service.admin import Finding, Status
from mongo_session_service.admin.doctor import (
    judge_clock,
    judge_oplog,
    judge_privileges,
    judge_version,
)
from mongo_session_service.admin.privileges import FEATURES, needs

OK, WARNING, FAILED = Status.OK, Status.WARNING, Status.FAILED
DAY = 86400.0


def held(*features: str) -> list[dict[str, Any]]:
    return [
        {
            "resource": {"db": each.database, "collection": each.collection},
            "actions": [each.action],
        }
        for each in needs(features, "db")
    ]


@pytest.mark.parametrize(
    "version", ["5.0.32", "6.0.5", "9.0.2", "9.0.4", "9.1.0", "10.0.0"]
)
def test_a_server_that_was_repaired_is_well(version: str) -> None:
    """Its version is all there is to say."""
    finding = judge_version(version)
    assert (finding.status, finding.says) == (OK, f"MongoDB {version}")


@pytest.mark.parametrize(
    ("finding", "status", "says"),
    [
        (
            judge_version("9.0.1-rc0"),
            WARNING,
            "whose change streams are repaired in 9.0.2",
        ),
        (judge_privileges([], [], "db", ""), WARNING, "access control is off"),
        (
            judge_privileges(["ada"], held(*FEATURES), "db", ""),
            OK,
            "has the privileges for",
        ),
        (
            judge_privileges(["ada"], held("sessions"), "db", ""),
            WARNING,
            "lacks privileges for changes, setup, import, erase",
        ),
        (
            judge_privileges(["ada"], held("changes"), "db", ""),
            FAILED,
            "lacks privileges for sessions, setup, import, erase",
        ),
        (judge_clock(0.3, 0.001), OK, "agrees with MongoDB's to within 0.301 s"),
        (judge_clock(-4.0, 0.001), WARNING, "4.000 s behind"),
        (judge_clock(-4.0, 5.0), OK, "to within 9.000 s"),
        (judge_clock(4.0, 0.001), WARNING, "4.000 s ahead"),
        (judge_oplog(3 * DAY, 1.0), OK, "3 days"),
        (judge_oplog(90.0, 0.02), OK, "2% of it"),
        (judge_oplog(None, 0), FAILED, "no oplog"),
        (judge_oplog(180.0, 0.99), WARNING, "3 min:"),
    ],
)
def test_a_finding_has_its_remedy(finding: Finding, status: Status, says: str) -> None:
    """What is well needs no remedy, and what is not has one."""
    assert finding.status is status
    assert says in finding.says
    assert (finding.remedy is None) == (status is OK)


def test_optional_privileges_are_not_demanded() -> None:
    """Only what no program can do without has to be granted."""
    agent = judge_privileges(["ada"], held("sessions"), "db", "")
    nobody = judge_privileges(["ada"], [], "db", "")

    assert (agent.remedy or "").startswith("Fine, if this user needs no more")
    assert (nobody.remedy or "").startswith("Have an administrator run")
