"""Causal consistency: what a service has seen, and which secondaries it may read.

A secondary may lag. So a service remembers the latest time on MongoDB's clock that it
has seen, in a write of its own or in a change it has received, and makes the secondary
wait until it has reached that time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, Self, TypeAlias

from bson.timestamp import Timestamp
from pymongo import ReadPreference

from mongo_session_service.driver.calls import RETRY_LIMIT

CATCHING_UP: Final = 5.0
"""Seconds a secondary has for a read, before the primary is asked instead."""
STRICTLY_CATCHING_UP: Final = RETRY_LIMIT
"""Seconds where the primary must not be asked."""

Clock: TypeAlias = Mapping[str, Any]
"""A deployment's clock, as signed by a server."""


class Latest:
    """The latest write of a service, on the deployment's clock.

    Right after an election a primary may not know yet that the write is committed, and
    would answer as of before it. The primary that has confirmed the write does know.

    Servers exchange the time now and then, and clients carry it from one to the next.
    But each event loop has a client of its own, and a server refuses to wait for a time
    that it considers to be in the future.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time = Timestamp(0, 0)
        self._primary: object = None
        self._clock: Clock | None = None

    def advance(self, time: Timestamp, primary: object, clock: Clock | None) -> None:
        """Record a write, the primary it was sent to, and the clock then or later."""
        with self._lock:
            if self._time < time:
                self._time, self._primary, self._clock = time, primary, clock

    def bring_to(self, session: Any) -> None:
        """Make the next server that is asked in a driver's session wait for it."""
        with self._lock:
            time, clock = self._time, self._clock
        if clock is not None:
            session.advance_cluster_time(clock)
        if time.time > 0:
            session.advance_operation_time(time)

    def is_included(self, time: Timestamp, primary: object) -> bool:
        """Whether the write is in what a primary has answered as of ``time``."""
        with self._lock:
            return time >= self._time or primary == self._primary


class Secondaries:
    """A client's wish to read from other members than the primary."""

    @classmethod
    def of(cls, client: Any, latest: Latest) -> Self | None:
        """The client's preference; None if that is the primary."""
        if client.read_preference == ReadPreference.PRIMARY:
            return None
        return cls(client.read_preference, latest)

    def __init__(self, preference: Any, latest: Latest) -> None:
        self._latest = latest
        self.preference = preference
        self.is_strict = preference.mode == ReadPreference.SECONDARY.mode
        """Whether the primary must not be asked instead."""
        limit = STRICTLY_CATCHING_UP if self.is_strict else CATCHING_UP
        self.limit_ms = round(1000 * limit)
        """Milliseconds a member has to catch up and to answer."""

    def heard_of(self, time: Timestamp, session: Any) -> None:
        """Record that the service has read something of this time in a session."""
        self._latest.advance(time, None, session.cluster_time)
