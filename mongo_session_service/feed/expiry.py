"""Expiry scanner: finds the sessions that expire while users or apps are watched.

A change stream does not report that a time has come. The scanner waits for the earliest
known expiry, or for a change that may bring an earlier one. Then it reads the index on
``expire_time``: which sessions have expired, and when the next one will. A subscription
to one session knows when that expires, and needs no scanner.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from typing import Final

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import Appended, Created, Deleted, Updated
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import deletion

logger = logging.getLogger(__name__)

_MAJORITY: Final = ReadConcern("majority")
_NUMBER: Final = ["double", "int", "long"]
"""What this package stores times as; other tools may have other types."""
_FIELDS: Final = {"expire_time": 1}

_REMEMBERED: Final = 100_000
"""Expired sessions remembered as delivered, since their removal is not again."""
_MOST: Final = 10_000
"""Expired sessions that one scan reads; the next one reads more."""
_SCAN_LIMIT: Final = 2.0
"""Seconds a scan may take, during which nothing else is delivered."""
_REST: Final = 0.25
"""Seconds between two scans, however soon the next session expires."""
_LONGEST: Final = 60.0
"""Seconds after which a scan is due in any case: clocks may be set back."""
_LOCKED_REST: Final = 1.0
"""Seconds between two scans while an expired session may yet be renewed."""
_AGAIN: Final = 4.0
"""Seconds after a failed scan."""
_TICK: Final = 0.001
"""Seconds: writes of one millisecond may arrive in any order."""


class ExpiryScanner:
    """Finds the sessions that expire while users, apps or all are watched."""

    def __init__(self) -> None:
        self._since = self._next = math.inf
        self._rests_until = 0.0  # on the monotonic clock
        self._changed: set[SessionKey] = set()
        self._found: dict[SessionKey, tuple[Timestamp, Deleted]] = {}
        self._delivered: dict[SessionKey, bool] = {}

    def begin(self) -> None:
        """Find what expires from now on."""
        now = platform_time.get_time()
        if now < self._since:
            self._since = self._next = now

    def note(self, item: decoder.ChangeEvent) -> bool:
        """Update from a change; True if it is a deletion that was delivered already."""
        if isinstance(item, Deleted):
            self._found.pop(item.key, None)
            return self._delivered.pop(item.key, False)
        if isinstance(item, Appended | Created | Updated):
            # It has not expired by its writer's clock, or it is a new session.
            was_found = self._found.pop(item.key, None) is not None
            was_delivered = self._delivered.pop(item.key, False)
            if was_found:
                self._changed.add(item.key)
            if was_delivered or self._changed:
                self._next = 0.0
        if isinstance(item, Created):
            self._expect(item.document.get("expire_time"))
        elif isinstance(item, Updated):
            self._expect(item.details.expire_time)
        return False

    def _expect(self, expire_time: object) -> None:
        if isinstance(expire_time, int | float):
            self._next = min(self._next, expire_time)
            self._since = min(self._since, expire_time - _TICK)

    async def scan(self, connection: Connection, *, is_wanted: bool) -> None:
        """Find what has expired since the last scan, if one is due.

        Args:
            connection: Where to read.
            is_wanted: Whether anyone subscribes to more than one session; if not, the
                scanner is reset.
        """
        if not is_wanted:
            self._since = self._next = math.inf
            self._changed.clear()
            return
        self.begin()  # again, if the clock was set back
        now = platform_time.get_time()
        if now < self._next or time.monotonic() < self._rests_until:
            return
        try:
            async with asyncio.timeout(_SCAN_LIMIT):
                await self._scan(connection, now)
        except (PyMongoError, TimeoutError):
            self._rests_until = time.monotonic() + _AGAIN

    async def _scan(self, connection: Connection, now: float) -> None:
        sessions = connection.sessions.with_options(read_concern=_MAJORITY)
        changed = {"_id": {"$in": [key.id for key in self._changed]}}
        if self._changed:
            for each in await sessions.find(changed, _FIELDS).to_list(None):
                self._expect(each.get("expire_time"))
        past = sessions.find(expiring_between(self._since, now), _FIELDS)
        over = await past.sort("expire_time", 1).limit(_MOST).to_list(None)
        until = _whole(over) if len(over) == _MOST else now
        future = sessions.find(expiring_between(until, math.inf), _FIELDS)
        following = await future.sort("expire_time", 1).limit(1).to_list(None)
        ended = await deletion.ended(connection, [each["_id"] for each in over], now)
        gone = {decoder.session_key(it, SessionKey._fields) for it in ended}
        latest = await snapshots.now(connection)
        self._changed.clear()
        self._since = until
        self._next = min([now + _LONGEST, *(each["expire_time"] for each in following)])
        self._rests_until = time.monotonic() + _REST
        # After everything committed so far, and the start of every subscription.
        at = Timestamp(latest.time, latest.inc + 1)
        for each in over:
            if each["expire_time"] > until:
                break
            key = decoder.session_key(each["_id"], SessionKey._fields)
            if key not in gone:
                self._expect(each["expire_time"])  # an append may be renewing it
                self._rests_until = time.monotonic() + _LOCKED_REST
            elif key is not None and key not in self._delivered:
                self._found.setdefault(key, (at, Deleted(key, each["expire_time"])))

    def due_before(
        self, before: Timestamp | None
    ) -> Iterator[tuple[Timestamp, Deleted]]:
        """The expired sessions to be delivered now, each with the time of its scan.

        Args:
            before: The time of the change to be delivered next; None if all changes
                before the latest scan were delivered.
        """
        while self._found:
            key, (at, deletion) = next(iter(self._found.items()))
            if before is not None and before < at:
                return
            del self._found[key]
            self._delivered[key] = True
            if len(self._delivered) > _REMEMBERED:
                del self._delivered[next(iter(self._delivered))]
            yield at, deletion


def _whole(over: list[Document]) -> float:
    """The time up to which a truncated list of expired sessions is complete."""
    *_, last = times = [each["expire_time"] for each in over]
    before = [each for each in times if each < last]
    if before:
        return float(before[-1])
    logger.warning(
        "More than %d sessions expire at the same moment. Subscribers receive some of"
        " these deletions only when the sessions are removed.",
        _MOST,
    )
    return float(last)


def expiring_between(since: float, until: float) -> Document:
    """The filter of sessions that expire after one time, up to another."""
    times = {"$gt": since, "$lte": until, "$type": _NUMBER}
    return {"expire_time": times, "revision": {"$gte": 0}}
