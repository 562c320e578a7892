"""When a watched session expires: at its time, which no change stream tells of."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from google.adk.platform import time as platform_time

from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.model.records import SessionKey

from .inbox import Inbox

_SHORTEST: Final = 0.001
"""Seconds: the event loop's clock and the calendar's may differ by less."""
_MOMENT: Final = 0.25  # seconds


class Alarm:
    """Has one reader look when its session's time may have come."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self.has_rung = False
        """Whether its reader has yet to look."""

    def set(self, expire_time: float | None, inbox: Inbox) -> bool:
        """Remind the inbox then, and at no other time; True if it has come already."""
        self.cancel()
        if expire_time is None:
            return False
        delay = expire_time - platform_time.get_time()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(delay, _SHORTEST), inbox.remind)
        return delay <= 0

    def postpone(self, inbox: Inbox) -> None:
        """Remind the inbox in a moment, and at no other time."""
        self.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_MOMENT, inbox.remind)

    def cancel(self) -> None:
        """Remind nobody."""
        self.has_rung = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def load_end(
    connection: Connection, key: SessionKey, create_time: float
) -> tuple[float | None, int]:
    """When a session expires, and at which revision it is.

    None and -1 if it is not there any more, None if it never expires.

    Raises:
        StorageUnavailableError: MongoDB has been away for a minute.
    """
    where = {"_id": key.id, "create_time": create_time}
    fields = {"expire_time": 1, "revision": 1}
    found: dict[str, Any] | None = await persistently(
        lambda: connection.sessions.find_one(where, fields)
    )
    found = found or {}
    return found.get("expire_time"), found.get("revision", -1)
