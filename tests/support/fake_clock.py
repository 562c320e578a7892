"""A clock that goes when it is told to, for all that a test does itself."""

from __future__ import annotations

from google.adk.platform import time as platform_time


class Clock:
    """What ADK's platform says the time is."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def __call__(self) -> float:
        """The time it is."""
        return self.now

    @classmethod
    def set(cls) -> Clock:
        """A clock for the running task, and those it starts."""
        clock = cls()
        platform_time.set_time_provider(clock)
        return clock
