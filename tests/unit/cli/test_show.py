"""Texts of a conversation as ``show`` breaks them into lines."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from mongo_session_service.cli.inspect_commands import wrapped_lines


@pytest.mark.parametrize("text", ["a word or two " * 20, "日本語" * 30, "x" * 100])
def test_no_line_is_wider_than_the_terminal(text: str) -> None:
    """Long lines are broken between words where they can, and none of it is lost."""
    lines = list(wrapped_lines(text, 30))

    assert max(map(cell_len, lines)) <= 26
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_lines_and_their_indentation_stay() -> None:
    """Code and lists look as they were written, where no terminal sets a width."""
    assert list(wrapped_lines("def f():\n\n    return  1\n", None)) == [
        *("def f():", "", "    return  1"),
    ]


@pytest.mark.parametrize("odd", ["\x1b[2J", "\x9b31m", "\r", "\b", "\u202e", "\x85"])
def test_no_text_controls_the_terminal(odd: str) -> None:
    """What is no letter, sign or blank is escaped, or ends a line."""
    for line in wrapped_lines(f"a{odd}b", 80):
        assert line.isprintable()
