"""What the commands print."""

from __future__ import annotations

import json

import pytest
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text
from support.terminals import printed, sent

from mongo_session_service import Change
from mongo_session_service.cli.terminal import (
    printable,
    styled,
    table,
)
from mongo_session_service.cli.transcript import change_lines, duration_text, moment
from mongo_session_service.model.wording import json_line


@given(st.text())
def test_nothing_printed_can_harm_a_terminal(text: str) -> None:
    """Control characters, line ends and lone surrogates are spelt out."""
    plain = printable(text)

    plain.encode()
    assert not any(ord(each) < 32 or ord(each) == 127 for each in plain)


@given(st.text(), st.integers(1, 20))
def test_shortened_text_fits(text: str, width: int) -> None:
    """A text takes one line, and no more columns than there are."""
    [line] = printed(styled(text), width)

    assert cell_len(line) <= width


@given(st.text())
def test_json_means_the_same(text: str) -> None:
    """Escaping for the terminal does not change what JSON says."""
    line = json_line(json.dumps({"x": text}, ensure_ascii=False))

    assert json.loads(line) == {"x": text}


def change(text: str) -> Change:
    return change_of(Event(author="agent", content=types.ModelContent(text)))


def change_of(event: Event) -> Change:
    key = {"app_name": "a", "user_id": "u", "session_id": "s"}
    return Change(
        kind="appended",
        **key,
        revision=3,
        event=event,
        state_delta={"k": [1]},
        time=0.0,
    )


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ({"rewind_before_invocation_id": "i-3"}, "rewinds to before invocation i-3"),
        ({"transfer_to_agent": "cook"}, "transfers to cook"),
        (
            {
                "compaction": EventCompaction(
                    start_timestamp=1,
                    end_timestamp=2,
                    compacted_content=types.ModelContent("They met."),
                )
            },
            "(summary) They met.",
        ),
    ],
)
def test_an_event_without_content_says_what_it_does(
    actions: dict[str, object], words: str
) -> None:
    """ADK notes rewinds and summaries in events of the user, which say nothing."""
    event = Event(author="user", actions=EventActions(**actions))

    [line] = change_lines(change_of(event), 3, None)

    assert f"  user           {words}  k=[1]" in line.plain


def test_a_change_is_one_line_where_that_fits() -> None:
    """Without a terminal everything is on one line."""
    [line] = change_lines(change("hello\n\x1b[31mred"), 3, None)
    [text] = printed(line, None)

    assert text.endswith(r"appended  r3   s  agent          hello \x1b[31mred  k=[1]")


def test_new_details_are_shown() -> None:
    """A title, labels and an expiry, or that there are none, are said in words."""
    key = {"app_name": "a", "user_id": "u", "session_id": "s"}
    news = {"title": "Trip\n", "labels": {"team": "blue"}, "expire_time": 1.0}

    shown = [
        printed(change_lines(each, 3, None)[0], None)[0]
        for each in (
            Change(kind="updated", **key, **news, time=0.0),
            Change(kind="updated", **key, labels={}, time=0.0),
        )
    ]

    assert "  s  title 'Trip '; labels team=blue; expires 19" in shown[0]
    assert shown[1].endswith("  s  no title; no labels; no expiry")


def test_long_changes_go_on_below() -> None:
    """In a terminal, what was said and set stands below what it belongs to."""
    lines = change_lines(change("hello " * 20), 0, 60)
    texts = [t for line in lines for t in printed(line, 60)]

    assert len(texts) == 3
    assert "a/u/s" in texts[0]
    assert max(map(cell_len, texts)) <= 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h")],
)
def test_durations_are_rough(seconds: float | None, text: str) -> None:
    """A duration has one unit."""
    assert duration_text(seconds) == text


def row(*cells: str) -> dict[str, Text]:
    return dict(zip("AB", map(styled, cells), strict=True))


def test_tables_line_up() -> None:
    """Columns are as wide as their widest cell, in columns of the terminal."""
    shown = table([row("日本", "x"), row("abc", "y")])

    assert printed(shown, None) == ["A     B", "日本  x", "abc   y"]


def test_the_last_column_gives_way() -> None:
    """In a narrow terminal a row is one line; what is last and long is cut."""
    shown = table([row("abc", "x" * 99)])

    assert printed(shown, 10) == ["A    B", "abc  xxxx…"]


def test_a_pipe_gets_all_of_a_line() -> None:
    """However long it is, nothing is cut or wrapped where there is no terminal."""
    text = "word " * 5000 + "end"

    assert printed(styled(text), None) == [text]
    shown = table([row(text, text)])
    assert printed(shown, None)[1] == f"{text}  {text}"


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, "\x1b[31mabcdefghi…\x1b[0m\n"),
        ({"NO_COLOR": "1"}, "abcdefghi…\n"),
        ({"TERM": "dumb"}, "abcdefghijkl\n"),
    ],
)
def test_a_terminal_gets_colours_unless_it_wants_none(
    environment: dict[str, str], shown: str
) -> None:
    """Lines are as wide as the terminal; NO_COLOR and a dumb one are obeyed."""
    assert sent(styled("abcdefghijkl", "red"), 10, **environment) == shown


def test_a_narrow_table_keeps_what_is_copied() -> None:
    """Names and titles shrink; ids, numbers and ages are shown whole, in one line."""
    row = {
        "SESSION": styled("f" * 36),
        "USER": styled("ada.lovelace@" + "x" * 30),
        "EVENTS": styled("12"),
        "UPDATED": styled("3 min ago"),
        "TITLE AND LABELS": styled("A trip to Turin " * 5),
    }

    heading, line = printed(table([row], "USER"), 80)

    assert "UPDATED" in heading
    for shown in ("f" * 36, "ada.l", "12", "3 min ago", "A trip"):
        assert shown in line


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1e15, "1e+15 s"), (-1e300, "-1e+300 s"), (float("nan"), "nan s")],
)
def test_a_time_that_no_calendar_has_is_shown(seconds: float, shown: str) -> None:
    """Any client may store one; it neither ends a command nor hides a change."""
    assert moment(seconds) == shown
