"""What commands say of mistakes: what to do, in a line; and they create nothing."""

from __future__ import annotations

import pytest
from pymongo import MongoClient
from support.cli_runner import call
from support.one_session import IDS

WHO = tuple(IDS.values())
SESSION = ("--app", "app", "--user", "user", "--session", "s")
MISTAKES = [
    (["nonsense"], 2, "No such command"),
    (["shwo"], 2, "Did you mean 'show'?"),
    (["sessions", "--label", "a=b"], 2, "--label needs --app."),
    (["sessions", "--app", "a", "--label", "b"], 2, "'b' is not NAME=VALUE"),
    (["sessions", "--app", "a", "--where", "b=c"], 2, "quotes: 'b=\"c\"'."),
    (["sessions", "--app", "a", "--where", "user:b=1"], 1, "own state only"),
    (["sessions", "--app", "a", "--order", "update_time"], 1, "name a user_id"),
    (["sessions", "--oldest-first"], 2, "--oldest-first needs --app."),
    (["sessions", "--order", "update_time"], 2, "--order needs --app."),
    (["sessions", "--running"], 0, "No turn is running in database "),
    (["sessions", "--running", "--user", "ada"], 2, "--user needs --app."),
    (["sessions", "--running", "--waiting"], 2, "be given with --running."),
    (["show", "trips", "ada"], 2, "Missing argument 'SESSION'"),
    (["show", "trips", "ada", "x"], 1, "sessions --app trips` lists them"),
    (["show", "my app", "u", "s"], 1, "sessions --app 'my app'` lists them."),
    (["show", "trips", "", "x"], 1, "user_id must not be empty"),
    (["storage"], 0, "Nothing is stored"),
    (["set", *WHO, "--title", "x"], 1, "Session 's' not found."),
    (["set", *WHO], 2, "Nothing to set"),
    (["set", *WHO, "--title", "x", "--no-title"], 2, "either --title or"),
    (["set", *WHO, "--ttl", "1d", "--no-expiry"], 2, "only one of --ttl"),
    (["set", *WHO, "--ttl", "1w"], 2, "such as 7200s, 12h or 7d"),
    (["trim", "app"], 2, "Missing option '--older-than'"),
    (["trim", "app", "--older-than", "1w"], 2, "'1w' is not a duration"),
    (["trim", "nosuch", "--older-than", "1d"], 0, "App nosuch has no sessions in "),
    (["prune", "--idle-for", "soon"], 2, "'soon' is not a duration such as 7200s,"),
    (["prune", "--all"], 2, "No such option"),
    (["redact", *WHO], 2, "Name events, or an --invocation."),
    (["erase", *WHO, "--yes"], 0, "Nothing was stored about session"),
    (["erase", "app", "x", "--yes"], 0, "Nothing was stored about user x"),
    (["erase", "app", "", "--yes"], 0, "Nothing was stored about user"),
    (["watch", "--session", "s"], 2, "--session needs --app and --user"),
    (["watch", "--after-revision", "1"], 2, "--after-revision needs --session"),
    (["watch", *SESSION], 1, "not found. Check app, user"),
    (["consumers"], 0, "No consumer has read from database "),
    (["consumers", "dead-letters", "x"], 1, "No consumer is named 'x' in"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "says"), MISTAKES, ids=[" ".join(it[0]) for it in MISTAKES]
)
def test_a_mistake_is_explained(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    """On a wrong database, say; there is nothing on standard output."""
    done = call(*arguments, "--uri", mongodb_uri, "--database", database)

    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert admin[database].list_collection_names() == []
