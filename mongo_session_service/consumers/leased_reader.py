"""Leased reader: reads changes and saves the position under a consumer's lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from mongo_session_service.consumers.checkpoint import (
    Checkpoint,
    Position,
    SavedWork,
    store_checkpoint,
)
from mongo_session_service.consumers.fetcher import Delivery, Fetcher
from mongo_session_service.errors import HistoryLostError, MongoSessionServiceError
from mongo_session_service.storage import oplog
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.lease import LeaseRenewer
from mongo_session_service.storage.retries import PAUSE_AFTER_LOSS
from mongo_session_service.storage.tasks import SharedTask, uninterrupted

logger = logging.getLogger(__name__)

OnHistoryLost = Literal["raise", "replay", "skip"]
Start = Literal["beginning", "now"]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The changes that a consumer reads, and where it starts."""

    name: str
    app_name: str | None
    start: Start
    on_history_lost: OnHistoryLost
    updates: bool = False
    """Whether it gets sessions' new details as well."""


async def start_at_present(connection: Connection, settings: ConsumerSettings) -> None:
    """Start a new name at the current time, whichever process reads it later."""
    oplog.check_watchable(connection)
    log = await log_id(connection)
    now = await connection.retry(oplog.latest_time, connection)
    end = Position.at_end(now)
    name, app_name = settings.name, settings.app_name
    await connection.retry(store_checkpoint, connection, name, app_name, log, end)


class LeasedReader:
    """Reads changes, and saves what is handled, for as long as it holds the lease.

    Once another reader has taken over, its methods raise ``LeaseLostError``, and
    nothing is saved.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: ConsumerSettings,
        renewer: LeaseRenewer,
    ) -> None:
        self.connection = checkpoint.connection
        self.delivered: Position | None = None
        """After what was delivered and not committed; None if all of it was."""
        self.handled: Position | None = None
        """After what run() has handled and not saved; None if all of it was."""
        self.saved_at = time.monotonic()
        """When its checkpoint was last saved, on this machine's monotonic clock."""
        self._checkpoint = checkpoint
        self._settings = settings
        self._renewer = renewer
        self.until: Timestamp | None = None
        """When it has delivered what was committed until then, it ends."""
        self._fetcher: Fetcher | None = None
        self._ready: deque[Delivery] = deque()
        """Deliveries that were read ahead."""
        self._saved: Position
        self._saving_handled = asyncio.Lock()
        self._lost: HistoryLostError | None = None
        """Why the next read replays or skips."""
        self._reading = SharedTask[list[Delivery]]()
        self._over = asyncio.Event()

    @classmethod
    async def acquire_name(
        cls, connection: Connection, settings: ConsumerSettings, renewer: LeaseRenewer
    ) -> Self:
        """Wait for the lease, and resume at the checkpoint."""
        oplog.check_watchable(connection)
        checkpoint = Checkpoint(connection, settings.name, settings.app_name)
        stands_by = False
        try:
            # Another process sends no signal.
            while not await connection.retry(checkpoint.claim):
                if not stands_by:
                    told = "Consumer %r stands by: another reader has its name."
                    logger.info(told, settings.name)
                    stands_by = True
                await asyncio.sleep(connection.limits.consumer_poll_seconds)
            if stands_by:
                logger.info("Consumer %r takes over.", settings.name)
            renewer.add_lease(checkpoint.lease)
            reader = cls(checkpoint, settings, renewer)
            await reader._resume(await log_id(connection))
        except BaseException:
            renewer.discard_lease(checkpoint.lease)
            await uninterrupted(checkpoint.release_lease())
            raise
        return reader

    async def _resume(self, log: Any) -> None:
        """Read on after the stored position, if that is of the present log."""
        checkpoint, before = self._checkpoint, self._checkpoint.log
        checkpoint.log = log
        if checkpoint.position is None:
            await self._start_at(self._settings.start)
        elif before not in (None, log):
            message = (
                "The events collection is not the one the checkpoint was saved for: it"
                " was dropped, or restored from a backup."
            )
            await self._recover(HistoryLostError(message))
        else:
            self._read_from(checkpoint.position)

    async def _start_at(self, start: Start) -> None:
        now = await self.connection.retry(oplog.latest_time, self.connection)
        begin = Position.at_end if start == "now" else Position.at_beginning
        position = begin(now)
        await self.save(position)
        self._read_from(position)

    def _read_from(self, position: Position) -> None:
        self._fetcher = Fetcher(
            self.connection,
            self._settings.app_name,
            position,
            updates=self._settings.updates,
        )
        self._forget_delivered()
        self._saved = position

    def _forget_delivered(self) -> None:
        self._ready.clear()
        self.delivered = self.handled = None

    async def _recover(self, error: HistoryLostError) -> None:
        """Raise, replay or skip, as ``on_history_lost`` says."""
        option = self._settings.on_history_lost
        if option == "raise":
            raise error
        logger.warning("%s on_history_lost: %s.", error, option)
        await self._close_fetcher()
        await asyncio.sleep(PAUSE_AFTER_LOSS)
        # The lease and the checkpoint may have been dropped with the log.
        await self._checkpoint.claim_again()
        # It may be another one by now, or none until the next append creates it.
        self._checkpoint.log = await log_id(self.connection)
        await self._start_at("now" if option == "skip" else "beginning")

    async def end_at_present(self) -> None:
        """End it after the changes that are committed by now."""
        self.until = await self.connection.retry(oplog.latest_time, self.connection)

    async def next_delivery(self) -> Delivery:
        """Return the next change; if this is cancelled, the next call returns it.

        StopAsyncIteration tells that it was closed, or has come to its end.
        """
        while not self.is_over and self._fetcher is not None:
            if (delivery := self.next_ready()) is not None:
                return delivery
            if self._lost is None and self._fetcher.has_fetched_until(self.until):
                # If nothing was delivered either, the next run starts from here.
                await self.save(self._fetcher.position.advanced_to(self.until))
                break
            step = partial(self._fetch, self._fetcher)
            self._ready.extend(await self._reading.await_result(step) or ())
        raise StopAsyncIteration

    def is_delivering(self) -> bool:
        """Tell whether what it has delivered may still be handled."""
        self._checkpoint.check_lease()
        return not self.is_over and self._lost is None

    @property
    def has_ready(self) -> bool:
        """Tell whether the next change was read already."""
        return bool(self._ready) and not self.is_over and self._lost is None

    def next_ready(self) -> Delivery | None:
        """Return the next change, if it was read already."""
        if not self.has_ready:
            return None
        self._checkpoint.check_lease()
        delivery = self._ready.popleft()
        self.delivered = delivery.position
        return delivery

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Have the latest deliveries follow again: none of them was handled."""
        if self._lost is None:
            self._ready.extendleft(reversed(deliveries))
            self.delivered = None

    async def _fetch(self, fetcher: Fetcher) -> list[Delivery]:
        self._checkpoint.check_lease()
        try:
            if self._lost is not None:
                raise self._lost
            deliveries = await fetcher.fetch_deliveries()
            if not deliveries and self.delivered is None:
                self._checkpoint.check_lease()
                await self._save_silence(fetcher.position)
            return deliveries
        except HistoryLostError as error:
            await self._recover(error)
            self._lost = None
            return []

    async def _save_silence(self, position: Position) -> None:
        """Save that a replay has ended, or how far an idle stream has come."""
        idle_seconds = self.connection.limits.consumer_idle_save_seconds
        if self._saved.is_replaying and not position.is_replaying:
            await self.save(position)
        elif time.monotonic() - self.saved_at > idle_seconds:
            now = await self.connection.retry(oplog.latest_time, self.connection)
            await self.save(position.advanced_to(now))

    def note_handled(self, position: Position) -> None:
        """Remember a position that :meth:`save_handled` saves."""
        if self._lost is None:
            self.handled = position

    async def save_handled(self, work: SavedWork | None = None) -> None:
        """Save what run() has handled, in one transaction with work if there is any."""
        async with self._saving_handled:
            unsaved = self.handled
            await self.save(unsaved if work is None else unsaved or self._saved, work)

    async def save(
        self, position: Position | None, work: SavedWork | None = None
    ) -> None:
        """Save a position, up to which everything is handled; None for nothing to save.

        With work they are one transaction, and a position that the work returns is
        saved instead.
        """
        if position is None:
            return
        self.handled = None  # an earlier position must not be saved after this one
        try:
            if work is None:
                await self._checkpoint.save(position)
            else:
                position = await self._checkpoint.save_with(work, position)
        except HistoryLostError as error:
            if self._settings.on_history_lost == "raise":
                raise
            # The checkpoint was dropped: the next read replays or skips.
            self._lost = error
            self._forget_delivered()
            return
        self.saved_at = time.monotonic()
        self._saved = position
        if self.delivered is position:
            self.delivered = None

    @property
    def is_over(self) -> bool:
        """Tell whether it delivers nothing more."""
        return self._over.is_set()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for its end; tell whether it came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self.is_over

    def stop_delivering(self) -> None:
        """Deliver nothing more."""
        self._over.set()

    async def release_name(self) -> None:
        """Save what is handled, and release the lease: another reader takes over."""
        self.stop_delivering()
        with suppress(PyMongoError, MongoSessionServiceError, TimeoutError):
            async with asyncio.timeout(self.connection.limits.lease_seconds):
                await self.save_handled()
        self._renewer.discard_lease(self._checkpoint.lease)
        # Before the release, which a read that comes back would take for a loss.
        await self._reading.cancel_task()
        await self._checkpoint.release_lease()
        await self._close_fetcher()

    async def _close_fetcher(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close_change_stream()


async def log_id(connection: Connection) -> Any:
    """Return the UUID of the events collection; one created anew has another."""
    command = {"listCollections": 1, "filter": {"name": connection.events.name}}
    reply = await connection.retry(connection.database.command, command)
    found = reply["cursor"]["firstBatch"]
    return found[0]["info"]["uuid"] if found else None
