"""Processor: calls the handler, retries it, and keeps dead letters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from pymongo.errors import OperationFailure

from mongo_session_service.consumers import dead_letters
from mongo_session_service.consumers import handler as handlers
from mongo_session_service.consumers.checkpoint import Position
from mongo_session_service.consumers.fetcher import Delivery
from mongo_session_service.consumers.leased_reader import LeasedReader
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.wording import counted
from mongo_session_service.storage.cooperative import Pace
from mongo_session_service.storage.tasks import backoff, uninterrupted
from mongo_session_service.storage.transactions import Txn

logger = logging.getLogger(__name__)

_LONGEST_HANDLER_PAUSE: Final = 30.0  # seconds


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
            await pace.yield_to_loop()
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
        pool = KeyedTaskPool(self.concurrency)
        started: list[tuple[Delivery, asyncio.Task[bool]]] = []
        following: Delivery | None = first
        while following is not None:
            work = partial(self._handle_with_retries, reader, following)
            task = pool.submit(following.record.owner, work)
            started.append((following, task))
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
        """Handle changes in one transaction; return how many to handle alone instead.

        It takes what was read already while there is time and room. They are handled
        alone if any of them fails, or if the transaction would have to be repeated: one
        of them may be the cause.
        """
        members: list[Delivery] = []
        connection, limits = reader.connection, reader.connection.limits

        async def handle_members(txn: Txn) -> Position:
            if members:
                raise _NotRepeatedError
            end, size = time.monotonic() + limits.group_seconds, 0
            following: Delivery | None = first
            while following is not None:
                members.append(following)
                work = handlers.handler_call(self.handler, following.record, connection)
                await work(txn)
                size += following.record.size
                is_full = size >= limits.group_bytes or time.monotonic() >= end
                if is_full or len(members) == limits.group_changes:
                    break
                following = reader.next_ready()
            return members[-1].position

        try:
            await reader.save(first.position, handle_members)
        except (handlers.HandlerFailedError, _NotRepeatedError, OperationFailure):
            undone = members or [first]
            reader.put_back(undone)
            return len(undone)
        return 0

    async def _handle_with_retries(
        self, reader: LeasedReader, delivery: Delivery
    ) -> bool:
        """Handle a change, or keep it as a dead letter.

        False if the reader ended before, or between two attempts: the next one gets it.
        """
        if not reader.is_delivering():
            return False
        work = handlers.handler_call(self.handler, delivery.record, reader.connection)
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
            pause = backoff(attempt, first=first, longest=_LONGEST_HANDLER_PAUSE)
            if not is_last and await reader.ends_within(pause):
                return False
        letter = dead_letters.new_dead_letter(
            self.consumer, delivery.record, error, self.max_attempts
        )
        logger.warning(
            "%s is a dead letter of consumer %r from now on: its handler failed %s,"
            " last with %s.",
            letter.name,
            self.consumer,
            counted(self.max_attempts, "time"),
            letter.error,
        )
        keep = partial(dead_letters.store_dead_letter, reader.connection, letter)
        if self.concurrency == 1:
            await reader.save(delivery.position, keep)
        else:
            await reader.save_handled(keep)
        return True


class _NotRepeatedError(Exception):
    """A transaction of several changes is not repeated."""


TaskKey: TypeAlias = tuple[str, ...]
"""An app, a user or a session. Keys are related if one begins with the other."""


_OF_SESSION: Final = len(SessionKey._fields)


class KeyedTaskPool:
    """Runs tasks, a few at once; each waits for the related ones before it."""

    def __init__(self, width: int) -> None:
        self._room = asyncio.Semaphore(width)
        self._last: dict[TaskKey, asyncio.Task[bool]] = {}

    def submit(
        self, key: TaskKey, work: Callable[[], Coroutine[None, None, bool]]
    ) -> asyncio.Task[bool]:
        """Start a task that tells whether it was done; False if one before it was not.

        It begins as soon as there is room, and related work has ended.
        """
        before = [self._last[each] for each in self._related_keys(key)]
        task = asyncio.create_task(self._run_after(before, work))
        self._last[key] = task
        return task

    def _related_keys(self, key: TaskKey) -> list[TaskKey]:
        parts = [key[:length] for length in range(1, len(key))]
        found = [each for each in (*parts, key) if each in self._last]
        if len(key) < _OF_SESSION:
            size = len(key)
            longer = (each for each in self._last if len(each) > size)
            found += [each for each in longer if each[:size] == key]
        return found

    async def _run_after(
        self,
        before: list[asyncio.Task[bool]],
        work: Callable[[], Coroutine[None, None, bool]],
    ) -> bool:
        if before:
            await asyncio.wait(before)
        if not all(_has_succeeded(each) for each in before):
            return False
        async with self._room:
            return await work()


def _has_succeeded(task: asyncio.Task[bool]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result()


async def end_tasks(tasks: Iterable[asyncio.Task[bool]]) -> None:
    """Cancel what has not ended, and wait until it has."""
    ended = list(tasks)
    left = [each for each in ended if not each.done()]
    for each in left:
        each.cancel()
    if left:
        await asyncio.wait(left)
    for each in ended:
        each.cancelled() or each.exception()  # retrieved: the first was raised
