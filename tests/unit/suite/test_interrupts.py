"""The suite can interrupt the processes that it starts."""

from __future__ import annotations

import subprocess
import sys

from support.fast_core import TESTS

INTERRUPTED = """
import signal, subprocess, sys
from support import interrupts

interrupts.handle()
child = [sys.executable, "-c", "import signal; signal.raise_signal(signal.SIGINT)"]
print(subprocess.run(child, stderr=subprocess.DEVNULL).returncode)
"""


def test_a_suite_started_with_sigint_ignored_can_interrupt() -> None:
    """A shell's background job ignores SIGINT; what the suite starts there does not."""
    ignoring = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", sys.executable]
    done = subprocess.run(
        [*ignoring, "-c", INTERRUPTED],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )

    assert done.stdout == "-2\n"
