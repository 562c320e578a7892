from __future__ import annotations

import datetime as dt
import enum
import logging
from typing import Any

import bson
import pytest
from bson import Binary
from bson.codec_options import CodecOptions
from google.genai.types import FunctionResponse
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support.strategies import identical, json_values, key, nested

from mongo_session_service import InvalidInputError
from mongo_session_service.codec.bson_values import (
    CODEC_OPTIONS,
    MAX_DEPTH,
    decode_value,
    encode_native,
    encode_value,
    escape_key,
    json_form,
    unescape_key,
)


def through_bson(value: Any, options: CodecOptions = CODEC_OPTIONS) -> Any:
    """What is read of a value that was written."""
    encoded = bson.encode({"value": encode_value(value)})
    return decode_value(bson.decode(encoded, options)["value"])


@given(json_values(max_leaves=30))
def test_json_survives_bson_type_for_type(value: Any) -> None:
    """Any JSON value comes back identical, down to its types and signs."""
    assert identical(through_bson(value), value)


@given(json_values(max_leaves=30))
def test_what_needs_no_wrapper_is_encoded_in_one_step(value: Any) -> None:
    """BSON that is made at once is that of the value encoded first, or is not made."""
    encoded = encode_value(value)
    native = encode_native({"value": value})

    assert native in {None, bson.encode({"value": encoded})}
    if native is None:
        whole = bson.encode({"value": encoded})
        assert b"%json\0" in whole or b"$ref\0" in whole


@given(st.lists(key, unique=True))
def test_escaping_a_key_is_reversible_and_never_collides(keys: list[str]) -> None:
    """Different keys have different field names, which say what the key was."""
    names = [escape_key(each) for each in keys]

    assert len(set(names)) == len(keys)
    assert [unescape_key(name) for name in names] == keys
    assert all(name and not set(name) & set(".$\0") for name in names)
    bson.encode(dict.fromkeys(names))


@pytest.mark.parametrize(
    ("key", "name"),
    [("topic", "topic"), ("a.b", "a%2Eb"), ("$set", "%24set"), ("", "%"), ("%", "%25")]
    + [("a\0", "a%00"), ("\ud800", "%uD800"), ("ключ", "ключ")],
)
def test_field_names_of_keys_are_stable(key: str, name: str) -> None:
    """The stored form of keys is part of the layout: ordinary keys are themselves."""
    assert escape_key(key) == name


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a.b": {"$set": 1}, "": 2}, {"a.b": {"$set": 1}, "": 2}),
        ({"rows": [1, 2**64]}, {"rows": [1, {"%json": "18446744073709551616"}]}),
        ({"k": {"%json": 1}}, {"k": {"%json": '{"%json": 1}'}}),
        ({"k": {"$ref": 1, "$id": 2}}, {"k": {"%json": '{"$ref": 1, "$id": 2}'}}),
        (["\ud83d\ude00"], [{"%json": b'"\xed\xa0\xbd\xed\xb8\x80"'}]),
    ],
)
def test_only_values_that_bson_cannot_hold_are_wrapped(value: Any, stored: Any) -> None:
    """The rest of a value stays native, whatever is beside it."""
    assert encode_value(value) == stored


@pytest.mark.parametrize("in_lists", [True, False])
@pytest.mark.parametrize("levels", [59, 60, 61, 200, MAX_DEPTH - 1])
def test_deep_values_survive(levels: int, *, in_lists: bool) -> None:
    """Values nested deeper than the server takes come back all the same."""
    value = nested(levels, 2**70, in_lists=in_lists)

    assert identical(through_bson(value), value)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 100, 100_000])
def test_too_deep_values_are_refused(
    levels: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be read back within a call stack is not written."""
    with pytest.raises(InvalidInputError, match="more than 250 levels"):
        encode_value(json_form(nested(levels, 1)))
    assert not caplog.records  # which would say that its text is stored


def test_values_that_refer_to_themselves_are_refused() -> None:
    """A cycle is reported, not followed."""
    cycle: dict[str, Any] = {}
    cycle["self"] = [cycle]

    with pytest.raises(InvalidInputError, match="contains itself"):
        json_form(cycle)
    with pytest.raises(InvalidInputError):
        encode_value(cycle)


class Colour(enum.StrEnum):
    RED = "red"


class Profile(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (Profile(name="Ada"), {"name": "Ada"}),
        (dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "2026-01-02T00:00:00Z"),
        (Colour.RED, "red"),
        ((1, {2}), [1, [2]]),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        (b"text", "text"),
    ],
)
def test_rich_values_have_the_json_form_pydantic_gives_them(
    value: Any, form: Any
) -> None:
    """Models, dates, enums, tuples and other keys are stored as ADK's SQL does."""
    assert identical(json_form(value), form)


def test_functions_are_stored_as_text(caplog: pytest.LogCaptureFixture) -> None:
    """What has no JSON form is kept as text, and the log says where, not what."""
    with caplog.at_level(logging.WARNING):
        form = json_form({"f": print, "secret": "hunter2"}, "State key 'k'")

    assert form == {"f": "<built-in function print>", "secret": "hunter2"}
    assert "State key 'k'" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    "value",
    [{1: b"\xff>>??"}, {b"\xff": 1}, {b"abc"}, {"%json": [b"\xff"]}],
    ids=["key", "bytes as key", "set", "wrapped"],
)
def test_bytes_where_bson_has_none_become_the_text_that_adk_stores(value: Any) -> None:
    """In an event: keys, sets and what has to be JSON, as in ADK's SQL service."""
    response = FunctionResponse(name="f", response={"k": value})
    theirs = response.model_dump(mode="json")["response"]["k"]
    assert decode_value(encode_value(value)) == theirs


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, Binary])
def test_what_is_like_bytes_is_stored_as_bytes(kind: Any) -> None:
    """Binary, wherever it is in an event."""
    stored = encode_value({"k": [kind(b"\xff")]})
    assert identical(stored, {"k": [b"\xff"]})


def test_bytes_that_are_not_text_are_refused() -> None:
    """Binary values have no JSON form, and the error does not quote them."""
    with pytest.raises(InvalidInputError, match="not UTF-8") as caught:
        json_form({"image": b"\x89PNG\xff"})

    assert "PNG" not in str(caught.value)
