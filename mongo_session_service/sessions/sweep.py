"""Sweep: removes sessions soon after they have expired, by the server's clock.

Each process that uses a database looks for what has expired when the earliest expiry
that it knows of has come, and once a minute in any case, since other processes create
sessions as well. That removal is what subscribers receive as ``deleted``. Several
processes may sweep at once: each session is removed in one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
import weakref
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from mongo_session_service.errors import MongoSessionServiceError, NotAuthorizedError
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import Document
from mongo_session_service.sessions import deletion, queries
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query, TooLateError
from mongo_session_service.storage.tasks import keep_running

logger = logging.getLogger(__name__)

_JITTER: Final = 0.4
"""Seconds, at most, by which processes that know of the same expiry differ."""
_AFTER_FAILURE: Final = 5.0
"""Seconds after a sweep that failed."""


@dataclass(slots=True)
class SweepSchedule:
    """When a service next sweeps expired sessions, in any of its event loops."""

    interval: float
    rest: float
    due: float = math.inf
    """On the monotonic clock; infinite until the service is used, and without sweep."""
    rests_until: float = 0.0

    @classmethod
    def of_limits(cls, limits: Limits) -> SweepSchedule:
        """Make a schedule whose first sweep is at a random time within an interval."""
        schedule = cls(limits.sweep_interval, limits.sweep_rest)
        # Not early, since a process that ends soon, as a command does, need not sweep.
        schedule.expect(schedule.interval * random.uniform(0.5, 1))  # noqa: S311
        return schedule

    def expect(self, seconds: float) -> None:
        if math.isfinite(self.interval):
            latest = time.monotonic() + min(max(seconds, 0.0), self.interval)
            self.due = min(self.due, latest)

    @property
    def delay(self) -> float:
        """Seconds until the next sweep."""
        return max(self.due, self.rests_until) - time.monotonic()

    def note_sweep(self) -> None:
        self.due = time.monotonic() + self.interval
        self.rests_until = time.monotonic() + self.rest


class Sweep:
    """Removes expired sessions, in the event loop of the client.

    It waits by timers of the loop, which end with it, and do not keep a service alive
    that nobody refers to any more. Guests of that loop call it from theirs.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, storage: Storage, schedule: SweepSchedule) -> None:
        self._storage = storage
        self._schedule = schedule
        self._is_started = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sweep in an event loop, that of the client, from now on."""
        # In mongomock nobody follows changes, and prune removes what has expired.
        if not (self._is_started or self._storage.is_mock):
            self._is_started, self._loop = True, loop
            self._loop.call_soon_threadsafe(self._set_timer)

    def expect(self, expire_time: object) -> None:
        if isinstance(expire_time, int | float):
            self.sweep_within(expire_time - self._storage.clock.now())

    def sweep_within(self, seconds: float) -> None:
        before = self._schedule.due
        self._schedule.expect(seconds)
        if self._is_started and self._schedule.due < before:
            self._loop.call_soon_threadsafe(self._set_timer)

    async def stop(self) -> None:
        self._is_started = False
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _set_timer(self) -> None:
        delay = min(max(self._schedule.delay, 0.0), self._schedule.interval)
        if self._timer is not None:
            self._timer.cancel()
        if self._is_started and math.isfinite(delay):
            jitter = random.uniform(0.05, _JITTER)  # noqa: S311  no secret
            self._timer = self._loop.call_later(
                delay + jitter,
                _on_timer,
                weakref.ref(self),
                context=Context(),
            )

    def _sweep_if_due(self) -> None:
        is_running = self._task is not None and not self._task.done()
        if self._schedule.delay <= 0 and not is_running:
            self._schedule.note_sweep()
            self._task = keep_running("The sweep of expired sessions", self._sweep)
        self._set_timer()

    async def _sweep(self) -> None:
        wait = _AFTER_FAILURE
        try:
            await self._storage.ask_time()  # the clocks may have drifted apart
            wait = await remove_all_expired(self._storage)
        except NotAuthorizedError:
            wait = math.inf  # others remove what this user may only read
        except MongoSessionServiceError as error:
            logger.debug("A sweep failed with %s.", type(error).__name__)
        finally:
            self.sweep_within(wait)


def _on_timer(sweep: weakref.ref[Sweep]) -> None:
    if (alive := sweep()) is not None:
        alive._sweep_if_due()  # noqa: SLF001  its own timer


async def remove_all_expired(storage: Storage) -> float:
    """Remove what has expired; return the seconds until more expires, if known."""
    wait = {"$subtract": [{"$toDouble": "$expire_time"}, storage.server_time]}
    earliest = Query(
        "sessions",
        queries.expiring_filter(),
        {"expire_time": 1},
        deletion.SESSIONS_AT_ONCE,
        then=({"$project": {"wait": wait}},),
    )
    while True:
        (found,) = await storage.read(earliest)
        due = [each["_id"] for each in found if each["wait"] <= 0]
        if not due:
            return min((each["wait"] for each in found), default=math.inf)
        if await _remove_due(storage, due) == 0:
            return 0.0  # they are locked, for example by an append that renews them


async def _remove_due(storage: Storage, ids: list[Document]) -> int:
    """Remove some sessions if they have expired, and are not locked.

    Returns how many sessions and events were removed.
    """
    wanted = {**queries.expired_on_server_filter(storage), "_id": {"$in": ids}}
    # A session may be locked by an append that renews it.
    time_limit = storage.limits.sweep_patience
    steps = deletion.removals(storage, wanted, time_limit=time_limit)
    try:
        return sum([each.sessions + each.events async for each in steps])
    except TooLateError:
        if len(ids) == 1:
            return 0
        # The others need not wait for the one that is locked.
        return sum([await _remove_due(storage, [each]) for each in ids])
