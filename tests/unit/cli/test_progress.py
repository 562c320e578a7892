"""What a terminal is shown while sessions move: how far, how fast, how long yet."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable

import pytest

from mongo_session_service.cli.terminal import pace, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:  # noqa: D102  as any stream
        return True


@pytest.mark.parametrize(
    ("done", "total", "share", "elapsed", "shown"),
    [
        (3000, 12_000, 0.25, 2.0, "3,000/12,000 events, 1,500 events/s, 6 s left"),
        (3000, None, 0.1, 60.0, "3,000 events, 50 events/s, 9 min left"),
        (3000, None, None, 2.0, "3,000 events, 1,500 events/s"),
        (5, 4, 1.25, 1.0, "5/4 events, 5 events/s, 0 s left"),  # it has grown since
        (0, 4, 0.0, 0.0, "0/4 events, 0 events/s"),
    ],
)
def test_pace_tells_the_rate_and_what_is_left(
    done: int, total: int | None, share: float | None, elapsed: float, shown: str
) -> None:
    """The remaining time is that of what is left, at the rate there was so far."""
    assert pace(done, total, share, elapsed, "event") == shown


@pytest.mark.parametrize(
    ("total", "share", "told"),
    [
        (40, None, [" 50%", "20/40 events, ", " left"]),
        (None, lambda: 0.25, [" 25%", "20 events, ", " left"]),
        (None, lambda: None, ["20 events, ", " events/s"]),
    ],
    ids=["total", "file", "neither"],
)
def test_a_terminal_is_never_left_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
    total: int | None,
    share: Callable[[], float | None] | None,
    told: list[str],
) -> None:
    """With a total, of a file or without either, it sees how far it is, in one line."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")

    with progress("Importing", total, share or (lambda: None)) as advance:
        advance(20)

    shown = re.sub(r"\x1b\[[?\d;]*\w", "", terminal.getvalue())
    last = shown.rstrip("\n").split("\r")[-1]
    assert len(last) <= 80
    assert re.match("Importing +━━━━", last)
    assert [each for each in told if each not in last] == []
    assert ("left" in last) == ("left" in told[-1])


def test_a_file_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no terminal gets no progress."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)

    with progress("Importing", 1) as advance:
        advance(1)

    assert written.getvalue() == ""
