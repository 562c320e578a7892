"""Change processor: calls the handler, retries it, and keeps dead letters."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from pymongo.errors import OperationFailure

from mongo_session_service.consumers import dead_letters
from mongo_session_service.consumers import handler as handlers
from mongo_session_service.consumers.checkpoint import Position
from mongo_session_service.consumers.coordinator import Coordinator
from mongo_session_service.consumers.fetcher import Delivery
from mongo_session_service.consumers.lanes import Lanes, end, lane_of
from mongo_session_service.driver.calls import backoff
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.slices import Pace
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.model.wording import counted

logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.1  # seconds
_LONGEST_PAUSE: Final = 30.0  # seconds
_GROUP_SECONDS: Final = 1.0
"""After which no change joins a transaction; it locks what its handlers write."""
_GROUP_CHANGES: Final = 100
_GROUP_BYTES: Final = 1024**2
"""Bytes of the changes in a transaction; a handler may copy what it receives."""
_BATCH: Final = 0.1
"""Seconds of handlers' work between two commits; one takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A consumer's handler, and how it is called."""

    handler: handlers.Handler
    max_attempts: int
    transactional: bool
    concurrency: int

    async def process(
        self, coordinator: Coordinator, name: str, delivery: Delivery
    ) -> None:
        """Handle and commit a change, and all that were read together with it.

        What a crash repeats is bounded: by what one reply of MongoDB holds, and by
        ``_BATCH`` seconds of the handler's work.
        """
        if self.concurrency > 1:
            await self._process_at_once(coordinator, name, delivery)
            return
        following: Delivery | None = delivery
        alone = 0
        pace = Pace()
        while following is not None:
            if self.transactional and not alone and coordinator.has_ready:
                alone = await self._process_together(coordinator, following)
            else:
                await self._process(coordinator, name, following)
                alone = max(alone - 1, 0)
            if time.monotonic() - coordinator.saved_at >= _BATCH:
                await coordinator.settle()
            await pace.keep()
            following = coordinator.take()
        await coordinator.settle()

    async def _process_at_once(
        self, coordinator: Coordinator, name: str, first: Delivery
    ) -> None:
        """Handle what was read together, with changes of different sessions at once.

        What follows a change that is not handled yet is not committed.
        """
        lanes = Lanes(self.concurrency)
        started: list[tuple[Delivery, asyncio.Task[bool]]] = []
        following: Delivery | None = first
        while following is not None:
            work = partial(self._process_one, coordinator, name, following)
            started.append((following, lanes.start(lane_of(following.item), work)))
            following = coordinator.take()
        tasks = [task for _, task in started]
        try:
            for delivery, task in started:
                while not (await asyncio.wait([task], timeout=_BATCH))[0]:
                    await coordinator.settle()
                if not task.result():
                    await asyncio.wait(tasks)
                    break
                coordinator.note_handled(delivery.position)
                if time.monotonic() - coordinator.saved_at >= _BATCH:
                    await coordinator.settle()
        finally:
            await uninterrupted(end(tasks))
        await coordinator.settle()

    async def _process_one(
        self, coordinator: Coordinator, name: str, delivery: Delivery
    ) -> bool:
        """Handle a change as one of several; whether it was, or is a dead letter."""
        if not coordinator.is_delivering():
            return False
        return await self._process(coordinator, name, delivery)

    async def _process_together(self, coordinator: Coordinator, first: Delivery) -> int:
        """Handle changes in one transaction; how many are to be handled alone instead.

        They are if any of them fails, or if the transaction would have to be repeated:
        one of them may be the cause.
        """
        group = _Group(self.handler, coordinator, first)
        try:
            await coordinator.save_with(group.work, group.reached)
        except (handlers.HandlerFailedError, _ApartError, OperationFailure):
            coordinator.put_back(group.members)
            return len(group.members)
        return 0

    async def _process(
        self, coordinator: Coordinator, name: str, delivery: Delivery
    ) -> bool:
        """Handle a change, or keep it as a dead letter.

        False if the coordinator ended between two attempts: the next reader gets it.
        """
        work = handlers.handling(self.handler, delivery.item, coordinator.connection)
        for attempt in range(self.max_attempts):
            try:
                if self.transactional:
                    await coordinator.save_with(work, lambda: delivery.position)
                else:
                    await work(None)
                    if self.concurrency == 1:
                        coordinator.note_handled(delivery.position)
                return True
            except handlers.HandlerFailedError as failed:
                error = failed.error
            await coordinator.settle()  # a pause holds up no one else's commit
            is_last = attempt + 1 == self.max_attempts
            if not is_last and await coordinator.ends_within(
                backoff(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
            ):
                return False
        logger.warning(
            "Consumer %r keeps a change as a dead letter: its handler failed %s, last"
            " with %s.",
            name,
            counted(self.max_attempts, "time"),
            type(error).__name__,
        )
        attempts = self.max_attempts
        letter = dead_letters.dead_letter(name, delivery.item, error, attempts)
        keep = partial(dead_letters.store, coordinator.connection, letter)
        if self.concurrency == 1:
            await coordinator.save_with(keep, lambda: delivery.position)
        else:
            await coordinator.save_beside(keep)
        return True


class _ApartError(Exception):
    """A transaction of several changes is not repeated."""


class _Group:
    """Changes that are handled in one transaction, as many as were read already."""

    def __init__(
        self, handler: handlers.Handler, coordinator: Coordinator, first: Delivery
    ) -> None:
        self._handler = handler
        self._coordinator = coordinator
        self._is_begun = False
        self.members = [first]

    def reached(self) -> Position:
        """The position after all of them."""
        return self.members[-1].position

    async def work(self, txn: Txn) -> None:
        """Handle the first of them, and others while there is time and room."""
        if self._is_begun:
            raise _ApartError
        self._is_begun = True
        end = time.monotonic() + _GROUP_SECONDS
        size = await self._handle(self.members[0], txn)
        while (
            time.monotonic() < end
            and size < _GROUP_BYTES
            and len(self.members) < _GROUP_CHANGES
            and (delivery := self._coordinator.take()) is not None
        ):
            self.members.append(delivery)
            size += await self._handle(delivery, txn)

    async def _handle(self, delivery: Delivery, txn: Txn) -> int:
        """Handle one of them; its size in bytes."""
        connection = self._coordinator.connection
        await handlers.handling(self._handler, delivery.item, connection)(txn)
        return dead_letters.size_of(delivery.item)
