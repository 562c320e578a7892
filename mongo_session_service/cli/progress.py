"""Progress bar on a terminal: how much is done, how fast, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from mongo_session_service.cli.terminal import is_told
from mongo_session_service.model.wording import counted

_WIDE: Final = 60
"""Columns of a terminal that also has room for the count."""


@contextmanager
def progress(
    label: str,
    total: int | None,
    share_read: Callable[[], float | None] = lambda: None,
    *,
    what: str = "event",
    is_shown: bool = True,
) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; call the result with the number of events done.

    Without a total, the share of a file that was read tells the time left. Nothing is
    shown where stderr is not a terminal, nor with ``-q``.

    Args:
        label: What happens, such as "Importing".
        total: How many events there are, if that is known.
        share_read: The share of the source that was read, if that is known.
        what: What is counted, in the singular.
        is_shown: False where the output may be on the same terminal, such as JSON.
    """
    if not is_shown or not sys.stderr.isatty() or is_told("quiet"):
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

    console = Console(file=sys.stderr)
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
