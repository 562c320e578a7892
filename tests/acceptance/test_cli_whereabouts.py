"""Which server and database a command shows, and where sessions are if not there."""

from __future__ import annotations

import pytest
from support.cli_runner import call

from mongo_session_service import MongoSessionService
from mongo_session_service.cli.whereabouts import server_of


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        ("mongodb://127.0.0.1:27017/adk?replicaSet=rs0", "127.0.0.1:27017"),
        ("mongodb://ada:secret@a:1,b:2/?tls=true", "a:1,b:2"),
        ("mongodb+srv://ada:secret@c.example.net?x=/@y", "c.example.net"),
    ],
)
def test_a_server_is_named_without_its_login(uri: str, server: str) -> None:
    """The hosts stay, and nothing else of the URI."""
    assert server_of(uri) == server


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("sessions --app APP", 0),
        ("prune --app APP --dry-run", 0),
        ("trim APP --older-than 1d", 0),
        ("erase app APP --yes", 0),
        ("erase user APP eve --yes", 0),
        ("erase session APP eve s --yes", 0),
        ("export --app APP --app shop_agent --user eve --to /dev/null", 0),
        ("export --app APP --to /dev/null", 3),
        ("show APP eve s", 1),
        ("fork APP eve s", 1),
        ("set APP eve s --title x", 1),
    ],
)
async def test_an_app_without_sessions_is_named(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    command: str,
    code: int,
) -> None:
    """Who misspells an app's name learns so, and which there is with such a name."""
    await service.create_session(app_name="shop_agent", user_id="eve", session_id="s")
    words = ("--uri", mongodb_uri, "--database", database, *command.split())

    misspelt = call(*(each.replace("APP", "shopagent") for each in words))
    other = call(*(each.replace("APP", "nope") for each in words))

    assert (misspelt.returncode, other.returncode) == (code, code)
    without = ", which holds no sessions of app"
    assert (
        f"{without} shopagent, but some of the similar app shop_agent"
        in misspelt.stderr
    )
    assert f"{without} nope; `mongo-session-service sessions` lists" in other.stderr


async def test_an_empty_database_leads_to_those_with_sessions(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Who looks into the wrong one is told where sessions are, as options."""
    await service.create_session(app_name="app", user_id="user")
    elsewhere = f"{database}_empty"
    async with MongoSessionService(
        mongodb_uri, database=database, collection_prefix="old_"
    ) as prefixed:
        await prefixed.create_session(app_name="app", user_id="user")

    here = call("--database", database, "prune", "--uri", mongodb_uri)
    there = call("--database", elsewhere, "prune", "--uri", mongodb_uri)
    consumers = call("--database", elsewhere, "consumers", "--uri", mongodb_uri)

    server = server_of(mongodb_uri)
    assert here.stderr.endswith(f" in database {database} on {server}.\n")
    assert f" in database {elsewhere} on {server}, which holds no se" in there.stderr
    assert f"; there are some in --database {database}" in there.stderr
    assert f", --database {database} --prefix old_" in there.stderr
    assert consumers.stderr.startswith(
        f"No consumer has read from database {elsewhere} on {server}, which"
    )
