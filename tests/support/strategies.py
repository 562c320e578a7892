"""Arbitrary JSON as agents and tools produce it, the awkward parts included."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

text = st.text(st.characters(codec=None), max_size=8)
"""Any Unicode, NUL and lone surrogates included."""

key = st.one_of(
    text,
    st.sampled_from(
        ["", ".", "a.b", "$", "$set", "$ref", "$id", "$db", "$oid", "$numberLong"]
        + ["%", "%2E", "%json", "%u0041", "0", "_id", "__proto__", "k" * 2000]
    ),
)

integer = st.one_of(
    st.integers(),
    st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1]),
    st.integers(-(2**400), 2**400),
)

scalar = st.one_of(
    st.none(),
    st.booleans(),
    integer,
    st.floats(allow_nan=False),
    st.sampled_from([0.0, -0.0, 1.0]),
    text,
)


def json_values(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalar,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(key, inner, max_size=4)
        ),
        max_leaves=max_leaves,
    )


states = st.dictionaries(key, json_values(), max_size=6)


def nested(levels: int, leaf: Any, *, in_lists: bool = False) -> Any:
    for _ in range(levels):
        leaf = [leaf] if in_lists else {"k": leaf}
    return leaf


def identical(left: Any, right: Any) -> bool:
    """Equality that also tells 1 from 1.0 and True, 0.0 from -0.0, and subclasses."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            identical(left[key], right[key]) for key in left
        )
    if isinstance(left, list):
        return len(left) == len(right) and all(map(identical, left, right))
    return repr(left) == repr(right)
