"""The command that prints how to shard."""

from __future__ import annotations

import pytest
from support.cli_runner import call

from mongo_session_service.schema.indexes import INDEXES
from mongo_session_service.schema.sharding import SHARD_KEY, SHARDED


def test_the_script_is_for_the_database_that_is_named() -> None:
    """In the URI or by an option, with the prefix."""
    of_uri = call("shard", "--plan", "mongodb://127.0.0.1/chats")
    named = call("shard", "--database", "other", "--prefix", "p_")

    assert 'const name = "chats";' in of_uri.stdout
    assert [f'["{each}"' in of_uri.stdout for each in SHARDED] == [True] * len(SHARDED)
    assert 'const name = "other";' in named.stdout
    assert [f'["p_{each}"' in named.stdout for each in SHARDED] == [True] * len(SHARDED)
    assert all(f'"{path}": 1' in named.stdout for path in SHARD_KEY)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--zone", "app"], "is not APP=ZONE"),
        (["--plan", "--zone", "=eu"], "is not APP=ZONE"),
        (["--plan", "--prefix", "a$b"], "prefix"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], says: str) -> None:
    """Nothing is printed that could be run by mistake."""
    done = call("shard", *arguments)

    assert (done.returncode in {1, 2}, done.stdout) == (True, "")
    assert says in done.stderr


def test_unique_indexes_begin_with_the_shard_key() -> None:
    """MongoDB keeps them across shards only then."""
    for index in INDEXES:
        if index.unique:
            assert list(index.keys)[: len(SHARD_KEY)] == list(SHARD_KEY)
