"""What a command says when its output cannot be written, or its arguments read."""

from __future__ import annotations

import subprocess

import pytest
from support.cli_runner import ENVIRONMENT, PATIENCE, PROGRAM

FULL = "Error: The output cannot be written: No space left on device.\n"
CLOSED = "Error: The output cannot be written: Bad file descriptor.\n"


def shell(arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a shell, with its redirections."""
    return subprocess.run(
        ["bash", "-c", f"'{PROGRAM}' {arguments}"],  # noqa: S607  any bash
        env=ENVIRONMENT | {"MONGODB_URI": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("grants >/dev/full", FULL),
        ("--help >/dev/full", FULL),
        ("--version >/dev/full", FULL),
        ("grants >&-", CLOSED),
        ("--version >&-", CLOSED),
        ("grants >&- 2>&-", ""),
        ("grants >/dev/full 2>/dev/full", ""),
    ],
)
def test_output_that_cannot_be_written_is_an_error(arguments: str, says: str) -> None:
    """It is one line, if that can be written, and the exit code tells."""
    done = shell(arguments)

    assert (done.returncode, done.stdout, done.stderr) == (1, "", says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("watch 2>/dev/full", ""),
        ("watch 2>&-", ""),
        ("grants --role $'\\xff'", "'\\udcff' is not UTF-8."),
        ("grants --database $'\\xff'", "it holds a lone surrogate."),
        ("grants --prefix $'\\xff'", "it holds a lone surrogate."),
        ("$'\\xff'", "No such command '\\udcff'."),
        ("export --since 1e400", "'1e400' is not a time such as 2026-11-21T04:00:00Z."),
        ("export --since nan", "'nan' is not a time such as 2026-11-21T04:00:00Z."),
        ("export --since -1e18", "'-1e18' is not a time such as 2026-11-21T04:00:00Z."),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(arguments: str, says: str) -> None:
    """What was wrong with them is said last, without a traceback."""
    done = shell(arguments)

    assert done.returncode in {1, 2}
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.rstrip("\n").endswith(says)


def test_a_closed_input_is_an_empty_one() -> None:
    """Where another file would take its place, nothing is read."""
    done = shell("import jsonl - mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=9 <&-")

    assert done.returncode == 1
    assert done.stderr.startswith("Error: MongoDB is unavailable")
