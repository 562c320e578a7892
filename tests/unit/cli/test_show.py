"""Texts of a conversation as ``show`` breaks them into lines."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from support.terminals import printed


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
