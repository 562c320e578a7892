"""How what was looked at is judged."""

from __future__ import annotations

from typing import Any

import pytest

from mongo_session_service.admin import Finding, Status
from mongo_session_service.admin.doctor import (
    judge_clock,
    judge_members,
    judge_oplog,
    judge_privileges,
    judge_server,
    judge_transaction,
)
from mongo_session_service.admin.privileges import FEATURES, needs
from mongo_session_service.errors import ConfigurationError

OK, WARNING, FAILED = Status.OK, Status.WARNING, Status.FAILED
DAY = 86400.0
SET = {"setName": "rs0", "hosts": ["a:1", "b:1", "c:1"]}


def held(*features: str) -> list[dict[str, Any]]:
    return [
        {
            "resource": {"db": each.database, "collection": each.collection},
            "actions": [each.action],
        }
        for each in needs(features, "db")
    ]


def judged(version: str) -> Finding:
    return judge_server({"maxWireVersion": 17}, {"version": version})


@pytest.mark.parametrize("version", ["9.0.2", "9.0.4", "9.1.0", "10.0.0"])
def test_a_server_that_gets_fixes_is_well(version: str) -> None:
    """Its version is all there is to say."""
    finding = judged(version)
    assert (finding.status, finding.says) == (OK, f"MongoDB {version}")


@pytest.mark.parametrize(
    ("finding", "status", "says"),
    [
        (
            judged("5.0.32"),
            OK,
            "MongoDB 5.0.32, which gets no fixes since October 2024",
        ),
        (judged("6.0.5"), OK, "MongoDB 6.0.5, which gets no fixes since July 2025"),
        (judged("9.0.1-rc0"), WARNING, "whose change streams are repaired in 9.0.2"),
        (judge_members(SET, []), OK, "3 members"),
        (judge_members({**SET, "hosts": ["a:1"]}, []), OK, "no other takes over"),
        (judge_members(SET, ["c:1"]), WARNING, "unreachable: c:1"),
        (judge_members({}, []), FAILED, "standalone"),
        (judge_transaction(0.0021), OK, "2.1 ms"),
        (judge_transaction(0.0021, 60), OK, "for up to 90 s: if that is too long, set"),
        (judge_transaction(0.0021, 15), OK, "stays so for up to 22.5 s"),
        (judge_transaction(None), WARNING, "switched off"),
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


def test_a_server_that_is_too_old_is_a_failure() -> None:
    """A server that the service would refuse is refused here as well."""
    with pytest.raises(ConfigurationError, match="MongoDB 5.0"):
        judge_server({"maxWireVersion": 9}, {"version": "4.4.0"})
