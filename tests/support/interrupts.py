"""Signals in the tests' processes and in those that they start."""

from __future__ import annotations

import signal


def handle() -> None:
    """Handle signals as usual, in child processes too.

    A shell starts its background jobs with SIGINT ignored, and nohup ignores SIGHUP.
    Child processes inherit that, and a Python that starts so never raises
    KeyboardInterrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
