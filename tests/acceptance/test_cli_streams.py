"""What a command says when its output cannot be written, or its arguments read."""

from __future__ import annotations

import subprocess

import pytest
from support.cli_runner import ENVIRONMENT, PATIENCE, PROGRAM

FULL = "Error: The output cannot be written: No space left on device.\n"


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


def test_output_that_cannot_be_written_is_an_error() -> None:
    """One line names the reason, and the exit code is 1."""
    done = shell("grants >/dev/full")

    assert (done.returncode, done.stdout, done.stderr) == (1, "", FULL)


@pytest.mark.parametrize("command", ["--help", "grants", "grants --help"])
def test_a_reader_that_has_gone_is_no_error(command: str) -> None:
    """After "| true" nothing is said, and the exit code is 1."""
    done = shell(f"{command} | true; exit ${{PIPESTATUS[0]}}")

    assert (done.returncode in {0, 1}, done.stdout, done.stderr) == (True, "", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("grants --database $'\\xff'", "it holds a lone surrogate."),
        ("grants --prefix $'\\xff'", "it holds a lone surrogate."),
        ("$'\\xff'", "No such command '\\udcff'."),
        ("export --since 1e400", "'1e400' is not a time such as 2026-11-21T04:00:00Z."),
        ("export --since nan", "'nan' is not a time such as 2026-11-21T04:00:00Z."),
        ("export --since -1e18", "'-1e18' is not a time such as 2026-11-21T04:00:00Z."),
    ],
)
def test_senseless_arguments_are_refused_in_one_line(arguments: str, says: str) -> None:
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
