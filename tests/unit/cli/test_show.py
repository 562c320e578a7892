"""Texts of a conversation as ``show`` breaks them into lines."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events import Event
from rich.cells import cell_len
from support.terminals import printed, sent

from mongo_session_service.cli import terminal
from mongo_session_service.cli.inspect_commands import event_texts
from mongo_session_service.codec.public_view import public_view
from mongo_session_service.codec.waiting_calls import ABORTED, STOPPED


@pytest.mark.parametrize("text", ["a word or two " * 20, "日本語" * 30, "x" * 100])
def test_no_line_is_wider_than_the_terminal(text: str) -> None:
    """Long lines are broken between words where they can, and none of it is lost."""
    lines = printed(text, 30, indented=True)

    assert max(map(cell_len, lines)) <= 30
    assert all(line.startswith("    ") for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_lines_and_their_indentation_stay() -> None:
    """Code and lists look as they were written, where no terminal sets a width."""
    text = "def f():\n\n    return  1\n"

    assert printed(text, None, indented=True) == [
        *("    def f():", "", "        return  1"),
    ]


@pytest.mark.parametrize("odd", ["\x1b[2J", "\x9b31m", "\r", "\b", "\u202e", "\x85"])
def test_no_text_controls_the_terminal(odd: str) -> None:
    """What is no letter, sign or blank is escaped, or ends a line."""
    for line in printed(f"a{odd}b", 80, indented=True):
        assert line.isprintable()


def test_grey_is_grey_also_on_a_terminal_that_names_few_colours() -> None:
    """Of eight colours it would be white, and vanish on white."""
    shown = sent(terminal.styled("r12", terminal.FAINT), 80, TERM="xterm")

    assert shown.rstrip() == "\x1b[38;5;244mr12\x1b[0m"


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"errorMessage": STOPPED}, ["(stopped by the user)"]),
        (
            {"errorMessage": STOPPED, "customMetadata": {"stop_reason": "too long"}},
            ["(stopped by the user: too long)"],
        ),
        (
            {"errorMessage": "The turn was cut off: its process has ended."},
            ["error INVOCATION_ABORTED: The turn was cut off: its process has ended."],
        ),
        (
            {
                "errorCode": "",
                "content": {"parts": [{"text": "It was a"}]},
                "interrupted": True,
                "customMetadata": {"stop_reason": "too long"},
            },
            ["It was a", "(cut off: too long)"],
        ),
    ],
    ids=["stopped", "with a reason", "cut off by a crash", "the answer so far"],
)
def test_a_stop_is_no_error(fields: dict[str, Any], texts: list[str]) -> None:
    """What a user has stopped reads so, with the reason, and what had come of it."""
    event = {"errorCode": ABORTED, "actions": {}, **fields}

    assert [*event_texts(event)] == texts


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"input_transcription": {"text": "I live in Lisbon"}}, "(spoken) I live in"),
        ({"output_transcription": {"text": "It is warm"}}, "(spoken) It is warm"),
        ({"output": {"city": "Lisbon"}}, '(output) {"city": "Lisbon"}'),
    ],
)
def test_what_an_event_says_outside_its_content_is_shown(
    said: dict[str, Any], text: str
) -> None:
    """What was spoken is marked, and so is what a node has put out."""
    event = Event.model_validate({"author": "user", **said})

    (shown,) = event_texts(public_view({"event": event})["event"])

    assert shown.startswith(text)
