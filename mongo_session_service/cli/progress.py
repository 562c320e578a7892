"""Progress: one line on a terminal that says how far a command is, and how fast."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mongo_session_service.cli.terminal import duration, is_told
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_PER_SECOND: Final = 5
"""How often the line is drawn."""
_SHORTEST: Final = 5
"""Columns of a bar: with fewer there is none."""
_ENDINGS: Final = {True: "done in", False: "stopped after"}


@dataclass(slots=True)
class ProgressLine:
    """What is done, its rate and the time left, in as many columns as there are."""

    label: str
    total: int | None
    share_read: Callable[[], float | None] = lambda: None
    """The share of a file that was read: without a total it tells the time left."""
    what: str = "event"
    done: int = 0
    is_complete: bool | None = None
    """Whether all was done when it ended; None until then."""
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def share(self) -> float | None:
        """The share of all that is done; None if that is unknown."""
        if self.is_complete:
            return 1.0
        if self.total is None:
            return self.share_read()
        return min(1.0, self.done / max(self.total, 1))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """The label, a bar, and what is most wanted of the rest."""
        from rich.progress_bar import ProgressBar
        from rich.segment import Segment

        share, width = self.share, options.max_width
        percent = "" if share is None else f" {share:4.0%}"
        details = self._details(width - len(self.label) - len(percent))
        tail = f"{percent}{details}"
        room = width - len(self.label) - len(tail) - 1
        yield Segment(self.label[:width])
        if room >= _SHORTEST:
            length = min(room, max(_SHORTEST, width // 4))
            is_unknown = share is None and self.is_complete is None
            bar = ProgressBar(
                total=1.0,
                completed=share or 0.0,
                width=length,
                pulse=is_unknown,
                style="bright_black",
                complete_style="cyan",
                finished_style="green",
            )
            drawn = list(console.render(bar, options))
            yield Segment(" ")
            yield from drawn
            # Without colours, what is not done yet is not drawn.
            yield Segment(" " * (length - Segment.get_line_length(drawn)))
        yield Segment(tail[: max(0, width - len(self.label))])

    def _details(self, room: int) -> str:
        """As much as there is room for; first goes the count, then the rate."""
        pieces = self._pieces()
        for first in range(len(pieces)):
            if len(shown := "  " + ", ".join(pieces[first:])) <= room:
                return shown
        return ""

    def _pieces(self) -> list[str]:
        elapsed = self.clock() - self.started
        if self.total is None or self.is_complete:
            pieces = [counted(self.done, self.what)]
        else:
            pieces = [f"{self.done:,}/{self.total:,} {self.what}s"]
        if self.done:
            pieces.append(f"{self.done / max(elapsed, 1e-6):,.0f}/s")
        if self.is_complete is not None:
            return [*pieces, f"{_ENDINGS[self.is_complete]} {duration(elapsed)}"]
        if share := self.share:
            pieces.append(f"{duration(elapsed * (1 - share) / share)} left")
        return pieces


@contextmanager
def progress(
    label: str,
    total: int | None,
    share_read: Callable[[], float | None] = lambda: None,
    *,
    what: str = "event",
    is_shown: bool = True,
) -> Iterator[Callable[[int], None]]:
    """A line with rate and remaining time; call it with the number of events done.

    Without a total the share of a file that was read tells the remaining time; without
    either, what is done is counted. Only a terminal is shown it, and not with ``-q``.

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
    from rich.live import Live

    line = ProgressLine(label, total, share_read, what)

    def advance(done: int) -> None:
        line.done = done

    console = Console(file=sys.stderr)
    with Live(
        line, console=console, refresh_per_second=_PER_SECOND, redirect_stdout=False
    ):
        try:
            yield advance
        except BaseException:
            line.is_complete = False
            raise
        line.is_complete = True
