"""A clock that goes when it is told to, for all that a test does itself."""

from __future__ import annotations

import time
from typing import Self

from google.adk.platform import time as platform_time


class Clock:
    """What ADK's platform says the time is."""

    def __init__(self) -> None:
        self.now = 4e9
        """Long after the server's time: nothing has expired there."""

    def __call__(self) -> float:
        """The time it is."""
        return self.now

    @classmethod
    def set(cls) -> Self:
        """A clock for the running task, and those it starts."""
        clock = cls()
        platform_time.set_time_provider(clock)
        return clock

    @classmethod
    def behind(cls, seconds: float) -> Self:
        """A clock that is so many seconds behind the server's."""
        clock = cls.set()
        clock.now = time.time() - seconds
        return clock

    def catch_up(self) -> None:
        """Show the server's time: what has expired has expired there as well."""
        self.now = time.time()
