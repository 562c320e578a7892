"""Commands in processes forked from one that has imported ADK: soon at work."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from support import leak_detector
from support.forks import FORKS

CTRL_C = "\x03"
"""The key, as an answer: no Enter follows."""


def _run(arguments: tuple[str, ...]) -> None:
    from mongo_session_service.cli.app import main  # noqa: PLC0415  not in the parent

    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    main(arguments)


def _run_on(
    terminal: str,
    output: Path | None,
    arguments: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    """Run a command as the one that a terminal belongs to."""
    from mongo_session_service.cli.app import main  # noqa: PLC0415  not in the parent

    os.setsid()
    ours = os.open(terminal, os.O_RDWR)
    theirs = ours if output is None else os.open(output, os.O_WRONLY | os.O_CREAT)
    for stream, target in enumerate((ours, theirs, ours)):
        os.dup2(target, stream)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
    os.environ.pop("COLUMNS", None)
    os.environ.update(environment)
    main(arguments, prog_name="mongo-session-service")


def on_a_terminal(
    *arguments: str,
    answer: str = "",
    columns: int = 200,
    output: Path | None = None,
    **environment: str,
) -> tuple[int | None, str]:
    """Run a command on a terminal, answering when it asks.

    Args:
        arguments: The command.
        answer: Yes or no, or Ctrl-C.
        columns: The terminal's width.
        output: A file to which its output is redirected; errors are not.
        environment: Variables beside those of the tests.

    Returns:
        Its exit code, and all that the terminal was sent.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    variables = {"TERM": "xterm", "NO_COLOR": "", **environment}
    process = FORKS.Process(
        target=_run_on, args=(os.ttyname(theirs), output, arguments, variables)
    )
    process.start()
    shown = b""
    try:
        while ours in (ready := select.select([ours, process.sentinel], [], [], 60)[0]):
            shown += os.read(ours, 4096)
            if shown.endswith(b"[y/N]: "):
                _wait_until_asleep(process.pid)
                os.write(ours, answer.encode() + b"\n" * (answer != CTRL_C))
                answer = ""
        assert ready, shown
        process.join()
    finally:
        process.kill()
        process.join()
        os.close(ours)
        os.close(theirs)
    text = shown.decode()
    leak_detector.current.printed(text)
    return process.exitcode, text


def _wait_until_asleep(pid: int | None) -> None:
    """Wait until a process that has asked reads the answer.

    Python notices a signal that comes in between only once the read returns, and no
    person presses a key so soon.
    """
    status = Path(f"/proc/{pid}/status")
    while "State:\tS" not in status.read_text():
        time.sleep(0.001)


def signalled(
    *arguments: str,
    admin: MongoClient[Any],
    database: str,
    changes: int,
    sent: signal.Signals,
) -> int | None:
    """Run a command, and send a signal once so much has changed; its exit code."""
    process = FORKS.Process(target=_run, args=(arguments,))
    with admin[database].watch() as stream:
        process.start()
        seen = 0
        while seen < changes and process.is_alive():
            seen += stream.try_next() is not None
        if process.pid is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(process.pid, sent)
        process.join()
    # As MongoDB does with the transactions of the dead within a minute.
    admin.admin.command("killAllSessions", [])
    return process.exitcode
