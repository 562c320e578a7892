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
from mongo_session_service.cli.inspect_commands import change_text, time_text
from mongo_session_service.cli.terminal import printable, styled, table
from mongo_session_service.model.wording import duration_text, json_line

WIDTHS = (80, 100, 120, 200)
"""Of usual terminals."""


@given(st.text())
def test_nothing_printed_can_harm_a_terminal(text: str) -> None:
    """Control characters, line ends and lone surrogates are spelt out."""
    plain = printable(text)

    plain.encode()
    assert not any(ord(each) < 32 or ord(each) == 127 for each in plain)


@given(st.text(), st.integers(1, 20))
def test_text_fits(text: str, width: int) -> None:
    """No line takes more columns than there are; a wide character needs two."""
    lines = printed(styled(text), max(width, 2))

    assert max(map(cell_len, lines)) <= max(width, 2)


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
def test_an_event_without_content_shows_its_actions(
    actions: dict[str, object], words: str
) -> None:
    """ADK notes rewinds and summaries in events of the user, which say nothing."""
    event = Event(author="user", actions=EventActions(**actions))

    shown = change_text(change_of(event), 3)

    assert f"  user           {words}  k=[1]" in shown.plain


def test_a_change_is_one_line_without_a_terminal() -> None:
    """It begins with its time and author, and ends with its name."""
    line = change_text(change("hello\n\x1b[31mred"), 3)
    [text] = printed(line, None)

    says = r"  agent          hello \x1b[31mred  k=[1]  appended r3 s"
    assert text.endswith(says)
    assert "\x1b[1magent" in sent(line, 200)


def test_new_details_are_shown() -> None:
    """A title, labels and an expiry, or that there are none, are said in words."""
    key = {"app_name": "a", "user_id": "u", "session_id": "s"}
    news = {"title": "Trip\n", "labels": {"team": "blue"}, "expire_time": 1.0}

    shown = [
        printed(change_text(each, 3), None)[0]
        for each in (
            Change(kind="updated", **key, **news, time=0.0),
            Change(kind="updated", **key, labels={}, time=0.0),
        )
    ]

    assert "  updated        title 'Trip '; labels team=blue; expires 19" in shown[0]
    assert shown[1].endswith("  no title; no labels; no expiry  s")


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_a_change_is_whole_in_any_terminal(width: int) -> None:
    """Its lines are broken where the terminal ends; nothing of a text is lost."""
    lines = printed(change_text(change("hello " * 50), 0), width)

    assert max(map(cell_len, lines)) <= width
    assert re.match(r"[-:\d ]+  agent          hello\b", lines[0])
    shown = " ".join(" ".join(lines).split())
    assert shown.endswith(f"{'hello ' * 50}k=[1] appended r3 a/u/s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h")],
)
def test_durations_are_rough(seconds: float | None, text: str) -> None:
    """A duration has one unit."""
    assert duration_text(seconds) == text


def row(*cells: str) -> dict[str, Text]:
    return dict(zip(("APP", "WHY"), map(styled, cells), strict=True))


@pytest.mark.parametrize(
    ("rows", "width", "lines"),
    [
        ([("日本", "x"), ("abc", "y")], None, ["APP   WHY", "日本  x", "abc   y"]),
        (
            [("abc", "1,204"), ("12", "20.5 kB"), ("3", "0")],
            80,
            ["APP      WHY", "abc    1,204", "12   20.5 kB", "3          0"],
        ),
        ([("abc", ""), ("de", "")], 80, ["APP", "abc", "de"]),
        (
            [("abc", "x" * 12)],
            10,
            ["APP  WHY", "abc  xxxxx", "     xxxxx", "     xx"],
        ),
    ],
    ids=["wide characters", "numbers", "an empty column", "a narrow terminal"],
)
def test_tables_line_up(
    rows: list[tuple[str, str]], width: int | None, lines: list[str]
) -> None:
    """Numbers are flush right, long texts go on below, and no column is empty."""
    assert printed(table([row(*each) for each in rows]), width) == lines


def test_a_pipe_gets_all_of_a_line() -> None:
    """However long it is, nothing is cut or wrapped where there is no terminal."""
    text = "word " * 5000 + "end"

    assert printed(styled(text), None) == [text]
    shown = table([row(text, text)])
    assert printed(shown, None)[1] == f"{text}  {text}"


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, "\x1b[31mabcdefghij\x1b[0m\n\x1b[31mkl\x1b[0m\n"),
        ({"NO_COLOR": "1"}, "abcdefghij\nkl\n"),
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


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_and_titles_stay_whole_beside_long_ids(width: int) -> None:
    """An id that has no room goes on below, so that it can be read to its end."""
    heading, *lines = printed(table([listed(IDS[0], "Trip to Turin")]), width)

    assert max(map(cell_len, [heading, *lines])) <= width
    assert "EVENTS  UPDATED" in heading
    assert lines[0].endswith("   1,200  3 min ago")
    assert IDS[0][:8] in lines[0]
    assert (len(lines) == 1) == (width == 200)


def test_texts_begin_in_one_column() -> None:
    """However wide the characters of its author are."""
    said = types.ModelContent("hello")
    begins = {
        cell_len(change_text(change_of(event), 3).plain.partition("hello")[0])
        for event in (Event(author=each, content=said) for each in ("bot", "助手"))
    }

    assert len(begins) == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(1e15, "1e+15 s"), (-1e300, "-1e+300 s"), (float("nan"), "nan s")],
)
def test_a_time_that_no_calendar_has_is_shown(seconds: float, shown: str) -> None:
    """Any client may store one; it neither ends a command nor hides a change."""
    assert time_text(seconds) == shown


def test_no_line_of_a_table_in_a_pipe_ends_in_blanks() -> None:
    """What a script or a person copies has nothing behind its words."""
    rows = [{"a": styled(one), "b": styled(two)} for one, two in ("xy", ("xx", "yyyy"))]

    assert sent(table(rows), None) == "a   b\nx   y\nxx  yyyy\n"
