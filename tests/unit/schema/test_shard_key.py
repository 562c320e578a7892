"""What the page about sharded clusters says of the shard key."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.routing import SHARD_KEY, SHARDED

from mongo_session_service.model import records
from mongo_session_service.schema.indexes import INDEXES

PAGE = Path(__file__).parents[3] / "docs/operations/sharding.md"


def test_the_page_shards_by_the_key_that_the_kernel_knows() -> None:
    """What an administrator types is what commands are routed by."""
    script = PAGE.read_text()
    key, names = re.findall(r"^const (?:key|names) = (.*);$", script, re.MULTILINE)

    assert json.loads(key) == SHARD_KEY
    assert [*SHARD_KEY] == [f"_id.{name}" for name in records.SHARD_KEY]
    assert tuple(json.loads(names)) == SHARDED


def test_unique_indexes_begin_with_the_shard_key() -> None:
    """MongoDB keeps them across shards only then."""
    for index in INDEXES:
        if index.unique:
            assert list(index.keys)[: len(SHARD_KEY)] == list(SHARD_KEY)
