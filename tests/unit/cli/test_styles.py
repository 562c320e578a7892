"""Colours of the terminal are readable on any background."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.color import Color

from mongo_session_service.cli import terminal

COLOURS = {
    name: each
    for name, each in vars(terminal).items()
    if str(each).startswith("color(")
}
CLI = Path(terminal.__file__).parent
READABLE = 3.5
"""The least contrast; the Web's guidelines ask for 3 of what is not small text."""


def luminance(colour: str) -> float:
    """How bright a colour is, as the Web's guidelines compute it."""
    shares = [each / 255 for each in Color.parse(colour).get_truecolor()]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4
        for each in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("name", COLOURS)
def test_a_style_is_readable_on_white_and_on_black(name: str) -> None:
    """Each is a fixed colour, whatever a terminal makes of yellow."""
    brightness = luminance(COLOURS[name]) + 0.05

    assert 1.05 / brightness > READABLE
    assert brightness / 0.05 > READABLE


def test_no_command_has_a_colour_of_its_own() -> None:
    """A terminal's own colours, and dim, can vanish on its background."""
    own = r'"(?:bright_)?(?:red|green|yellow|blue|magenta|cyan|white|black|dim)\b.*"'
    named = {path.name: re.findall(own, path.read_text()) for path in CLI.glob("*.py")}

    assert {name for name, colours in named.items() if colours} == set()
