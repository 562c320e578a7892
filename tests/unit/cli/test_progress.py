"""The line of progress: how far, how fast, how long yet, in any width."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mongo_session_service.cli.progress import ProgressLine, progress
from mongo_session_service.cli.terminal import rendered


def shown(line: ProgressLine, width: int) -> str:
    """What a line looks like; there is but one."""
    [text] = rendered(line, width, is_coloured=False)
    return text


def at(seconds: float, line: ProgressLine) -> ProgressLine:
    """A line, so many seconds after it was begun."""
    line.started = 0.0
    line.clock = lambda: seconds
    return line


@pytest.mark.parametrize(
    ("total", "share", "done", "seconds", "end"),
    [
        (12_000, None, 3000, 2.0, "  25%  3,000/12,000 events, 1,500/s, 6 s left"),
        (None, 0.1, 3000, 60.0, "  10%  3,000 events, 50/s, 9 min left"),
        (None, None, 3000, 2.0, "  3,000 events, 1,500/s"),
        (4, None, 5, 1.0, " 100%  5/4 events, 5/s, 0 s left"),  # it has grown since
        (4, None, 0, 0.0, "   0%  0/4 events"),
    ],
    ids=["total", "file", "neither", "grown", "beginning"],
)
def test_it_tells_the_rate_and_what_is_left(
    total: int | None, share: float | None, done: int, seconds: float, end: str
) -> None:
    """The remaining time is that of what is left, at the rate there was so far."""
    line = at(seconds, ProgressLine("Importing", total, lambda: share, done=done))

    text = shown(line, 80)

    assert text.startswith("Importing ")
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("is_complete", "end"),
    [
        (True, " 100%  3 events, 2/s, done in 2 s"),
        (False, "  75%  3/4 events, 2/s, stopped after 2 s"),
    ],
)
def test_its_end_is_told(is_complete: bool, end: str) -> None:  # noqa: FBT001
    """A finished one is full and says so, one that was stopped says where."""
    line = at(2.0, ProgressLine("Importing", 4, done=3, is_complete=is_complete))

    assert shown(line, 80).endswith(end)


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (80, "Importing ━━━━━                 25%  3,000/12,000 events, 1,500/s, 6 s"),
        (50, "Importing ━━━           25%  1,500/s, 6 s left"),
        (30, "Importing ━      25%  6 s left"),
        (15, "Importing  25%"),
        (5, "Impor"),
    ],
)
def test_what_matters_least_goes_first(width: int, text: str) -> None:
    """In a narrow terminal the count is left out, then the rate, then the bar."""
    line = at(2.0, ProgressLine("Importing", 12_000, done=3000))

    assert shown(line, width).startswith(text)


@given(
    st.integers(1, 200),
    st.none() | st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.none() | st.floats(0, 1),
    st.none() | st.booleans(),
    st.floats(0, 10**6),
)
def test_it_is_never_wider_than_the_terminal(
    width: int,
    total: int | None,
    done: int,
    share: float | None,
    is_complete: bool | None,  # noqa: FBT001
    seconds: float,
) -> None:
    """Whatever is told of, and however narrow it is, it takes one line that fits."""
    line = ProgressLine("Verifying", total, lambda: share, "document", done)
    line.is_complete = is_complete

    assert cell_len(shown(at(seconds, line), width)) <= width


def test_a_file_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no terminal gets no progress."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)

    with progress("Importing", 1) as advance:
        advance(1)

    assert written.getvalue() == ""
