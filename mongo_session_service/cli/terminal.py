"""Output on a terminal: text that cannot harm it, tables, remarks and progress."""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mongo_session_service.errors import without_passwords
from mongo_session_service.model.wording import counted, json_line

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType
    from rich.table import Table
    from rich.text import Text

Model = TypeVar("Model")

# Beside control characters: what reorders or breaks lines, and halves of characters.
_UNSAFE: Final = {"Cc", "Cs", "Zl", "Zp", "Cf"}
_JOINERS: Final = "\u200c\u200d"  # parts of words and of emoji
_NUMBER: Final = re.compile(r"[\d,.]+( [kMGT]?B)?")
_INDENT: Final = " " * 4
_WIDE: Final = 60
"""Columns of a terminal whose progress bar also has room for the count."""

# Readable on a light and on a dark background: a terminal's own yellow, cyan, green and
# dim vanish on white. Without colours nothing is lost: each repeats what a word means.
GOOD: Final = "color(28)"  # green
WARNING: Final = "color(166)"  # orange
BAD: Final = "color(196)"  # red
NOTE: Final = "color(32)"  # blue
FAINT: Final = "color(244)"  # grey

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
    from rich.text import Text

    return Text(printable(str(value)), style, overflow="fold")


def line(*parts: Text) -> Text:
    """Join those that are not empty."""
    from rich.text import Text

    return Text("  ").join(part for part in parts if part)


def table(rows: Sequence[dict[str, Text]]) -> Table:
    """Make a table of named cells, numbers flush right; empty columns are left out."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    for name in names:
        is_number = all(_NUMBER.fullmatch(row[name].plain) for row in rows)
        justify: JustifyMethod = "right" if is_number else "left"
        shown.add_column(name, overflow="fold", justify=justify)
    for row in rows:
        shown.add_row(*(row[name] for name in names))
    return shown


def _console(**options: Any) -> Console:
    """Open a console that has 256 colours, if any: of eight, grey would be white."""
    from rich.console import Console

    console = Console(**options)
    is_poor = console.color_system == "standard"
    return Console(color_system="256", **options) if is_poor else console


def _stdout() -> Console:
    """Open standard output; where it is not a terminal, lines have no limit."""
    console = _console()
    if not console.is_terminal:
        console.width = sys.maxsize
    return console


def show(*shown: RenderableType) -> None:
    """Print texts or tables; a terminal's width breaks lines, and nothing else does."""
    console = _stdout()
    for each in shown:
        if console.is_terminal:
            console.print(each)
            continue
        with console.capture() as captured:
            console.print(each)
        # Tables fill up their last column.
        click.echo("\n".join(map(str.rstrip, captured.get().split("\n"))), nl=False)


def show_indented(text: str, style: str = "") -> None:
    """Print a text below a heading, with line ends and an indentation of its own."""
    from rich.text import Text

    console = _stdout()
    for line in text.splitlines():
        # All that is left of white space are blanks.
        safe = re.sub(r"\S+", lambda run: printable(run[0]), line.expandtabs(4))
        for piece in Text(safe, style).wrap(console, console.width - len(_INDENT)):
            console.print(Text(_INDENT).append_text(piece), no_wrap=True)


def json_fields(model: Any) -> dict[str, Any]:
    """Return a result's fields, as JSON has them."""
    from mongo_session_service.model.results import SessionSummary, summary_fields

    if isinstance(model, SessionSummary):
        return summary_fields(model)
    if isinstance(model, dict):
        return model
    is_named = hasattr(model, "_asdict")
    return model._asdict() if is_named else asdict(model)


def show_json(model: Any) -> None:
    fields = json_fields(model)
    text = json.dumps(fields, ensure_ascii=False, default=datetime.isoformat)
    click.echo(json_line(text))


def show_public_json(model: Any) -> None:
    """Print the public view of events, states and plain values as a line of JSON."""
    from mongo_session_service.codec.public_view import json_text

    click.echo(json_line(json_text(json_fields(model))))


def show_result(model: Any, remark: str) -> None:
    """Print what a command has done: with ``--json`` as JSON, else as a remark."""
    if shared_options().json:
        show_json(model)
    else:
        print_remark(remark)


def show_rows(
    found: Sequence[Model],
    row: Callable[[Model], dict[str, Text]],
    heading: str,
    nothing: str,
) -> None:
    """Print results: with ``--json`` a line of JSON each, else a row of a table each.

    The remarks are what stands above them, and what is printed if there are none.
    """
    if shared_options().json:
        for each in found:
            show_json(each)
    elif found:
        print_remark(heading)
        show(table([row(each) for each in found]))
    else:
        print_remark(nothing)


def print_remark(text: str) -> None:
    """Print a remark on stderr; ``-q`` silences it."""
    if text and not shared_options().quiet:
        warn(text)


def warn(text: str) -> None:
    """Print a problem on stderr, above a line of progress."""
    # Named, because click would find the stream behind the bar that rich draws.
    click.echo(without_passwords(text), file=sys.stderr, err=True)


@dataclass(slots=True)
class SharedOptions:
    """The options that all commands have in common."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    yes: bool = False
    dry_run: bool = False
    uri: str | None = None
    database: str | None = None
    prefix: str = ""


def shared_options() -> SharedOptions:
    context = click.get_current_context(silent=True)
    return (context and context.find_object(SharedOptions)) or SharedOptions()


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

    Without a total, the share of a file that was read gives the time left. Nothing is
    shown where stderr is not a terminal, nor with ``-q`` or ``--json``.
    """
    is_silent = shared_options().quiet or shared_options().json
    if is_silent or not is_shown or not sys.stderr.isatty():
        yield lambda _: None
        return
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
    console = _console(file=sys.stderr, theme=theme)
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
