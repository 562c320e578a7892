"""Clocks: the server's time, a service's latest write, how long MongoDB has answered.

The first tells what has expired, the last who may take over a lease that has.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from typing import Any, Final

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time

_BREAK: Final = 1.5
"""Seconds without an answer after which MongoDB may have been away meanwhile."""


class LatestWrite:
    """The latest write of a service, on the deployment's clock.

    Right after an election a primary may not know yet that the write is committed, and
    would answer as of before it. The primary that has confirmed the write does know.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time = Timestamp(0, 0)
        self._primary: object = None

    def advance(self, time: Timestamp, primary: object) -> None:
        """Record a write: its time, and the primary that took it."""
        with self._lock:
            if self._time < time:
                self._time, self._primary = time, primary

    def is_included(self, time: Timestamp, primary: object) -> bool:
        """Tell whether a primary's answer as of ``time`` includes the write."""
        with self._lock:
            return time >= self._time or primary == self._primary


def _boot_time() -> float:
    """Seconds since the machine was started, or since some other fixed time."""
    if sys.platform == "linux":  # where the usual one stops while the machine sleeps
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class ServerClock:
    """The time on MongoDB's server; this machine's, until the server has answered.

    Clocks of clients may be wrong, and jump. So what removes a session, refuses to
    write to one or takes over a lease asks the server in the same command, by
    ``$$NOW``. What only reads, and what sets the time at which a session will expire,
    asks this clock.
    """

    def __init__(self) -> None:
        self._ahead: float | None = None
        """Seconds from boot time to the server's time."""

    def set_by(self, hello: Mapping[str, Any]) -> None:
        """Set the clock by a reply to ``hello`` that came just now."""
        there = hello["localTime"].replace(tzinfo=UTC).timestamp()
        self._ahead = there - _boot_time()

    def now(self) -> float:
        """Return the server's time in seconds since 1970, apart from drift."""
        if self._ahead is None:
            return platform_time.get_time()
        return self._ahead + _boot_time()


class Contact:
    """Since when one primary has answered an event loop without a break.

    Who asks nothing for a while does not know whether there was one.
    """

    def __init__(self, known_primary: Callable[[], object]) -> None:
        self._known_primary = known_primary
        self._primary: object = None
        self._answered_at = self._begun_at = -math.inf

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask the primary in the block."""
        asked_at = _boot_time()
        yield
        now, primary = _boot_time(), self._known_primary()
        is_break = now - min(asked_at, self._answered_at) > _BREAK
        if is_break or primary != self._primary:
            self._begun_at = now
        self._answered_at, self._primary = now, primary

    def has_lasted(self, seconds: float) -> bool:
        """Tell whether there was no break for so long before the last answer."""
        return self._answered_at - self._begun_at >= seconds
