"""Which sessions are meant by a value of their state: exactly those that have it.

Values are literals wherever they go, so that nothing in them is an operator. Numbers
are equal as in Python, so 1 is 1.0, but for an int beyond 64 bits, which is no float.
True is not 1, and a key that is missing is not None. Dicts may have their keys in any
order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.adk.sessions.state import State

from mongo_session_service.codec.bson_values import (
    WRAPPER,
    encode_value,
    escape_key,
    json_form,
)
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.errors import InvalidInputError, quoted

Document = dict[str, Any]

MAX_DEPTH: Final = 10
"""Levels of lists and dicts in a value that is searched for."""

_OF_OTHERS: Final = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


def state_conditions(where: object, owner: Owner, hooks: Hooks) -> list[Document]:
    """What a session's document has to be like, for each key of its own state.

    Raises:
        InvalidInputError: it is no dict of values of a session's own state.
    """
    if not isinstance(where, Mapping):
        message = f"where must be a dict, not {type(where).__name__}."
        raise InvalidInputError(message)
    values = {key: _form(key, value) for key, value in where.items()}
    stored = hooks.state_to_store(values, owner)
    return [_condition(key, stored[key]) for key in sorted(stored)]


def _form(key: object, value: object) -> Any:
    if not isinstance(key, str):
        message = f"The keys of where must be strings, not {type(key).__name__}."
        raise InvalidInputError(message)
    if key.startswith(_OF_OTHERS):
        message = (
            f"where has key {quoted(key)}, but sessions are found by their own state"
            " only: app:, user: and temp: keys are not in it."
        )
        raise InvalidInputError(message)
    try:
        return json_form(value, f"where key {quoted(key)}")
    except InvalidInputError as error:
        message = f"The value of where key {quoted(key)} cannot be one: {error}."
        raise InvalidInputError(message) from None


def _condition(key: str, value: Any) -> Document:
    try:
        encoded = encode_value(value)
    except InvalidInputError as error:
        message = f"The value of where key {quoted(key)} cannot be one: {error}."
        raise InvalidInputError(message) from None
    name = escape_key(key)
    path = f"state.{name}"
    is_wrapped = isinstance(encoded, dict) and WRAPPER in encoded
    if isinstance(encoded, dict | list) and not is_wrapped:
        if _depth(encoded) > MAX_DEPTH:
            message = (
                f"The value of where key {quoted(key)} is nested deeper than"
                f" {MAX_DEPTH} levels."
            )
            raise InvalidInputError(message)
        kind = "object" if isinstance(encoded, dict) else "array"
        return {path: {"$type": kind}, "$expr": _is(f"${path}", encoded)}
    # Else None would be found by a missing key, and an item by its list.
    return {path: {"$eq": encoded, "$exists": True, "$not": {"$type": "array"}}}


def _is(there: Any, value: Any) -> Document:
    """An expression that tells if what is there is a value."""
    if isinstance(value, dict):
        fields = [
            _is({"$getField": {"field": {"$literal": name}, "input": there}}, item)
            for name, item in value.items()
        ]
        size = {"$size": {"$objectToArray": there}}
        is_kind: Document = {"$eq": [{"$type": there}, "object"]}
    elif isinstance(value, list):
        fields = [
            _is({"$arrayElemAt": [there, index]}, item)
            for index, item in enumerate(value)
        ]
        size = {"$size": there}
        is_kind = {"$isArray": [there]}
    else:
        return {"$eq": [there, {"$literal": value}]}
    has_size = {"$eq": [size, len(value)]}
    return {"$cond": [is_kind, {"$and": [has_size, *fields]}, False]}


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
