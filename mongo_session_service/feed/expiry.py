"""Which sessions have expired, for whoever watches more than one of them.

No change stream tells that a time has come. So the soonest one that is known is waited
for, and at that time, or when a change says that there may be an earlier one, a read of
the index on ``expire_time`` tells which sessions are over, and when the next will be.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from typing import Any, Final

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service.changes.decoder import (
    Appended,
    Created,
    Deleted,
    Expires,
    Item,
    session_key,
)
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.feed.inbox import Inbox
from mongo_session_service.model.records import Document, SessionKey

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


logger = logging.getLogger(__name__)

_MAJORITY: Final = ReadConcern("majority")
_NUMBER: Final = ["double", "int", "long"]
"""What this package stores times as; other tools may have other types."""
_FIELDS: Final = {"expire_time": 1}

_REMEMBERED: Final = 100_000
"""Endings that were told, until the session is removed: that is not told again."""
_MOST: Final = 10_000
"""Endings that one look finds; the next finds more."""
_PATIENCE: Final = 2.0
"""Seconds for a look, while which nothing else is told."""
_REST: Final = 0.25
"""Seconds after one, however soon the next session ends."""
_LONGEST: Final = 60.0
"""Seconds to the next, though nothing ends before: clocks may be set back."""
_AGAIN: Final = 4.0
"""Seconds after one that has failed."""
_TICK: Final = 0.001
"""Seconds: times of one millisecond may have come in any order."""


class Endings:
    """The sessions that expire while somebody watches; of one reader of the feed."""

    def __init__(self) -> None:
        self._since = self._next = math.inf
        self._rests_until = 0.0  # on the monotonic clock
        self._changed: set[SessionKey] = set()
        self._found: dict[SessionKey, tuple[Timestamp, Deleted]] = {}
        self._told: dict[SessionKey, bool] = {}

    def begin(self) -> None:
        """Take notice of what expires from now on, for somebody is to be told."""
        now = platform_time.get_time()
        if now < self._since:
            self._since = self._next = now

    def note(self, item: Item) -> bool:
        """Take notice of a change that is to be told; True if it was, as an ending."""
        if isinstance(item, Deleted):
            self._found.pop(item.key, None)
            return self._told.pop(item.key, False)
        if isinstance(item, Appended | Created | Expires):
            # It goes on, maybe by the clock of another, or is a new one.
            was_found = self._found.pop(item.key, None) is not None
            was_told = self._told.pop(item.key, False)
            if was_found or isinstance(item, Expires):
                self._changed.add(item.key)
            if was_told or self._changed:
                self._next = 0.0
        if isinstance(item, Created):
            self._expect(item.document.get("expire_time"))
        return False

    def _expect(self, expire_time: object) -> None:
        if isinstance(expire_time, int | float):
            self._next = min(self._next, expire_time)
            self._since = min(self._since, expire_time - _TICK)

    async def look(self, connection: Connection, *, is_wanted: bool) -> None:
        """Find what has expired since the last look, if it is time to.

        Args:
            connection: Where to.
            is_wanted: Whether anybody is to be told; if not, it is begun anew.
        """
        if not is_wanted:
            self._since = self._next = math.inf
            self._changed.clear()
            return
        self.begin()  # anew, if the clock was set back
        now = platform_time.get_time()
        if now < self._next or time.monotonic() < self._rests_until:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._look(connection, now)
        except (PyMongoError, TimeoutError):
            self._rests_until = time.monotonic() + _AGAIN

    async def _look(self, connection: Connection, now: float) -> None:
        sessions = connection.sessions.with_options(read_concern=_MAJORITY)
        changed = {"_id": {"$in": [key.id for key in self._changed]}}
        if self._changed:
            for each in await sessions.find(changed, _FIELDS).to_list(None):
                self._expect(each.get("expire_time"))
        past = sessions.find(ending_between(self._since, now), _FIELDS)
        over = await past.sort("expire_time", 1).limit(_MOST).to_list(None)
        until = _whole(over) if len(over) == _MOST else now
        future = sessions.find(ending_between(until, math.inf), _FIELDS)
        following = await future.sort("expire_time", 1).limit(1).to_list(None)
        latest = await snapshots.now(connection)
        self._changed.clear()
        self._since = until
        self._next = min([now + _LONGEST, *(each["expire_time"] for each in following)])
        self._rests_until = time.monotonic() + _REST
        # After all that was committed before, the start of a subscription too.
        at = Timestamp(latest.time, latest.inc + 1)
        for each in over:
            if each["expire_time"] > until:
                break
            key = session_key(each["_id"], SessionKey._fields)
            if key is not None and key not in self._told:
                self._found.setdefault(key, (at, Deleted(key, each["expire_time"])))

    def told_before(
        self, before: Timestamp | None
    ) -> Iterator[tuple[Timestamp, Deleted]]:
        """What was found and is to be told now, with when it was read.

        Args:
            before: Of the change to be told next; None if all changes before the
                latest look were told.
        """
        while self._found:
            key, (at, ending) = next(iter(self._found.items()))
            if before is not None and before < at:
                return
            del self._found[key]
            self._told[key] = True
            if len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
            yield at, ending


def _whole(over: list[Document]) -> float:
    """The time until which a list that was cut off has all that has expired."""
    *_, last = times = [each["expire_time"] for each in over]
    before = [each for each in times if each < last]
    if before:
        return float(before[-1])
    logger.warning(
        "More than %d sessions expire at the same moment. Who watches is told of some"
        " of them only when they are removed.",
        _MOST,
    )
    return float(last)


def ending_between(since: float, until: float) -> Document:
    """The sessions that expire after a time, and not after another."""
    times = {"$gt": since, "$lte": until, "$type": _NUMBER}
    return {"expire_time": times, "revision": {"$gte": 0}}
