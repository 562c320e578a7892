"""The real programs, run as people run them, or at less expense."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from click.testing import CliRunner

from mongo_session_service.cli.app import main
from support import leak_detector
from support.patience import PATIENCE

PROGRAM = Path(sys.executable).parent / "mongo-session-service"
ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": "error", "COLUMNS": "200"}


def run(
    *arguments: str, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        env=ENVIRONMENT | environment,
    )
    return _noted(done.returncode, done.stdout, done.stderr)


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which need not import ADK again.

    What it prints and how it ends are as from `run`, which each command is tried with,
    too.
    """
    with ThreadPoolExecutor(1) as thread:  # where no event loop is running
        done = thread.submit(
            CliRunner(env={"COLUMNS": "200"} | environment).invoke,
            main,
            arguments,
            catch_exceptions=False,
        ).result(PATIENCE)
    return _noted(done.exit_code, done.stdout_bytes, done.stderr_bytes)


def _noted(code: int, output: bytes, errors: bytes) -> subprocess.CompletedProcess[str]:
    shown = output.decode(), errors.decode()
    for text in shown:
        leak_detector.current.printed(text)
    return subprocess.CompletedProcess((), code, *shown)


def start(*arguments: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command, to be interrupted."""
    return subprocess.Popen(
        [PROGRAM, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
