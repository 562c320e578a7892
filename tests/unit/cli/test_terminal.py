"""What the commands print."""

from __future__ import annotations

import json
import re

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
    CellRows,
    printable,
    shorten_ids,
    styled,
    without_middle,
)
from mongo_session_service.cli.transcript import (
    change_lines,
    change_name,
    duration_text,
    moment,
)
from mongo_session_service.model.wording import json_line

WIDTHS = (80, 100, 120, 200)
"""Of usual terminals."""


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

    assert [str(each.style) for each in line.spans[1:2]] == ["bold"]
    assert line.plain[line.spans[1].start : line.spans[1].end].strip() == "agent"
    says = r"  agent          hello \x1b[31mred  k=[1]  appended r3 s"
    assert text.endswith(says)


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

    assert "  updated        title 'Trip '; labels team=blue; expires 19" in shown[0]
    assert shown[1].endswith("  no title; no labels; no expiry  s")


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_a_change_begins_with_author_and_text(width: int) -> None:
    """In a terminal the text is cut, and below it is what was set, and by what."""
    lines = change_lines(change("hello " * 50), 0, width)
    head, below = [shown for line in lines for shown in printed(line, width)]

    assert re.match(r"[-:\d ]+  agent          hello ", head)
    assert head.endswith("…")
    assert below == "          k=[1]  appended r3 a/u/s"
    assert cell_len(head) <= width


def test_a_long_key_is_cut_in_its_middle() -> None:
    """A change's name never takes more than a line, whose end still tells sessions."""
    name = change_name("appended", 3, "trips/" + "u" * 60 + "/" + "5" * 36, 60)

    assert name.plain.startswith("appended r3 trips/uuu")
    assert name.plain.endswith("5555")
    assert "…" in name.plain
    assert 10 + name.cell_len == 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h")],
)
def test_durations_are_rough(seconds: float | None, text: str) -> None:
    """A duration has one unit."""
    assert duration_text(seconds) == text


def row(*cells: str) -> dict[str, Text]:
    return dict(zip(("APP", "WHY"), map(styled, cells), strict=True))


def test_tables_line_up() -> None:
    """Columns are as wide as their widest cell, in columns of the terminal."""
    shown = CellRows([row("日本", "x"), row("abc", "y")])

    assert printed(shown, None) == ["APP   WHY", "日本  x", "abc   y"]


def test_a_column_without_values_is_left_out() -> None:
    """What no row has takes no room."""
    shown = CellRows([row("abc", ""), row("de", "")])

    assert printed(shown, 80) == ["APP", "abc", "de"]


def test_the_last_column_gives_way() -> None:
    """In a narrow terminal a row is one line; what is last and long is cut."""
    shown = CellRows([row("abc", "x" * 99)])

    assert printed(shown, 10) == ["APP  WHY", "abc  xxxx…"]


def test_a_pipe_gets_all_of_a_line() -> None:
    """However long it is, nothing is cut or wrapped where there is no terminal."""
    text = "word " * 5000 + "end"

    assert printed(styled(text), None) == [text]
    shown = CellRows([row(text, text)])
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


IDS = ["5f0c41d2-8a1b-4c3d-9e5f-0123456789ab", "5f0c41d2-8a1b-4c3d-0000-0123456789ab"]


def listed(session_id: str, title: str) -> dict[str, Text]:
    cells = (title, session_id, f"{session_id}@example.org", "1,200", "3 min ago")
    names = ("TITLE AND LABELS", "SESSION", "USER", "EVENTS", "UPDATED")
    return dict(zip(names, map(styled, cells), strict=True))


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_ids_are_shortened_before_titles(width: int) -> None:
    """Each row is a line; titles are first, numbers whole, and ids still different."""
    rows = [listed(each, "A trip to Turin " * 3) for each in IDS]
    heading, *lines = printed(CellRows(rows), width)

    assert len(lines) == len(rows)
    assert max(map(cell_len, [heading, *lines])) <= width
    for line, id_ in zip(lines, IDS, strict=True):
        assert line.startswith("A tri")
        assert line.endswith("  1,200   3 min ago")
        assert (id_ in line) == (width == 200)
    if width >= 80:
        assert "EVENTS  UPDATED" in heading
        assert lines[0] != lines[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_ids_of_wide_characters_fit(width: int) -> None:
    """Where a character takes two columns, rows are whole, and ids still different."""
    ids = [f"{'会話' * 12}{last}" for last in "甲乙"]
    _, *lines = printed(CellRows([listed(each, "Trip") for each in ids]), width)

    assert max(map(cell_len, lines)) <= width
    assert all(line.endswith("  1,200   3 min ago") for line in lines)
    assert lines[0] != lines[1]


@given(st.text(), st.integers(1, 40))
def test_a_text_without_its_middle_fits(text: str, width: int) -> None:
    """Its columns count, not its characters."""
    assert cell_len(without_middle(printable(text), width)) <= width


def test_what_is_said_begins_in_one_column() -> None:
    """However wide the characters of its author are."""
    said = types.ModelContent("hello")
    begins = {
        cell_len(change_lines(change_of(event), 3, None)[0].plain.partition("hello")[0])
        for event in (Event(author=each, content=said) for each in ("bot", "助手"))
    }

    assert len(begins) == 1


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_ids_are_whole_where_there_is_room(environment: dict[str, str]) -> None:
    """Nothing is shortened that fits, nor anything at all in a pipe."""
    rows = [listed(each, "Trip") for each in IDS]

    piped = sent(CellRows(rows), None, **environment)
    wide = sent(CellRows(rows), 200, **environment)

    assert all(each in piped and each in wide for each in IDS)
    assert "…" not in piped + wide
    assert "\x1b" not in piped


@given(st.lists(st.text(), min_size=1, unique=True), st.integers(1, 40))
def test_shortened_ids_differ(ids: list[str], width: int) -> None:
    """Whatever the ids, those that looked different still do, and share a width."""
    shown = [printable(each) for each in ids]
    cells = [styled(each) for each in ids]

    shorten_ids(cells, width)

    assert len({each.plain for each in cells}) == len({*shown})


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1e15, "1e+15 s"), (-1e300, "-1e+300 s"), (float("nan"), "nan s")],
)
def test_a_time_that_no_calendar_has_is_shown(seconds: float, shown: str) -> None:
    """Any client may store one; it neither ends a command nor hides a change."""
    assert moment(seconds) == shown
