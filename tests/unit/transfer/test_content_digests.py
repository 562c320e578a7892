"""Content is compared exactly, whatever has stored it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from bson import Decimal128, Int64, ObjectId

from mongo_session_service.transfer.comparison import content_digest

OTHERS: list[Any] = [
    *(None, True, 1, 1.0, float("nan"), "", "ab", "1", "True", "json:1", [], {}),
    *(b"ab", b"\xab", "bytes:b'ab'", ["ab"], [b"ab"], {"%bytes": "ab"}, {"a": b""}),
    *(ObjectId("0" * 24), "0" * 24, {"$oid": "0" * 24}, Decimal128("1")),
    *(datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
]


def test_different_content_has_different_digests() -> None:
    """That goes for values which JSON cannot hold, too, and for those inside others."""
    for one, other in combinations(OTHERS, 2):
        assert content_digest({"k": one}) != content_digest({"k": other})
        beside = {"bytes": b""}
        assert content_digest({"k": one, **beside}) != content_digest(
            {"k": other, **beside}
        )


def test_equal_content_has_one_digest() -> None:
    """The order of keys does not matter, nor how the driver returns a number."""
    for each in OTHERS:
        one = {"a": each, "b": {"x": 1, "y": [each]}}
        other = {"b": {"y": [each], "x": Int64(1)}, "a": each}
        assert content_digest(one) == content_digest(other)
