"""Consumer coordinator: fetches and commits while it holds the consumer's lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Self

from pymongo.errors import PyMongoError

from mongo_session_service.consumers.checkpoint import Position
from mongo_session_service.consumers.fetcher import Delivery, Fetcher
from mongo_session_service.consumers.handler import Work, in_transaction
from mongo_session_service.consumers.lease import LEASE, Lease, add_checkpoint
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.calls import PAUSE_AFTER_LOSS
from mongo_session_service.driver.cancellation import SharedTask, uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.errors import HistoryLostError, MongoSessionServiceError

logger = logging.getLogger(__name__)

IDLE_SAVE: Final = 15.0
"""Seconds after which an idle stream's resume token is saved, before it expires."""

OnHistoryLost = Literal["raise", "replay", "skip"]
Start = Literal["beginning", "now"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a consumer reads, and where it starts."""

    name: str
    app_name: str | None
    start: Start
    on_history_lost: OnHistoryLost
    updates: bool = False
    """Whether it gets sessions' new details as well."""


async def begin_now(connection: Connection, settings: Settings) -> None:
    """Start a new name at the current time, whichever process reads it later."""
    snapshots.check(connection)
    log = await _log_id(connection)
    now = await connection.retry(snapshots.now, connection)
    at = Position.at_end(now)
    await add_checkpoint(connection, settings.name, settings.app_name, log, at)


class Coordinator:
    """Fetches changes, and saves what is handled, under a lease.

    Once another reader has taken over, its methods raise ``LeaseLostError``, and save
    and commit nothing.
    """

    def __init__(
        self, connection: Connection, lease: Lease, log: Any, settings: Settings
    ) -> None:
        self.connection = connection
        self._lease = lease
        self._log = log
        self._settings = settings
        self._fetcher: Fetcher | None = None
        self._ready: deque[Delivery] = deque()
        """What was read and is not delivered."""
        self._uncommitted: Position | None = None
        self._handled: Position | None = None
        """After what run() has handled and not saved."""
        self._saved: Position
        self._settling = asyncio.Lock()
        self._lost: HistoryLostError | None = None
        """Why the next read replays or skips."""
        self._reading = SharedTask[list[Delivery]]()
        self._over = asyncio.Event()
        self._is_replaying = False
        """Whether the checkpoint is in a replay."""
        self.saved_at = time.monotonic()
        """When its checkpoint was last saved, on this machine's monotonic clock."""

    @classmethod
    async def begin(cls, connection: Connection, settings: Settings) -> Self:
        """Wait for the lease, and resume at the checkpoint.

        Raises:
            ConfigurationError: the name is in use for another app, or the client or
                the server has no change streams.
            HistoryLostError: the checkpoint belongs to another events collection.
        """
        snapshots.check(connection)
        lease = await Lease.acquire(connection, settings.name, settings.app_name)
        try:
            log = await _log_id(connection)
            coordinator = cls(connection, lease, log, settings)
            await coordinator._begin()
        except BaseException:
            await uninterrupted(lease.release())
            raise
        return coordinator

    async def _begin(self) -> None:
        position = self._lease.position
        if position is None:
            await self._begin_at(self._settings.start)
        elif self._lease.log not in (None, self._log):
            message = (
                "The events collection is not the one the checkpoint was saved for: it"
                " was dropped, or restored from a backup."
            )
            await self._recover(HistoryLostError(message))
        else:
            self._read_from(position)

    async def _begin_at(self, start: Start) -> None:
        now = await self.connection.retry(snapshots.now, self.connection)
        begin = Position.at_end if start == "now" else Position.at_beginning
        position = begin(now)
        await self._save(position)
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
        self._is_replaying = position.is_replaying

    def _forget_delivered(self) -> None:
        self._ready.clear()
        self._uncommitted = self._handled = None

    async def _recover(self, error: HistoryLostError) -> None:
        """Raise, replay or skip, as ``on_history_lost`` says."""
        option = self._settings.on_history_lost
        if option == "raise":
            raise error
        logger.warning("%s on_history_lost: %s.", error, option)
        await self._close_fetcher()
        await asyncio.sleep(PAUSE_AFTER_LOSS)
        # It may be another one by now, or none until the next append creates it.
        self._log = await _log_id(self.connection)
        await self._lease.restore(self._settings.app_name)
        await self._begin_at("now" if option == "skip" else "beginning")

    async def next(self) -> Delivery:
        """The next change; if this is cancelled, the next call returns it.

        Raises:
            StopAsyncIteration: it was closed.
            HistoryLostError: the change stream cannot be resumed.
        """
        while not self.is_over and self._fetcher is not None:
            if (delivery := self.take()) is not None:
                return delivery
            step = partial(self._read, self._fetcher)
            self._ready.extend(await self._reading.await_result(step) or ())
        raise StopAsyncIteration

    def is_delivering(self) -> bool:
        """Whether what it has delivered may still be handled."""
        self._lease.check()
        return not self.is_over and self._lost is None

    @property
    def has_ready(self) -> bool:
        """Whether the next change was read already."""
        return bool(self._ready) and not self.is_over and self._lost is None

    def take(self) -> Delivery | None:
        """The next change, if it was read already."""
        if not self.has_ready:
            return None
        self._lease.check()
        delivery = self._ready.popleft()
        self._uncommitted = delivery.position
        return delivery

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Have the latest deliveries follow again: none of them was handled."""
        if self._lost is None:
            self._ready.extendleft(reversed(deliveries))
            self._uncommitted = None

    async def _read(self, fetcher: Fetcher) -> list[Delivery]:
        self._lease.check()
        try:
            if self._lost is not None:
                raise self._lost
            deliveries = await fetcher.next()
            if not deliveries and self._uncommitted is None:
                self._lease.check()
                await self._save_silence(fetcher)
            return deliveries
        except HistoryLostError as error:
            await self._recover(error)
            self._lost = None
            return []

    async def _save_silence(self, fetcher: Fetcher) -> None:
        """Save that a replay has ended, or how far an idle stream has come."""
        if self._is_replaying and not fetcher.position.is_replaying:
            await self._save(fetcher.position)
        elif time.monotonic() - self.saved_at > IDLE_SAVE:
            now = await self.connection.retry(snapshots.now, self.connection)
            await self._save(fetcher.position.as_of(now))

    async def commit(self) -> None:
        """Save that everything delivered is handled."""
        if self._uncommitted is not None:
            await self.save(self._uncommitted)

    def note_handled(self, position: Position) -> None:
        """Remember a position to be saved by :meth:`settle`."""
        if self._lost is None:
            self._handled = position

    async def settle(self) -> None:
        """Save what is handled."""
        async with self._settling:
            if self._handled is not None:
                await self.save(self._handled)

    async def save_beside(self, work: Work) -> None:
        """Do work in one transaction with what is handled."""
        async with self._settling:
            reached = self._handled or self._saved
            await self.save_with(work, lambda: reached)

    async def save(self, position: Position) -> None:
        """Save a position: everything up to it is handled."""
        with self._losing():
            await self._save(position)

    async def _save(self, position: Position) -> None:
        self._handled = None  # an earlier position must not be saved after this one
        await self._lease.save(position, self._log)
        self._note_saved(position)

    async def save_with(self, work: Work, reached: Callable[[], Position]) -> None:
        """Do work and save the position it has reached, in one transaction."""
        self._handled = None
        with self._losing():
            saving = await self._lease.saving(reached, self._log)
            await in_transaction(self.connection, work, saving)
            self._lease.note_saved()
            self._note_saved(reached())

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Have the next read replay or skip, if the checkpoint was dropped."""
        try:
            yield
        except HistoryLostError as error:
            if self._settings.on_history_lost == "raise":
                raise
            self._lost = error
            self._forget_delivered()

    def _note_saved(self, position: Position) -> None:
        self.saved_at = time.monotonic()
        self._saved = position
        self._is_replaying = position.is_replaying
        if self._uncommitted is position:
            self._uncommitted = None

    @property
    def is_over(self) -> bool:
        """Whether it delivers nothing more."""
        return self._over.is_set()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for its end; whether it came in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self.is_over

    @property
    def has_uncommitted(self) -> bool:
        """Whether something was delivered that is not committed."""
        return self._uncommitted is not None

    def stop(self) -> None:
        """Deliver nothing more."""
        self._over.set()

    async def close(self) -> None:
        """Save what is handled, and release the lease: another reader takes over."""
        self.stop()
        with suppress(PyMongoError, MongoSessionServiceError, TimeoutError):
            async with asyncio.timeout(LEASE):
                await self.settle()
        await self._lease.release()
        await self._reading.cancel_task()
        await self._close_fetcher()

    async def _close_fetcher(self) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()


async def _log_id(connection: Connection) -> Any:
    """The identity of an events collection, which a recreated one does not share."""
    command = {"listCollections": 1, "filter": {"name": connection.events.name}}
    reply = await connection.retry(connection.database.command, command)
    found = reply["cursor"]["firstBatch"]
    return found[0]["info"]["uuid"] if found else None
