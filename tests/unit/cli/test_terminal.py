"""What the commands print."""

from __future__ import annotations

import json

import pytest
from google.adk.events import Event
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service import Change
from mongo_session_service.cli.terminal import (
    Text,
    change_lines,
    columns,
    duration,
    json_line,
    painted,
    printable,
    shortened,
    table,
)


@given(st.text())
def test_nothing_printed_can_harm_a_terminal(text: str) -> None:
    """Control characters, line ends and lone surrogates are spelt out."""
    plain = printable(text)

    plain.encode()
    assert not any(ord(each) < 32 or ord(each) == 127 for each in plain)


@given(st.text(), st.integers(1, 20))
def test_shortened_text_fits(text: str, width: int) -> None:
    """A text takes no more columns than there are."""
    assert columns(shortened(printable(text), width)) <= width


@given(st.text())
def test_json_means_the_same(text: str) -> None:
    """Escaping for the terminal does not change what JSON says."""
    line = json_line(json.dumps({"x": text}, ensure_ascii=False))

    assert json.loads(line) == {"x": text}


def change(text: str) -> Change:
    event = Event(author="agent", content=types.ModelContent(text))
    key = {"app_name": "a", "user_id": "u", "session_id": "s"}
    return Change(
        kind="appended",
        **key,
        revision=3,
        event=event,
        state_delta={"k": [1]},
        time=0.0,
    )


def test_a_change_is_one_line_where_that_fits() -> None:
    """Without a terminal everything is on one line."""
    [line] = change_lines(change("hello\n\x1b[31mred"), 3, None)
    text = painted(line, None, in_colour=False)

    assert text.endswith(r"appended  r3   s  agent          hello \x1b[31mred  k=[1]")


def test_long_changes_go_on_below() -> None:
    """In a terminal, what was said and set stands below what it belongs to."""
    lines = change_lines(change("hello " * 20), 0, 60)
    texts = [painted(line, 60, in_colour=False) for line in lines]

    assert len(texts) == 3
    assert "a/u/s" in texts[0]
    assert max(map(columns, texts)) <= 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h")],
)
def test_durations_are_rough(seconds: float | None, text: str) -> None:
    """A duration has one unit."""
    assert duration(seconds) == text


def test_tables_line_up() -> None:
    """Columns are as wide as their widest cell, in columns of the terminal."""
    lines = table(("A", "B"), [[Text("日本"), Text("x")], [Text("abc"), Text("y")]])
    texts = [painted(line, None, in_colour=False) for line in lines]

    assert texts == ["A     B", "日本  x", "abc   y"]
