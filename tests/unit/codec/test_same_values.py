"""Decoded values are compared exactly, whatever has stored them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

from bson import Decimal128, Int64, ObjectId

from mongo_session_service.codec.bson_values import MAX_DEPTH, is_same_value

OTHERS: list[Any] = [
    *(None, True, 1, 1.0, float("nan"), 0.0, -0.0, False, 0, "", "ab", "1", "True"),
    *(b"ab", b"\xab", ["ab"], [b"ab"], {"%bytes": "ab"}, {"a": b""}, [], {}),
    *(ObjectId("0" * 24), "0" * 24, {"$oid": "0" * 24}, Decimal128("1")),
    *(datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
]


def test_different_values_are_not_the_same() -> None:
    """That goes for values which JSON cannot hold, too, and for those inside others."""
    for one, other in combinations(OTHERS, 2):
        assert not is_same_value(one, other)
        assert not is_same_value({"k": [one]}, {"k": [other]})


def test_equal_values_are_the_same() -> None:
    """The order of keys does not matter, nor how the driver returns a number."""
    for each in OTHERS:
        one = {"a": each, "b": {"x": 1, "y": [each]}}
        other = {"b": {"y": [each], "x": Int64(1)}, "a": each}
        assert is_same_value(one, other)


def test_the_deepest_values_are_compared_in_any_call_stack() -> None:
    """Whoever imports or verifies may have called through hundreds of functions."""

    def deep(innermost: int) -> Any:
        value: Any = innermost
        for _ in range(MAX_DEPTH):
            value = {"k": value}
        return value

    def called_through(functions: int, call: Callable[[], bool]) -> bool:
        return called_through(functions - 1, call) if functions else call()

    assert called_through(600, lambda: is_same_value(deep(1), deep(1)))
    assert not called_through(600, lambda: is_same_value(deep(1), deep(2)))
