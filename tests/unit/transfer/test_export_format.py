"""The JSON Lines form: exact, on one line each, and suspicious of what it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import identical, json_values

from mongo_session_service.errors import SourceError
from mongo_session_service.transfer import export_file
from mongo_session_service.transfer.sources import MalformedError

SESSION = {
    "app_name": "a",
    "user_id": "u",
    "session_id": "s",
    "create_time": 1.0,
    "update_time": 2.0,
    "state": {},
}
exotic = st.sampled_from(
    [b"", b"\xff\x00", float("inf"), float("-inf"), "\ud83d", {"%bytes": "AA=="}]
    + [{"%object": []}, {"%text": 1}, {"%float": "nan"}, {"\ud83d": 1}, {"%json": "1"}]
)
values = json_values() | exotic | st.lists(exotic, max_size=3)


@given(values)
def test_values_come_back_exactly(value: Any) -> None:
    """Any value is one line of strict JSON, and is read as what it was."""
    text = export_file.tagged_json({"event": value})

    json.loads(text, parse_constant=pytest.fail)
    assert "\n" not in text
    kind, read = export_file.parse_line(text.encode())
    assert kind == "event"
    assert identical(read, value)


ORIGIN = {"session_id": "s", "create_time": 1.5, "revision": 3}


@pytest.mark.parametrize(
    "wrong",
    [
        ORIGIN,
        "s",
        [None],
        [[]],
        [{}],
        [ORIGIN | {"more": 1}],
        [ORIGIN | {"revision": True}],
        [ORIGIN | {"revision": -1}],
        [ORIGIN | {"revision": 2**63}],
        [ORIGIN | {"session_id": ""}],
        [ORIGIN | {"create_time": "1"}],
        [ORIGIN | {"create_time": float("nan")}],
    ],
)
def test_wrong_origins_are_named(wrong: Any) -> None:
    """Nothing reaches the store that a redaction could not read."""
    with pytest.raises(MalformedError, match="forked_from|session_id"):
        export_file.decode_item("session", SESSION | {"forked_from": wrong})


@pytest.mark.parametrize(
    "hostile",
    [b"", b"\xff", b"[]", b"null", b"{}", b'{"a":1,"b":2}', b'{"event":NaN}']
    + [b'{"event":', b"[" * 100_000, b'{"a":' * 100_000, b'{"event":' + b"9" * 5000]
    + [b'{"x":{"%bytes":"?"}}', b'{"x":{"%object":[1]}}', b'{"x":{"%text":"/w=="}}'],
)
def test_hostile_lines_are_refused(hostile: bytes) -> None:
    """What is no line of the form is one error, whatever it is instead."""
    with pytest.raises(MalformedError):
        export_file.parse_line(hostile)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("unknown", {}),
        ("event", []),
        ("event", {"author": 1}),
        ("event", {"timestamp": "yesterday", "author": "a"}),
        ("session", {}),
        ("session", {"app_name": "a", "user_id": "u", "session_id": "s", "state": {}}),
        ("session", {"app_name": "a", "user_id": "u", "state": {}, "update_time": 1}),
        ("app_state", {"app_name": "", "state": {}}),
        ("app_state", {"app_name": "\ud83d", "state": {}}),
        ("user_state", {"app_name": "a", "state": {}}),
        ("app_state", {"app_name": "a", "state": {}, "later": 1}),
        ("session", {**SESSION, "later": "field"}),
        ("session", {**SESSION, "title": 5}),
        ("session", {**SESSION, "labels": {"a": ["b"]}}),
        ("session", {**SESSION, "ttl": -1}),
        ("session", {**SESSION, "expire_time": "soon"}),
        ("session", {**SESSION, "initial_state": []}),
        ("session", {**SESSION, "log_begins": 2}),
        *(
            ("session", {**SESSION, "initial_state": {}, "log_begins": wrong})
            for wrong in (-1, "2", True, 2.0)
        ),
        ("user_state", {"app_name": "a", "user_id": "u", "state": []}),
    ],
)
def test_lines_that_lack_something_are_refused(kind: str, value: Any) -> None:
    """A line has to hold all that its kind has, of the right type."""
    with pytest.raises(MalformedError):
        export_file.decode_item(kind, value)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (b"", "not a file of exported sessions"),
        (b'{"version": 1}', "not a file of exported sessions"),
        (b'{"format": "mongo-session-service", "version": 1}', "version 1, and this"),
        (b'{"format": "mongo-session-service", "version": 3}', "Upgrade"),
    ],
)
def test_other_files_are_refused(first: bytes, message: str) -> None:
    """The first line distinguishes an export of this version from anything else."""
    with pytest.raises(SourceError, match=message):
        export_file.check_header(first)
