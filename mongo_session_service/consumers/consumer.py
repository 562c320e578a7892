"""Durable consumers: every change at least once per name, across crashes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, Self

import bson
from bson.timestamp import Timestamp

from mongo_session_service._public import public
from mongo_session_service.backend import Backends
from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.consumers import dead_letters
from mongo_session_service.consumers.checkpoint import (
    Checkpoint,
    ConsumerSettings,
    LogPlace,
    PlaceMovedError,
    SavedWork,
    start_at_present,
)
from mongo_session_service.consumers.dead_letters import DeadLetter
from mongo_session_service.consumers.fetcher import FetchedChange, Fetcher
from mongo_session_service.consumers.handler import (
    Handler,
    HandlerFailedError,
    KeyedTaskPool,
    call_handler,
    check_handler,
    end_tasks,
)
from mongo_session_service.errors import (
    HistoryLostError,
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    SchemaVersionError,
    StorageError,
    StorageUnavailableError,
    quoted,
)
from mongo_session_service.model.validation import check_count, check_flag
from mongo_session_service.model.wording import counted
from mongo_session_service.storage.lease import LeaseRenewer
from mongo_session_service.storage.statements import Delete
from mongo_session_service.storage.tasks import (
    Pace,
    SharedTask,
    backoff,
    running_loop,
    uninterrupted,
    wait_at_most,
)
from mongo_session_service.storage.transactions import Transaction

logger = logging.getLogger(__name__)

_LONGEST_HANDLER_PAUSE: Final = 30.0  # seconds

_calling: ContextVar[Consumer | None] = ContextVar("_calling", default=None)
"""The consumer whose handler is running, for whatever that calls."""


@dataclass(slots=True)
class _Run:
    """A handler, how it is called, and what has become of the changes."""

    handler: Handler
    max_attempts: int
    transactional: bool
    concurrency: int
    handled: int = 0
    dead_letters: int = 0


@public
class Consumer:
    """A named reader of all changes, of an app or of the database, that is durable.

    ::

        async with service.consumer("billing", app_name="my_app") as consumer:
            async for change in consumer:
                await bill(change)
                await consumer.commit()

    It resumes after the last change committed under its name, in any process. What was
    committed is not delivered again, everything else at least once; ``session_key`` and
    the event's ``id`` identify an ``appended`` change. One reader holds the name at a
    time: others wait, and one takes over within seconds when it is closed or its
    process dies.

    Reading and committing raise:

    - ``LeaseLostError``: another reader has taken over; nothing was committed.
    - ``HistoryLostError``: the change stream cannot be resumed, or the database or the
      checkpoint was dropped, and ``on_history_lost`` is ``raise``.
    - ``ConfigurationError``: the name belongs to another app's changes, or the server
      has no change streams.
    - ``StorageUnavailableError``: MongoDB has been unreachable for a minute.
    - ``StorageError``: MongoDB refused, or the change cannot be decoded; the next read
      continues after it, and ``run()`` keeps it as a dead letter.
    """

    def __init__(
        self, backends: Backends, settings: ConsumerSettings, renewer: LeaseRenewer
    ) -> None:
        self.name = settings.name
        self._backends = backends
        self._settings = settings
        self._renewer = renewer
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which it reads."""
        self._is_idle = asyncio.Event()
        """Set unless run() is handling a change."""
        self._is_idle.set()
        self._run: _Run | None = None
        """The handler of the running run(), and its options."""
        self._is_ending = False
        self._is_open = False
        """Whether it has its name, and so a checkpoint and a fetcher."""
        self._checkpoint: Checkpoint
        self._fetcher: Fetcher
        self._has_ended = asyncio.Event()
        """Set when nothing more is to be delivered."""
        self._until: Timestamp | None = None
        """The time of the deployment's clock up to which run() delivers changes."""
        self._ready: deque[FetchedChange] = deque()
        """Changes that were fetched and not delivered yet."""
        self._delivered: LogPlace | None = None
        """After the latest change delivered; None if all delivered are committed."""
        self._handled: LogPlace | None = None
        """After the latest change handled by run(); None if that is saved."""
        self._has_uncommitted = False
        """Whether it was closed with changes that were delivered and not committed."""
        self._lost: HistoryLostError | None = None
        """The lost history, for which the next read replays or skips."""
        self._is_careful = False
        """Whether each change is handled and saved alone: one may kill the process."""
        self._saving_handled = asyncio.Lock()
        self._claiming = SharedTask[Checkpoint]()
        self._fetching = SharedTask[list[FetchedChange]]()

    async def __aenter__(self) -> Self:
        if self._settings.start == "now":
            await start_at_present(await self._backends.storage(), self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the name at once; reading again acquires it again.

        ``run()`` ends, and releases it, once the current change is handled and it has
        committed, or its handler has failed once more.
        """
        self._has_ended.set()
        if self._is_idle.is_set():
            await self._release_name()

    def end(self) -> Coroutine[None, None, None]:
        """Close, and wait until the current change is handled.

        It does not wait if its own handler calls this, nor for a handler that itself
        waits for consumers to end.
        """
        return self._end(_calling.get())

    async def _end(self, caller: Consumer | None) -> None:
        if caller is not None:
            caller._is_ending = True  # noqa: SLF001
        await self.close()
        if caller is not self and not self._is_ending:
            await self._is_idle.wait()

    @property
    def checkpoint_age(self) -> float | None:
        """Seconds since its checkpoint was saved here; None if it is not reading."""
        if not self._is_open:
            return None
        return time.monotonic() - self._checkpoint.saved_at

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        self._check_not_running()
        if not await self._acquire_name():
            raise StopAsyncIteration
        return (await self._next_delivery()).record.change()

    def _check_not_running(self) -> None:
        """Refuse a second reader: its commits would include what run() has not done."""
        if self._run is not None:
            message = f"run() of consumer {quoted(self.name)} is already running."
            raise MongoSessionServiceError(message)

    async def commit(self) -> None:
        """Save, with a majority, that everything delivered so far is handled.

        While ``run(concurrency=...)`` handles several changes at once: everything that
        is handled, up to the first that is not.

        Raises:
            LeaseLostError: another reader has taken over; nothing was committed.
            StorageUnavailableError: it may or may not have been committed; try again.
        """
        if self._is_open and self._run is not None and self._run.concurrency > 1:
            await self._save_handled()
        elif self._is_open:
            await self._save(self._delivered)
        elif self._has_uncommitted:
            who = f"Consumer {quoted(self.name)}"
            raise LeaseLostError(f"{who} was closed; this was not committed.")

    async def run(
        self,
        handler: Handler,
        *,
        max_attempts: int = 13,
        transactional: bool = False,
        concurrency: int = 1,
        until_caught_up: bool = False,
    ) -> int:
        """Handle and commit every change, until it is cancelled or closed.

        Changes that were read together are committed together: after a tenth of a
        second of handling, before it waits for more, and when it is cancelled or
        closed. A crash repeats what was handled since; the order stays the same.

        Args:
            handler: Called with each change, and awaited if it is a coroutine function.
                If it raises, it is called again after pauses of 0.1, 0.2, 0.4 and so
                on to 30 seconds, each shortened at random by up to a half; after the
                last attempt the change becomes a dead letter. A ``SystemExit`` and a
                ``CancelledError`` count as failures, unless this call is cancelled.
            max_attempts: How often it is called at most; once more in a transaction of
                several changes. 13 attempts take one to two and a half minutes. A call
                whose process dies counts, too, from the second on: the reader that
                follows notes of each change that it begins it, and handles it alone.
            transactional: Call ``handler(change, txn)``, where ``txn`` is the
                driver's session. What is written with ``session=txn``, through
                ``txn.client``, is committed together with the checkpoint: exactly
                once. It is called again if the transaction has to be retried. Changes
                that were read together share a transaction, for a second at most; if
                any of them fails, each is handled in its own.
            concurrency: For how many changes of different sessions it is called at
                once. Those of one session come in order; a ``state`` change comes after
                all before it, and before all after it.
            until_caught_up: End when everything is handled that was committed before
                it had the name: for cron jobs and tests. It waits for the name first.

        Returns:
            How many changes became dead letters.

        Raises:
            InvalidInputError: ``handler`` is not a function of these arguments,
                ``max_attempts`` or ``concurrency`` no number from 1 on, or
                ``transactional`` or ``until_caught_up`` neither True nor False; or
                ``transactional`` is True, and ``concurrency`` above 1.
            MongoSessionServiceError: it is running already.
        """
        check_flag("transactional", transactional)
        check_flag("until_caught_up", until_caught_up)
        check_handler(handler, transactional=transactional)
        check_count("max_attempts", max_attempts)
        check_count("concurrency", concurrency)
        if transactional and concurrency > 1:
            message = (
                "concurrency must be 1 with transactional=True: handlers share a"
                " transaction, which does one thing at a time."
            )
            raise InvalidInputError(message)
        self._check_not_running()
        run = self._run = _Run(handler, max_attempts, transactional, concurrency)
        token = _calling.set(self)
        try:
            while await self._acquire_name():
                if until_caught_up and self._until is None:
                    storage = self._checkpoint.storage
                    self._until = await storage.latest_time(patient=True)
                try:
                    first = await self._next_delivery()
                except StopAsyncIteration:
                    break
                self._is_idle.clear()
                if concurrency > 1 and not self._is_careful:
                    await self._handle_concurrently(run, first)
                else:
                    await self._handle_in_order(run, first)
                self._is_careful = False  # its predecessor had begun no more
                if not self._has_ended.is_set():
                    self._is_idle.set()
        finally:
            _calling.reset(token)
            try:
                await self._release_name()
            finally:
                self._run, self._is_ending = None, False
                self._is_idle.set()
                logger.info(
                    "Consumer %r has ended: %s handled, %s kept.",
                    self.name,
                    counted(run.handled, "change"),
                    counted(run.dead_letters, "dead letter"),
                )
        return run.dead_letters

    async def dead_letters(self) -> AsyncIterator[DeadLetter]:
        """The changes whose every attempt failed, the oldest failure first."""
        storage = await self._backends.storage()
        async for letter in dead_letters.load_dead_letters(storage, self.name):
            yield letter

    async def replay_dead_letters(
        self, handler: Handler, *, transactional: bool = False
    ) -> int:
        """Calls the handler once on each dead letter; returns how many it handled.

        These are removed, and those whose change is gone, with a warning; the others
        stay, with their new error. It needs no lease, and can be called while the
        consumer runs elsewhere.

        Args:
            handler: As for :meth:`run`.
            transactional: As for :meth:`run`, together with the letter's removal.

        Raises:
            InvalidInputError: ``handler`` is not a function of these arguments, or
                ``transactional`` is neither True nor False.
        """
        check_flag("transactional", transactional)
        check_handler(handler, transactional=transactional)
        storage = await self._backends.storage(stays=True)
        return await dead_letters.replay_dead_letters(
            storage, self.name, handler, transactional=transactional
        )

    async def _acquire_name(self) -> bool:
        """Acquire the name if it does not have it; False if it was closed meanwhile.

        If this is cancelled, the next call continues.
        """
        if not self._is_open:
            self.loop = running_loop()
            self._has_uncommitted = False
            # It holds no reference to the consumer, which may be collected meanwhile.
            claim = partial(_claim_name, self._backends, self._settings, self._renewer)
            checkpoint = await self._claiming.await_result(claim)
            if checkpoint is not None:
                self._start_reading(checkpoint)
        return self._is_open

    def _start_reading(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._has_ended = asyncio.Event()
        self._until = self._lost = None
        self._is_careful = checkpoint.lease.replaces_dead
        self._restart_fetcher()
        self._is_open = True

    def _restart_fetcher(self) -> None:
        checkpoint = self._checkpoint
        self._fetcher = Fetcher(checkpoint.storage, self._settings, checkpoint.place)
        self._forget_delivered()

    def _forget_delivered(self) -> None:
        self._ready.clear()
        self._delivered = self._handled = None

    async def _release_name(self) -> None:
        if (claimed := await self._claiming.cancel_task()) is not None:
            self._start_reading(claimed)
            self._has_ended.set()
        if self._is_open:
            self._is_open = False
            self._has_uncommitted = self._delivered is not None
            await uninterrupted(self._save_and_release(self._checkpoint, self._fetcher))

    async def _save_and_release(self, checkpoint: Checkpoint, fetcher: Fetcher) -> None:
        self._has_ended.set()
        with suppress(MongoSessionServiceError, TimeoutError):
            async with asyncio.timeout(checkpoint.storage.limits.lease_seconds):
                await self._save_handled()
        self._renewer.stop_renewing(checkpoint.lease)
        # Before the release, which a read that comes back would take for a loss.
        await self._fetching.cancel_task()
        await checkpoint.release()
        await fetcher.close_change_stream()

    async def _next_delivery(self) -> FetchedChange:
        """Return the next change; if this is cancelled, the next call returns it.

        It raises StopAsyncIteration when it is closed, or has come to its end.
        """
        has_ended = self._has_ended
        while not has_ended.is_set():
            if (delivery := self._next_ready()) is not None:
                return delivery
            fetcher = self._fetcher
            if self._lost is None and fetcher.has_fetched_until(self._until):
                # If nothing was delivered either, the next run starts from here.
                await self._save(fetcher.place.advanced_to(self._until))
                break
            fetched = await self._fetching.await_result(self._fetch)
            self._ready.extend(fetched or ())
        raise StopAsyncIteration

    async def _fetch(self) -> list[FetchedChange]:
        checkpoint, fetcher = self._checkpoint, self._fetcher
        checkpoint.check_lease()
        try:
            if self._lost is not None:
                raise self._lost
            fetched = await fetcher.fetch_changes()
            if not fetched and self._delivered is None:
                checkpoint.check_lease()
                await self._save_silence(fetcher.place)
        except HistoryLostError as error:
            await fetcher.close_change_stream()
            await checkpoint.recover(error)
            self._lost = None
            self._restart_fetcher()
            return []
        return fetched

    async def _save_silence(self, place: LogPlace) -> None:
        """Save that a replay has ended, or how far an idle stream has come."""
        checkpoint = self._checkpoint
        saved, limits = checkpoint.place, checkpoint.storage.limits
        if saved.is_replaying and not place.is_replaying:
            await self._save(place)
        elif time.monotonic() - checkpoint.saved_at > limits.consumer_idle_save_seconds:
            now = await checkpoint.storage.latest_time(patient=True)
            await self._save(place.advanced_to(now))

    @property
    def _has_ready(self) -> bool:
        return bool(self._ready) and self._is_delivering

    @property
    def _is_delivering(self) -> bool:
        """Whether what it has delivered may still be handled."""
        return not self._has_ended.is_set() and self._lost is None

    def _next_ready(self) -> FetchedChange | None:
        if not self._has_ready:
            return None
        self._checkpoint.check_lease()
        delivery = self._ready.popleft()
        self._delivered = delivery.place
        return delivery

    async def _save(
        self, place: LogPlace | None, work: SavedWork | None = None
    ) -> None:
        """Save a place, up to which everything is handled; None for nothing to save.

        With work they are one transaction, and a place that the work returns is
        saved instead.
        """
        if place is None:
            return
        self._handled = None  # an earlier place must not be saved after this one
        try:
            place = await self._checkpoint.save(place, work)
        except HistoryLostError as error:
            is_moved = isinstance(error, PlaceMovedError)
            if self._settings.on_history_lost == "raise" and not is_moved:
                raise
            # It was dropped, or set anew by an erasure: the next read begins elsewhere.
            self._lost = error
            self._forget_delivered()
            return
        if self._delivered is place:
            self._delivered = None

    async def _save_handled(self, work: SavedWork | None = None) -> None:
        """Save what run() has handled, in one transaction with work if there is any."""
        async with self._saving_handled:
            saved = None if work is None else self._checkpoint.place
            await self._save(self._handled or saved, work)

    async def _save_if_due(self) -> None:
        longest = self._checkpoint.storage.limits.consumer_batch_seconds
        if self._is_careful or time.monotonic() - self._checkpoint.saved_at >= longest:
            await self._save_handled()

    def _note_handled(self, place: LogPlace) -> None:
        if self._lost is None:
            self._handled = place

    async def _handle_in_order(self, run: _Run, first: FetchedChange) -> None:
        """Handle and save a change, and all that were read together with it.

        What a crash repeats is bounded: by what one reply of MongoDB holds, and by
        ``Limits.consumer_batch_seconds`` of the handler's work.
        """
        delivery: FetchedChange | None = first
        # Changes to handle each for itself: one failed its group, or its process.
        ungrouped = math.inf if self._is_careful else 0
        pace = Pace()
        while delivery is not None:
            if run.transactional and not ungrouped and self._has_ready:
                ungrouped = await self._handle_group(run, delivery)
            else:
                await self._handle_with_retries(run, delivery)
                ungrouped = max(ungrouped - 1, 0)
            await self._save_if_due()
            await pace.yield_to_loop()
            delivery = self._next_ready()
        await self._save_handled()

    async def _handle_concurrently(self, run: _Run, first: FetchedChange) -> None:
        """Handle what was read together, with changes of different sessions at once.

        What follows a change that is not handled yet is not saved.
        """
        pool = KeyedTaskPool(run.concurrency)
        started: list[tuple[FetchedChange, asyncio.Task[bool]]] = []
        following: FetchedChange | None = first
        while following is not None:
            work = partial(self._handle_with_retries, run, following)
            started.append((following, pool.submit(following.record.owner, work)))
            following = self._next_ready()
        tasks = [task for _, task in started]
        longest = self._checkpoint.storage.limits.consumer_batch_seconds
        try:
            for delivery, task in started:
                while not (await asyncio.wait([task], timeout=longest))[0]:
                    await self._save_handled()
                if not task.result():
                    await asyncio.wait(tasks)
                    break
                self._note_handled(delivery.place)
                await self._save_if_due()
        finally:
            await uninterrupted(end_tasks(tasks))
        await self._save_handled()

    async def _handle_group(self, run: _Run, first: FetchedChange) -> int:
        """Handle changes in one transaction; return how many to handle alone instead.

        It takes what was read already while there is time and room. They are handled
        alone if any of them fails, or if the transaction would have to be repeated: one
        of them may be the cause.
        """
        members: list[FetchedChange] = []
        limits = self._checkpoint.storage.limits

        async def handle_members(tx: Transaction) -> LogPlace:
            if members:
                raise _NotRepeatedError
            end, size = time.monotonic() + limits.group_seconds, 0
            following: FetchedChange | None = first
            while following is not None:
                members.append(following)
                await self._call_handler(run, following.record, tx)
                size += len(bson.encode(following.record.content.get("document", {})))
                is_full = size >= limits.group_bytes or time.monotonic() >= end
                if is_full or len(members) == limits.group_changes:
                    break
                following = self._next_ready()
            return members[-1].place

        try:
            await self._save(first.place, handle_members)
        except StorageUnavailableError:
            raise
        except (HandlerFailedError, _NotRepeatedError, StorageError):
            undone = members or [first]
            if self._lost is None:
                self._ready.extendleft(reversed(undone))
                self._delivered = None
            return len(undone)
        run.handled += len(members)
        return 0

    async def _handle_with_retries(self, run: _Run, delivery: FetchedChange) -> bool:
        """Handle a change, or keep it as a dead letter.

        False if this ended before, or between two attempts: the next reader gets it.
        """
        self._checkpoint.check_lease()
        if not self._is_delivering:
            return False
        record: ChangeRecord | None = delivery.record
        begun = await self._checkpoint.note_beginning() if self._is_careful else 1
        attempts = count(min(begun, run.max_attempts))
        while record is not None:
            try:
                if begun > run.max_attempts:
                    raise HandlerFailedError(ProcessDiedError())  # noqa: TRY301
                if run.transactional:
                    handle = partial(self._call_handler, run, record)
                    await self._save(delivery.place, handle)
                    run.handled += 1
                    return True
                await self._call_handler(run, record)
                run.handled += 1
                break
            except HandlerFailedError as failed:
                letter = dead_letters.new_dead_letter(
                    self.name, delivery.record, failed.error, next(attempts)
                )
                # A newer release's session is not understood at any later attempt.
                is_vain = isinstance(failed.error, SchemaVersionError)
            await self._save_handled()  # a pause holds up no one else's commit
            if is_vain or letter.attempts == run.max_attempts:
                await self._keep_letter(run, delivery, letter)
                return True
            if await self._ends_in_pause(letter, run.max_attempts):
                return False
            record = await self._load_current(delivery, letter)
        if run.concurrency == 1 or self._is_careful:
            self._note_handled(delivery.place)
        return True

    async def _call_handler(
        self, run: _Run, record: ChangeRecord, tx: Transaction | None = None
    ) -> None:
        try:
            await call_handler(run.handler, record, tx)
        except HandlerFailedError:
            raise
        except Exception as error:  # the transaction is repeated
            await self._checkpoint.flag_locked_out(error)
            raise

    async def _load_current(
        self, delivery: FetchedChange, letter: DeadLetter
    ) -> ChangeRecord | None:
        """Load a change as it is stored now; None if it is gone, which is logged."""
        storage, reached = self._checkpoint.storage, delivery.place.reached
        found = await dead_letters.load_record(storage, letter.id, reached)
        if found is None:
            gone = "%s is no longer stored: consumer %r goes on without it."
            logger.warning(gone, letter.name, self.name)
        return found

    async def _keep_letter(
        self, run: _Run, delivery: FetchedChange, letter: DeadLetter
    ) -> None:
        """Keep a change as a dead letter, unless it is gone."""

        async def store_letter(tx: Transaction) -> None:
            await tx.write(dead_letters.store_letter_statement(letter))

        if run.concurrency == 1 or self._is_careful:
            await self._save(delivery.place, store_letter)
        else:
            await self._save_handled(store_letter)
        # After it is stored: an erasure that is over has not removed it.
        if await self._load_current(delivery, letter) is None:
            removal = Delete("dead_letters", {"_id": letter.id})
            await self._checkpoint.storage.commit(removal)
            return
        run.dead_letters += 1
        logger.warning(
            "%s is a dead letter of consumer %r from now on: its handler failed %s,"
            " last with %s.",
            letter.name,
            self.name,
            counted(letter.attempts, "time"),
            letter.error,
        )

    async def _ends_in_pause(self, letter: DeadLetter, max_attempts: int) -> bool:
        """Wait before the next attempt; whether it was closed meanwhile."""
        failed, limits = letter.attempts, self._checkpoint.storage.limits
        first, longest = limits.handler_retry_seconds, _LONGEST_HANDLER_PAUSE
        pause = backoff(failed - 1, first=first, longest=longest)
        logger.warning(
            "The handler of consumer %r failed with %s, in attempt %d of %d, on %s. It"
            " is called again in %.1f seconds.",
            self.name,
            letter.error,
            failed,
            max_attempts,
            letter.name,
            pause,
        )
        await wait_at_most(pause, self._has_ended)
        return self._has_ended.is_set()


class ProcessDiedError(Exception):
    """Each process has died in which the handler had begun a change."""


class _NotRepeatedError(Exception):
    """A transaction of several changes is not repeated."""


async def _claim_name(
    backends: Backends, settings: ConsumerSettings, renewer: LeaseRenewer
) -> Checkpoint:
    """Wait for the name, and find the place to resume at."""
    # In its transactions handlers are called, in this loop.
    storage = await backends.storage(stays=True)
    storage.check_watchable()
    checkpoint = Checkpoint(storage, settings)
    stands_by = False
    try:
        # Another process sends no signal.
        while not await checkpoint.claim():
            if not stands_by:
                stands_by = True
                standing_by = "Consumer %r stands by: another reader has its name."
                logger.info(standing_by, settings.name)
            await asyncio.sleep(storage.limits.consumer_poll_seconds)
        if stands_by:
            logger.info("Consumer %r takes over.", settings.name)
        renewer.keep_renewing(checkpoint.lease)
        await checkpoint.resume()
    except BaseException:
        renewer.stop_renewing(checkpoint.lease)
        await uninterrupted(checkpoint.release())
        raise
    return checkpoint
