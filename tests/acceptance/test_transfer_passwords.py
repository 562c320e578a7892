"""Passwords of both ends, given apart from their URLs, where nobody gets in without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.adk.events import Event
from google.adk.integrations.mongodb import MongoDbSessionService
from support.cli_runner import call
from support.leak_detector import PASSWORD
from support.secured_mongod import Secured

pytestmark = pytest.mark.xdist_group("secured")

BOTH = {"SOURCE_PASSWORD": PASSWORD, "MONGODB_PASSWORD": PASSWORD}


@pytest.fixture
async def command(server: Secured) -> list[str]:
    """Moves within a server; it names a user there, and no password."""
    for database in ("old", "new"):
        server.admin.drop_database(database)
    old = MongoDbSessionService(
        connection_string=server.uri("root"), database_name="old"
    )
    session = await old.create_session(app_name="app", user_id="ada", session_id="s")
    await old.append_event(session, Event(author="user"))
    await old.close()
    uri = server.uri("root").replace(f":{PASSWORD}@", "@")
    return ["adk-mongodb", uri, "--source-database", "old", uri, "--database", "new"]


@pytest.fixture(autouse=True)
def _no_other_password(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in BOTH:
        monkeypatch.delenv(name, raising=False)
    return


async def test_passwords_come_from_the_environment(command: list[str]) -> None:
    """Each end gets its own, and without the right one nothing is moved."""
    refused = [call("import", *command, **BOTH | {each: "wrong"}) for each in BOTH]
    done = call("import", *command, **BOTH)

    for each in refused:
        assert (each.returncode, each.stdout) == (1, "")
        assert each.stderr.startswith("Error: ")
        assert each.stderr.count("\n") == 1
    assert (done.returncode, done.stderr) == (0, "")
    assert "Moved 1 event from" in done.stdout
