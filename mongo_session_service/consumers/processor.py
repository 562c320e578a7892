"""Processor: calls the handler, retries it, and keeps dead letters."""

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
from mongo_session_service.consumers.fetcher import Delivery
from mongo_session_service.consumers.lanes import Lanes, end_tasks, lane_of
from mongo_session_service.consumers.leased_reader import LeasedReader
from mongo_session_service.consumers.position import Position
from mongo_session_service.driver.calls import backoff
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.slices import Pace
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.model.wording import counted

logger = logging.getLogger(__name__)

_LONGEST_PAUSE: Final = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Processor:
    """A consumer's handler, and how it is called."""

    consumer: str
    handler: handlers.Handler
    max_attempts: int
    transactional: bool
    concurrency: int

    async def handle_batch(self, reader: LeasedReader, first: Delivery) -> None:
        """Handle and save a change, and all that were read together with it.

        What a crash repeats is bounded: by what one reply of MongoDB holds, and by
        ``Limits.consumer_batch_seconds`` of the handler's work.
        """
        if self.concurrency > 1:
            await self._handle_concurrently(reader, first)
            return
        delivery: Delivery | None = first
        alone = 0  # changes to handle without a group: one of them made one fail
        pace = Pace()
        while delivery is not None:
            if self.transactional and not alone and reader.has_ready:
                alone = await self._handle_group(reader, delivery)
            else:
                await self._handle_with_retries(reader, delivery)
                alone = max(alone - 1, 0)
            await self._save_if_due(reader)
            await pace.keep()
            delivery = reader.next_ready()
        await reader.save_handled()

    async def _save_if_due(self, reader: LeasedReader) -> None:
        longest = reader.connection.limits.consumer_batch_seconds
        if time.monotonic() - reader.saved_at >= longest:
            await reader.save_handled()

    async def _handle_concurrently(self, reader: LeasedReader, first: Delivery) -> None:
        """Handle what was read together, with changes of different sessions at once.

        What follows a change that is not handled yet is not saved.
        """
        lanes = Lanes(self.concurrency)
        started: list[tuple[Delivery, asyncio.Task[bool]]] = []
        following: Delivery | None = first
        while following is not None:
            work = partial(self._handle_with_retries, reader, following)
            started.append(
                (following, lanes.start_in_lane(lane_of(following.item), work))
            )
            following = reader.next_ready()
        tasks = [task for _, task in started]
        longest = reader.connection.limits.consumer_batch_seconds
        try:
            for delivery, task in started:
                while not (await asyncio.wait([task], timeout=longest))[0]:
                    await reader.save_handled()
                if not task.result():
                    await asyncio.wait(tasks)
                    break
                reader.note_handled(delivery.position)
                await self._save_if_due(reader)
        finally:
            await uninterrupted(end_tasks(tasks))
        await reader.save_handled()

    async def _handle_group(self, reader: LeasedReader, first: Delivery) -> int:
        """Handle changes in one transaction; how many are to be handled alone instead.

        They are if any of them fails, or if the transaction would have to be repeated:
        one of them may be the cause.
        """
        group = _Group(self.handler, reader, first)
        try:
            await reader.save(first.position, group.handle_members)
        except (handlers.HandlerFailedError, _NotRepeatedError, OperationFailure):
            reader.put_back(group.members)
            return len(group.members)
        return 0

    async def _handle_with_retries(
        self, reader: LeasedReader, delivery: Delivery
    ) -> bool:
        """Handle a change, or keep it as a dead letter.

        False if the reader ended before, or between two attempts: the next one gets it.
        """
        if not reader.is_delivering():
            return False
        work = handlers.handling_work(self.handler, delivery.item, reader.connection)
        for attempt in range(self.max_attempts):
            try:
                if self.transactional:
                    await reader.save(delivery.position, work)
                else:
                    await work(None)
                    if self.concurrency == 1:
                        reader.note_handled(delivery.position)
                return True
            except handlers.HandlerFailedError as failed:
                error = failed.error
            await reader.save_handled()  # a pause holds up no one else's commit
            is_last = attempt + 1 == self.max_attempts
            first = reader.connection.limits.handler_retry_seconds
            pause = backoff(attempt, first=first, longest=_LONGEST_PAUSE)
            if not is_last and await reader.ends_within(pause):
                return False
        logger.warning(
            "Consumer %r keeps a change as a dead letter: its handler failed %s, last"
            " with %s; the dead letter has its text.",
            self.consumer,
            counted(self.max_attempts, "time"),
            type(error).__name__,
        )
        letter = dead_letters.new_dead_letter(
            self.consumer, delivery.item, error, self.max_attempts
        )
        keep = partial(dead_letters.store_dead_letter, reader.connection, letter)
        if self.concurrency == 1:
            await reader.save(delivery.position, keep)
        else:
            await reader.save_handled(keep)
        return True


class _NotRepeatedError(Exception):
    """A transaction of several changes is not repeated."""


class _Group:
    """Changes that are handled in one transaction, as many as were read already."""

    def __init__(
        self, handler: handlers.Handler, reader: LeasedReader, first: Delivery
    ) -> None:
        self._handler = handler
        self._reader = reader
        self._is_begun = False
        self.members = [first]

    async def handle_members(self, txn: Txn) -> Position:
        """Handle the first change, and others while there is time and room.

        Returns the position after them.
        """
        if self._is_begun:
            raise _NotRepeatedError
        self._is_begun = True
        limits = self._reader.connection.limits
        end = time.monotonic() + limits.group_seconds
        size = await self._handle_member(self.members[0], txn)
        while (
            time.monotonic() < end
            and size < limits.group_bytes
            and len(self.members) < limits.group_changes
            and (delivery := self._reader.next_ready()) is not None
        ):
            self.members.append(delivery)
            size += await self._handle_member(delivery, txn)
        return self.members[-1].position

    async def _handle_member(self, delivery: Delivery, txn: Txn) -> int:
        """Handle one of them; its size in bytes."""
        connection = self._reader.connection
        await handlers.handling_work(self._handler, delivery.item, connection)(txn)
        return dead_letters.size_of(delivery.item)
