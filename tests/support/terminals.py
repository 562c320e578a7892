"""What commands print on a terminal, or into a pipe."""

from __future__ import annotations

import io
import sys

import click
import pytest
from rich.console import RenderableType

from mongo_session_service.cli import terminal


def sent(
    shown: RenderableType,
    columns: int | None,
    *,
    indented: bool = False,
    **environment: str,
) -> str:
    """What a terminal of so many columns is sent, with its styles; None is a pipe."""
    output = io.StringIO()
    output.isatty = lambda: columns is not None  # type: ignore[method-assign]
    variables = {"COLUMNS": str(columns or 80), "TERM": "xterm", **environment}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        for name in ("NO_COLOR", "LINES"):  # with LINES, a dumb one has a width as well
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        if indented:
            terminal.show_indented(str(shown))
        else:
            terminal.show(shown)
    return output.getvalue()


def printed(
    shown: RenderableType, columns: int | None, *, indented: bool = False
) -> list[str]:
    """The lines that a reader sees."""
    text = click.unstyle(sent(shown, columns, indented=indented))
    lines = text.removesuffix("\n").split("\n")
    return [line.rstrip() for line in lines]
