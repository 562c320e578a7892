"""Which sessions have expired, for whoever watches more than one of them.

No change stream tells that a time has come. So the soonest one that is known is waited
for, and at that time, or when a change says that there may be an earlier one, a read of
the index on ``expire_time`` tells which sessions are over, and when the next will be.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Final

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service import history
from mongo_session_service.database import Connection
from mongo_session_service.records import SessionKey

from .happenings import Appended, Created, Deleted, Document
from .items import Expires, Item, session_key

_MAJORITY: Final = ReadConcern("majority")
_FIELDS: Final = {"expire_time": 1}

_REMEMBERED: Final = 100_000
"""Endings that were told, until the session is removed: that is not told again."""
_PATIENCE: Final = 2.0
"""Seconds for a read, while which nothing else is told."""
_AGAIN: Final = 1.0
"""Seconds after one that has failed."""
_TICK: Final = 0.001
"""Seconds: times of one millisecond may have come in any order."""


class Endings:
    """The sessions that expire while somebody watches; of one reader of the feed."""

    def __init__(self) -> None:
        self._since = self._next = math.inf
        self._found: dict[SessionKey, tuple[Timestamp, Deleted]] = {}
        self._told: dict[SessionKey, bool] = {}

    def note(self, item: Item) -> bool:
        """Take notice of a change that is to be told; True if it was, as an ending."""
        if isinstance(item, Deleted):
            self._found.pop(item.key, None)
            return self._told.pop(item.key, False)
        if isinstance(item, Appended | Created) and self._told.pop(item.key, False):
            self._next = 0.0  # by the clock of another it goes on, or it is a new one
        if isinstance(item, Created):
            self._expect(item.document.get("expire_time"))
        elif isinstance(item, Expires):
            self._next = 0.0
        return False

    def _expect(self, expire_time: object) -> None:
        if isinstance(expire_time, int | float):
            self._next = min(self._next, expire_time)
            self._since = min(self._since, expire_time - _TICK)

    async def look(self, connection: Connection, *, is_wanted: bool) -> None:
        """Find what has expired since the last look, if it is time to.

        Args:
            connection: Where to.
            is_wanted: Whether anybody is to be told; what ended before is not.
        """
        now = platform_time.get_time()
        if not is_wanted or self._since == math.inf:
            self._since = self._next = now
        if not is_wanted or now < self._next:
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                over, later = await self._read(connection, now)
                latest = await history.now(connection)
        except (PyMongoError, TimeoutError):
            self._next = now + _AGAIN
            return
        self._since, self._next = now, later
        # After all that was committed before, the start of a subscription too.
        at = Timestamp(latest.time, latest.inc + 1)
        for each in over:
            key = session_key(each["_id"], SessionKey._fields)
            if key is not None and key not in self._told:
                self._found.setdefault(key, (at, Deleted(key, each["expire_time"])))

    def told_before(
        self, time: Timestamp | None
    ) -> Iterator[tuple[Timestamp, Deleted]]:
        """What was found and is to be told now, with when it was read.

        Args:
            time: Of the change that is to be told next; None if all changes before the
                latest look were told.
        """
        while self._found:
            key, (at, ending) = next(iter(self._found.items()))
            if time is not None and time < at:
                return
            del self._found[key]
            self._told[key] = True
            if len(self._told) > _REMEMBERED:
                del self._told[next(iter(self._told))]
            yield at, ending

    async def _read(
        self, connection: Connection, now: float
    ) -> tuple[list[Document], float]:
        """What has expired since the last look, and when the next will."""
        sessions = connection.sessions.with_options(read_concern=_MAJORITY)
        past = ending_between(self._since, now)
        over = await sessions.find(past, _FIELDS).sort("expire_time", 1).to_list(None)
        future = ending_between(now, math.inf)
        following = sessions.find(future, _FIELDS).sort("expire_time", 1).limit(1)
        times = [each["expire_time"] for each in await following.to_list(1)]
        return over, min(times, default=math.inf)


def ending_between(since: float, until: float) -> Document:
    """The sessions that expire after a time, and not after another."""
    return {"expire_time": {"$gt": since, "$lte": until}, "revision": {"$gte": 0}}
