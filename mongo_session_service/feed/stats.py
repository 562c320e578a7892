"""How the feed is doing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from mongo_session_service.changes.decoder import committed_at

_SILENT: Final = 2.0
"""Seconds without a reply, beyond which a stream is behind: it has one every second."""


@dataclass(frozen=True, slots=True)
class FeedStats:
    """How the change feed of a service is doing; counts are since it was built."""

    is_running: bool
    """Whether a change stream is open, as it is while there are subscriptions."""
    subscriptions: int
    queue_depth: int
    """Changes that wait for the slowest subscriber."""
    lag_seconds: float
    """How old the latest change was when it was read, or how long MongoDB has been
    silent; 0 when there is nothing to be read. Off by what the clocks differ."""
    oplog_window_seconds: float | None
    """How far MongoDB's oplog reaches back behind the feed, as of a minute ago; None if
    the user may not know, who needs the role ``read`` on ``local``."""
    delivered: int
    """Changes read off the stream."""
    reconnects: int
    """How often the stream broke and was opened again where it was."""
    resyncs: int
    """How often it could not be, so that sessions were read from storage instead."""
    drops: int
    """Subscriptions ended because they were read too slowly."""
    checkpoint_ages: dict[str, float] = field(default_factory=dict)
    """By the name of each consumer that reads through this service, how many seconds
    ago its checkpoint, with its resume token, was saved."""


@dataclass(slots=True)
class Counters:
    """What a feed counts; written by its reader alone."""

    is_running: bool = False
    delivered: int = 0
    reconnects: int = 0
    resyncs: int = 0
    drops: int = 0
    oplog_window: float | None = None
    lag: float = 0.0
    heard_at: float = 0.0

    def opened(self) -> None:
        """Note that there is a stream to hear from."""
        self.is_running = True
        self.heard_at = time.monotonic()

    def heard(self, change: dict[str, Any] | None) -> None:
        """Note that the stream has answered."""
        self.heard_at = time.monotonic()
        if change is None:
            self.lag = 0.0
        else:
            self.delivered += 1
            self.lag = max(0.0, time.time() - committed_at(change))

    @property
    def lag_now(self) -> float:
        """How far the feed is behind, in seconds."""
        silence = time.monotonic() - self.heard_at
        if self.is_running and silence > _SILENT:
            return max(self.lag, silence)
        return self.lag
