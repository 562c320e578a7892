"""Where the commands print."""

from __future__ import annotations

import os
import shutil
import sys

import click

from mongo_session_service.cli.terminal import Line, painted


class Screen:
    """Where lines are written: one at a time, at once."""

    def __init__(self) -> None:
        is_terminal = sys.stdout.isatty()
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self.in_colour = is_terminal and not is_plain
        self._is_terminal = is_terminal

    @property
    def width(self) -> int | None:
        """How wide a line may be; as wide as it is where there is no terminal."""
        return shutil.get_terminal_size().columns if self._is_terminal else None

    def show(self, *lines: Line) -> None:
        """Write lines."""
        for line in lines:
            self.write(painted(line, self.width, in_colour=self.in_colour))

    def write(self, text: str) -> None:
        """Write a line as it is."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def say(text: str) -> None:
    """Tell the user something that is no output: on stderr."""
    click.echo(text, err=True)
