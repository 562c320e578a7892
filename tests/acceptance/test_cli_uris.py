"""Where commands take the URI from, and what they say of one that is missing."""

from __future__ import annotations

import pytest
from support.cli_runner import call
from support.sample_data import fill

from mongo_session_service import MongoSessionService

COMMANDS = [
    ["watch"],
    ["live"],
    ["consumers"],
    ["consumers", "dead-letters", "billing"],
    ["doctor"],
    ["prune"],
    ["export"],
    ["import", "jsonl", "sessions.jsonl"],
    ["verify", "sqlite", "sessions.db"],
]
"""Those that cannot do without; ``grants`` can."""

QUICK = [
    (["prune", "--dry-run"], "Would remove 0 sessions and 0 events in database {} on "),
    (["doctor"], ", in database {} on "),
    (["export"], '"session_id"'),
    (["grants"], "mongo_session_service_{}"),
]
TWO = [
    ["export", "--uri", "{a}", "{b}"],
    ["setup", "{a}", "--uri", "{b}"],
    ["doctor", "{b}", "--uri", "{a}"],
    ["import", "jsonl", "x", "{b}", "--uri", "{a}"],
    ["grants", "--uri", "{a}", "{b}"],
]

MISPLACED = [
    ["import", "jsonl", "{}"],
    ["import", "jsonl", "x", "--since", "{}"],
    ["import", "sqlite", "{}"],
    ["import", "sql", "sqlite:///{}"],
    ["verify", "jsonl", "{}"],
    ["verify", "sqlite", "{}"],
    ["export", "--to", "{}"],
    ["export", "--to", "{}/"],
    ["show", "{}", "ada", "s"],
    ["show", "app", "ada", "{}"],
    ["sessions", "--app", "a", "--limit", "{}"],
    ["sessions", "--app", "a", "--where", "{}"],
    ["consumers", "dead-letters", "{}"],
    ["{}"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_form_that_the_error_names_is_accepted(command: list[str]) -> None:
    """An error for a missing URI names an option of that very command."""
    missing = call(*command, MONGODB_URI="")
    wrong = call(*command, "--uri", "http://h", MONGODB_URI="")
    told = call(*command, "--help")

    assert missing.returncode == 2
    assert "Set MONGODB_URI, or give --uri 'mongodb://" in missing.stderr
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("Error: The MongoDB URI cannot be used")
    assert "--uri URI" in told.stdout
    assert "MONGODB_URI" in told.stdout


@pytest.mark.parametrize(
    ("command", "shown"), QUICK, ids=[command[0] for command, _ in QUICK]
)
async def test_a_uri_is_taken_wherever_it_stands(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    command: list[str],
    shown: str,
) -> None:
    """As an option, as an argument, as both, or in the environment."""
    await fill(service)
    uri = mongodb_uri.replace("/?", f"/{database}?")
    forms = [
        [*command, "--uri", uri],
        [*command, uri],
        [*command, "--uri", uri, uri],
    ]

    done = [call(*form, MONGODB_URI="mongodb://127.0.0.1:1/") for form in forms]
    done.append(call(*command, MONGODB_URI=uri))

    for each in done:
        assert each.returncode == 0, each.stderr
        assert shown.replace("{}", database) in each.stdout + each.stderr


@pytest.mark.parametrize("command", ["sessions", "watch", "live", "prune", "export"])
def test_an_app_in_the_place_of_the_uri_is_understood(command: str) -> None:
    """The error has the option that takes it."""
    done = call(command, "my app", MONGODB_URI="mongodb://127.0.0.1:1/")

    assert (done.returncode, done.stdout) == (2, "")
    assert "'my app' is no MongoDB URI. Did you mean --app 'my app'?" in done.stderr


@pytest.mark.parametrize("form", TWO, ids=" ".join)
def test_two_uris_are_refused(form: list[str]) -> None:
    """Neither is used in silence, nor shown: both may hold a password."""
    uris = {each: f"mongodb://ada:hunter2@{each}/" for each in "ab"}

    done = call(*(each.format(**uris) for each in form))

    assert (done.returncode, done.stdout) == (2, "")
    assert "Two different URIs are given" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("form", MISPLACED, ids=" ".join)
def test_a_uri_in_the_place_of_something_else_is_quoted_without_its_password(
    mongodb_uri: str, database: str, form: list[str]
) -> None:
    """What is said of a wrong argument can be shown to others."""
    uri = "postgresql://ada:hunter2@h/x"

    done = call(
        *(each.format(uri) for each in form),
        *("--uri", mongodb_uri, "--database", database),
    )

    assert done.returncode in {1, 2}
    assert "hunter2" not in done.stdout + done.stderr
    assert ":/...@h" in done.stderr.replace("//", "/")
