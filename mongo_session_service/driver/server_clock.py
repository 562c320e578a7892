"""Server clock: the time it is on MongoDB's server, as one service knows it.

Clocks of clients may be wrong, and jump. So what removes a session, refuses to write to
one or takes over a lease asks the server in the same command, by ``$$NOW``. What only
reads, and what sets the time at which a session will expire, asks this clock: the
server's latest answer, and the seconds since, by a clock that nobody sets.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from google.adk.platform import time as platform_time


def _boot_time() -> float:
    """Seconds since the machine was started, or since some other fixed time."""
    if sys.platform == "linux":  # where the usual one stops while the machine sleeps
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class ServerClock:
    """The server's clock; this machine's, until the server has answered."""

    def __init__(self) -> None:
        self._ahead: float | None = None
        """Seconds from boot time to the server's time."""

    @property
    def is_known(self) -> bool:
        """Whether the server has answered."""
        return self._ahead is not None

    def set_by(self, hello: Mapping[str, Any]) -> None:
        """Set it by an answer to ``hello`` that came just now."""
        there = hello["localTime"].replace(tzinfo=UTC).timestamp()
        self._ahead = there - _boot_time()

    def now(self) -> float:
        """Seconds since 1970; later than the server's by no more than it may drift."""
        if self._ahead is None:
            return platform_time.get_time()
        return self._ahead + _boot_time()
