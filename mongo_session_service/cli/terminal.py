"""Output on a terminal: text that cannot harm it, tables, remarks and progress."""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.errors import without_passwords
from mongo_session_service.model.wording import counted, json_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

# Beside control characters: what reorders or breaks lines, and halves of characters.
_UNSAFE: Final = {"Cc", "Cs", "Zl", "Zp", "Cf"}
_JOINERS: Final = "\u200c\u200d"  # parts of words and of emoji
_IDS: Final = frozenset({"SESSION", "USER", "APP", "NAME", "RUN BY", "HOST"})
_TEXTS: Final = frozenset({"TITLE AND LABELS", "WHY"})
"""Names of the columns that give way in a narrow terminal."""
_SHORTEST_ID: Final = 11
_GAP: Final = 2  # columns between two cells
_WIDE: Final = 60
"""Columns of a terminal whose progress bar also has room for the count."""

DEBUG_HINT: Final = "--debug shows where it comes from."
"""Hint appended to errors that were raised by user code."""


def printable(text: str) -> str:
    r"""Write a text on one line, with control characters escaped: ``\x1b``."""
    plain = re.sub(r"\s+", " ", text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(
        ascii(each)[1:-1]
        if unicodedata.category(each) in _UNSAFE and each not in _JOINERS
        else each
        for each in plain
    )


def styled(value: object, style: str = "") -> Text:
    """Make a value safe to print, in a style of rich; cut rather than wrapped."""
    from rich.text import Text

    return Text(printable(str(value)), style, no_wrap=True, overflow="ellipsis")


class CellRows:
    """Rows of named cells in columns, a line each; a column without values is left out.

    Where they are too wide, ids are shortened in the middle as far as they stay
    different, the widest first, and then texts at their end. Numbers and times are not.
    """

    def __init__(self, rows: Sequence[dict[str, Text]]) -> None:
        self._rows = rows

    def __rich_console__(
        self, _: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        from rich.table import Table

        names = [name for name in self._rows[0] if any(r[name] for r in self._rows)]
        columns = {name: [row[name] for row in self._rows] for name in names}
        widths = {
            name: max(len(name), *(each.cell_len for each in cells))
            for name, cells in columns.items()
        }
        excess = sum(widths.values()) + _GAP * (len(names) - 1) - options.max_width
        for name in sorted(_IDS & widths.keys(), key=widths.__getitem__, reverse=True):
            if excess > 0:
                shorten_ids(columns[name], widths[name] - excess)
                width = max(len(name), *(each.cell_len for each in columns[name]))
                excess -= widths[name] - width
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        for name in names:
            is_fixed = name not in _IDS | _TEXTS
            table.add_column(styled(name), no_wrap=is_fixed)
        for row in zip(*columns.values(), strict=True):
            table.add_row(*row)
        yield table


def shorten_ids(cells: list[Text], width: int) -> None:
    """Cut ids in the middle, to a width at which those that differ still do."""
    ids = {each.plain for each in cells}
    for room in range(max(width, _SHORTEST_ID), max(each.cell_len for each in cells)):
        cut = {each: without_middle(each, room) for each in ids}
        if len({*cut.values()}) == len(ids):
            cells[:] = [styled(cut[each.plain], str(each.style)) for each in cells]
            return


def without_middle(text: str, width: int) -> str:
    """Cut a text to a number of columns in its middle, where ids say least."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    # Half of a wide character is a space.
    first = set_cell_size(text, width - 1 - end).rstrip()
    last = set_cell_size(text[::-1], end)[::-1].lstrip()
    return f"{first}…{last}"


def _stdout() -> Console:
    """Open standard output; where it is not a terminal, lines have no limit."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = sys.maxsize
    return console


def terminal_width() -> int | None:
    """Count the columns of the terminal; None where standard output is not one."""
    console = _stdout()
    return console.width if console.is_terminal else None


def show(*shown: RenderableType) -> None:
    """Print texts or tables, each line cut at the terminal's width."""
    console = _stdout()
    for each in shown:
        console.print(each, no_wrap=True, overflow="ellipsis")


def show_json(fields: dict[str, Any]) -> None:
    """Print an object as a line of JSON."""
    click.echo(json_line(json.dumps(fields, ensure_ascii=False)))


def show_public_json(fields: dict[str, Any]) -> None:
    """Print the public view of events, states and plain values as a line of JSON."""
    from mongo_session_service.codec.public_view import json_text

    click.echo(json_line(json_text(fields)))


def show_result(fields: dict[str, Any], remark: str) -> None:
    """Print what a command has done: with ``--json`` as JSON, else as a remark."""
    if has_flag("json"):
        show_json(fields)
    else:
        print_remark(remark)


def print_remark(text: str) -> None:
    """Print a remark on stderr; ``-q`` silences it."""
    if not has_flag("quiet"):
        warn(text)


def warn(text: str) -> None:
    """Print a problem on stderr, above a line of progress."""
    # Named, because click would find the stream behind the bar that rich draws.
    click.echo(without_passwords(text), file=sys.stderr, err=True)


def keep_option(context: click.Context, name: str, value: Any) -> None:
    """Keep the value of an option for the command that runs."""
    context.meta[f"{__name__}.{name}"] = value


def kept_option(context: click.Context, name: str) -> Any:
    """Return the value of an option that was kept; None if it was not given."""
    return context.meta.get(f"{__name__}.{name}")


def has_flag(flag: str) -> bool:
    """Tell whether the command that runs was given a flag, such as ``quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(kept_option(context, flag))


@contextmanager
def progress(
    label: str,
    total: int | None,
    share_read: Callable[[], float | None] = lambda: None,
    *,
    what: str = "event",
    is_shown: bool = True,
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; call the result with the number of events done.

    Without a total, the share of a file that was read tells the time left. Nothing is
    shown where stderr is not a terminal, nor with ``-q`` or ``--json``.
    """
    is_silent = has_flag("quiet") or has_flag("json")
    if is_silent or not is_shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.theme import Theme

    # Those of rich are hard to read on a light background.
    plain = dict.fromkeys(["percentage", "remaining", "elapsed"], "default")
    theme = Theme({f"progress.{name}": style for name, style in plain.items()})
    console = Console(file=sys.stderr, theme=theme)
    bar = Progress(
        "{task.description}",
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        *([TextColumn("{task.fields[count]}")] if console.width >= _WIDE else []),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(
            elapsed_when_finished=True, table_column=Column(no_wrap=True)
        ),
        console=console,
        redirect_stdout=False,
    )
    task = bar.add_task(label, total=total, count="", rate="")
    started = time.monotonic()

    def advance(done: int) -> None:
        share = share_read() if total is None else None
        bar.update(
            task,
            total=total if share is None else 1.0,
            completed=done if share is None else share,
            count=counted(done, what),
            rate=f"{done / max(time.monotonic() - started, 1e-6):,.0f}/s",
        )

    with bar:
        yield advance
        bar.update(task, total=1.0, completed=1.0)
