"""A clock that goes when it is told to, for all that a test does itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self
from unittest import mock

from google.adk.platform import time as platform_time

from mongo_session_service.storage.database import ServerClock


class Clock:
    """What ADK's platform says the time is, and what services take the server's for.

    What the server itself decides goes by its own clock.
    """

    def __init__(self) -> None:
        self.now = 4e9
        """Long after the server's time: nothing has expired there."""

    def __call__(self) -> float:
        return self.now

    @classmethod
    def set(cls) -> Self:
        """A clock for the running task, and those it starts, until the test ends."""
        clock = cls()
        ServerClock.now = _as_told  # type: ignore[method-assign]
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


_now = ServerClock.now


def _as_told(_: ServerClock) -> float:
    return platform_time.get_time()


def forget_clocks() -> None:
    """Have services go by the server's clock again."""
    ServerClock.now = _now  # type: ignore[method-assign]


@contextmanager
def machine_ahead(seconds: float) -> Iterator[None]:
    """Have this machine's clock be so many seconds ahead, whoever looks at it."""
    wrong = ContextVar("wrong", default=lambda: time.time() + seconds)
    with mock.patch.object(platform_time, "_time_provider_context_var", wrong):
        yield
