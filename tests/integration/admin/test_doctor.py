"""The doctor finds what is wrong with a real database, and leaves it as it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from pymongo import MongoClient
from support.backends import behind_mongos
from support.cli_runner import call
from support.consumers import append, create
from support.failpoints import failing
from support.forked_processes import on_a_terminal
from support.leak_detector import PASSWORD
from support.secured_mongod import Secured

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.admin import Finding, Status, doctor
from mongo_session_service.admin.privileges import FEATURES, needs

SECURED = pytest.mark.xdist_group("secured")


@pytest.fixture
async def filled(service: MongoSessionService) -> MongoSessionService:
    """Five sessions of three events each."""
    for name in "abcde":
        await append(service, await create(service, name), 3)
    return service


@pytest.fixture
async def fresh(mongodb_uri: str, database: str) -> AsyncIterator[MongoSessionService]:
    """A service that has never been used."""
    service = MongoSessionService(mongodb_uri, database=database)
    yield service
    await service.close()


async def examined(service: MongoSessionService) -> dict[str, Finding]:
    return {each.check: each async for each in doctor.examine(service)}


def bad(findings: dict[str, Finding]) -> dict[str, Status]:
    """What is not well, but for the test server's lack of access control."""
    return {
        name: each.status
        for name, each in findings.items()
        if each.status is not Status.OK and "access control is off" not in each.says
    }


async def test_a_sharded_cluster_is_known(filled: MongoSessionService) -> None:
    """What only a replica set has is not missed behind a mongos."""
    with behind_mongos():
        findings = await examined(filled)

    assert list(findings) == list(doctor.CHECKS)
    assert bad(findings) == {"oplog window": Status.UNKNOWN}


async def test_a_database_in_use_is_well(filled: MongoSessionService) -> None:
    """Everything is looked at, and each is as it should be."""
    findings = await examined(filled)

    assert list(findings) == list(doctor.CHECKS)
    assert bad(findings) == {}


async def test_looking_creates_nothing(
    fresh: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """A database that was never used is well, and stays as it was: not there."""
    findings = await examined(fresh)
    assert bad(findings) == {}
    assert findings["schema version"].says.startswith("not recorded yet")
    assert findings["indexes"].says.startswith("not created yet")
    assert await fresh.ping() > 0
    assert await fresh.consumers() == []

    assert database not in admin.list_database_names()


async def test_the_doctor_reports_newer_data(
    filled: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Data that this release would refuse is examined all the same, as its indexes."""
    admin[database].metadata.update_one({"_id": "schema"}, {"$set": {"version": 99}})
    admin[database].events.drop_index("event_id_once_per_session")

    findings = await examined(filled)
    wanted = {"schema version": Status.FAILED, "indexes": Status.WARNING}
    assert bad(findings) == wanted
    assert "Upgrade mongo-session-service" in findings["schema version"].says
    assert "event_id_once_per_session" in findings["indexes"].says
    assert findings["indexes"].remedy


@SECURED
async def test_the_doctor_names_commands_that_it_may_not_run(server: Secured) -> None:
    """Without a privilege the rest is examined."""
    server.grant(needs(["sessions"], "examined"))

    service = MongoSessionService(server.uri(), database="examined")
    findings = await examined(service)
    await service.close()

    assert bad(findings) == {
        "privileges": Status.WARNING,
        "oplog window": Status.UNKNOWN,
    }
    lacking = findings["privileges"].lacking
    assert lacking["changes"][0] == "'changeStream' on database 'examined'"
    assert "sessions" not in lacking
    assert "refused 'find' on 'local.oplog.rs'" in findings["oplog window"].says


@SECURED
def test_a_user_is_well_that_has_what_it_needs(server: Secured) -> None:
    """Daily checks fail on warnings, but for features that are not asked for."""
    server.grant(needs(["sessions"], "examined"))
    strict = ("doctor", server.uri().replace("/?", "/examined?"), "--strict")

    for_all, for_sessions = call(*strict), call(*strict, "--for", "sessions")

    assert (for_all.returncode, for_sessions.returncode) == (3, 0)
    assert for_all.stdout.count("Have an administrator run") == 1
    assert "oplog" not in for_sessions.stdout


@SECURED
async def test_with_all_privileges_all_is_well(server: Secured) -> None:
    """What grants prints is enough for the doctor, too."""
    server.grant(needs(FEATURES, "examined"))

    async with MongoSessionService(server.uri(), database="examined") as service:
        assert bad(await examined(service)) == {}


async def test_an_outage_is_no_finding(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """A check that MongoDB stops answering raises, as ping() does."""
    unavailable = pytest.raises(StorageUnavailableError)
    with failing(admin, "connectionStatus", closeConnection=True), unavailable:
        await examined(victim)
    with failing(admin, "ping", closeConnection=True), unavailable:
        await victim.ping()


@SECURED
def test_the_doctors_exit_code_reports_failures(
    server: Secured, admin: MongoClient, mongodb_uri: str, database: str
) -> None:
    """It is 3 if something failed; a terminal shows the findings in colours.

    Programs read it as JSON.
    """
    server.grant(needs(["changes"], "examined"))
    uri = server.uri().replace("/?", "/examined?")

    shown = call("doctor", uri)

    assert shown.returncode == 3
    failed = next(line for line in shown.stdout.splitlines() if "failed" in line)
    assert "lacks privileges for sessions, setup, import, erase" in failed
    assert "'insert' on collection" not in shown.stdout
    assert shown.stdout.count("Have an administrator run") == 1
    detailed = call("doctor", "--verbose", uri).stdout
    assert "'insert' on collection 'examined.sessions'" in detailed
    assert PASSWORD not in shown.stdout + shown.stderr
    assert "\x1b" not in shown.stdout

    code, coloured = on_a_terminal("doctor", uri)

    assert code == 3
    marked = (("✓ ok", "38;5;28"), ("✗ failed", "38;5;196"))
    assert [each for each, n in marked if f"\x1b[{n}m{each} " not in coloured] == []
    assert PASSWORD not in coloured

    told = call("doctor", "--json", "--uri", mongodb_uri, "--database", database)

    assert told.returncode == 0
    findings = [json.loads(line) for line in told.stdout.splitlines()]
    assert [each["check"] for each in findings] == list(doctor.CHECKS)
    assert database not in admin.list_database_names()
