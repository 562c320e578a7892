"""Import: moving a source's sessions into a ``MongoSessionService``.

The next batch is read and encoded while one is being written. Sessions that the target
has are compared, not written again, so a repeated import completes an interrupted one,
and adds what has changed in the source since.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Final

from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.backend import backend_of
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.server import naming_privileges
from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.service import MongoSessionService
from mongo_session_service.transfer import records
from mongo_session_service.transfer.batches import Batch, Gathering, Incoming
from mongo_session_service.transfer.reconcile import Plan, Standing, plan
from mongo_session_service.transfer.target import ChangedError, StatePlan, Target

_ATTEMPTS: Final = 5
"""How often a batch is planned again because the target has changed."""


async def move(
    source: records.Source,
    service: MongoSessionService,
    selection: records.Selection = records.EVERYTHING,
    policies: records.Policies = records.CAREFUL,
    *,
    on_problem: Callable[[records.Problem], None] = lambda _: None,
    on_progress: Callable[[records.Moved], None] = lambda _: None,
) -> records.Moved:
    """Import the selected sessions of an open source; safe to interrupt and to repeat.

    Args:
        source: Where the sessions are; it is only read.
        service: The target; it needs transactions.
        selection: Which sessions to import.
        policies: What to do about conflicts and problems.
        on_problem: Called with each problem and conflict that is skipped.
        on_progress: Called after each batch.

    Raises:
        ConflictError: the target has other content under an id, and ``on_conflict`` is
            ``fail``. What was imported before stays.
        TransferError: something cannot be read or stored, and ``on_error`` is ``fail``.
            A dry run reports such problems instead.
    """
    with translated():
        # Before setup: that would create indexes on another service's collections.
        opened = await backend_of(service).here()
        target = Target(opened.connection, is_read_only=policies.is_dry_run)
        importer = _Importer(target, policies, on_problem)
        async with naming_privileges(opened.connection):
            await importer.target.check()
            if not policies.is_dry_run:
                await service.setup()
            reading = _read_ahead(source, selection, target.hooks, importer.moved)
            async with aclosing(reading) as batches:
                async for batch in batches:
                    await importer.take(batch)
                    on_progress(importer.moved)
    return importer.moved


class _Importer:
    """Writes batches one by one, and counts the results."""

    def __init__(
        self,
        target: Target,
        policies: records.Policies,
        on_problem: Callable[[records.Problem], None],
    ) -> None:
        self.target = target
        self.moved = records.Moved(started=time.time())
        self._policies = policies
        self._on_problem = on_problem
        self._large: _LargeSession | None = None

    async def take(self, batch: Batch) -> None:
        """Store a batch in the target, as far as the target lacks it."""
        for problem in batch.problems:
            if self._policies.on_error == "fail" and not self._policies.is_dry_run:
                message = (
                    f"Cannot be moved: {problem}. What was moved before stays. To"
                    " continue without it, choose to skip errors."
                )
                raise TransferError(message)
            self.moved.problems += 1
            self._on_problem(problem)
        is_part = any(not each.is_whole for each in batch.sessions)
        take = self._take_part if is_part else self._take_whole
        for _ in range(_ATTEMPTS):
            with suppress(ChangedError):
                await take(batch)
                return
        message = "The target keeps changing what is being moved; stop its writers."
        raise ConflictError(message)

    async def _take_whole(self, batch: Batch) -> None:
        """Plan a batch of whole sessions, and write it."""
        found = await self.target.sessions(each.key for each in batch.sessions)
        events = await self.target.events(batch.sessions)
        hooks = self.target.hooks
        plans = [
            (each, plan(each, found.get(each.key), events.get(each.key, []), hooks))
            for each in batch.sessions
        ]
        states = await self.target.states(batch.states.values())
        if not self._policies.is_dry_run:
            await self.target.write(
                [
                    (each, planned, found.get(each.key))
                    for each, planned in plans
                    if self._is_written(planned, _conflict(each, planned))
                ],
                [
                    each
                    for each in states
                    if self._is_written(each, _state_conflict(each))
                ],
            )
        for each, planned in plans:
            written = each.revision - planned.matched
            self._count(_conflict(each, planned), planned.standing, written)
        for state in states:
            self._count_state(state)

    async def _take_part(self, batch: Batch) -> None:
        """Store a part of a large session; parts come alone and in order."""
        [part] = batch.sessions
        if self._large is None or part.offset == 0:
            self._large = _LargeSession(
                self.target,
                is_dry_run=self._policies.is_dry_run,
                is_to_replace=self._is_to_replace,
            )
        await self._large.take(part)
        if part.is_last:
            large, self._large = self._large, None
            conflict = records.Problem(records.named(part.key), large.reason)
            self._count(conflict, large.standing, large.written)

    def _is_written(self, planned: Plan | StatePlan, conflict: records.Problem) -> bool:
        if planned.standing is Standing.CONFLICT:
            return self._is_to_replace(conflict)
        return planned.is_lacking

    def _is_to_replace(self, conflict: records.Problem) -> bool:
        if self._policies.on_conflict == "fail":
            message = (
                f"The target holds something else: {conflict}. It was left as it is;"
                " choose to skip or to replace what conflicts."
            )
            raise ConflictError(message)
        return self._policies.on_conflict == "replace"

    def _count(
        self, conflict: records.Problem, standing: Standing, written: int
    ) -> None:
        moved = self.moved
        match standing:
            case Standing.NEW:
                moved.new += 1
                moved.events += written
            case Standing.BEHIND:
                moved.caught_up += 1
                moved.events += written
            case Standing.SAME:
                moved.unchanged += 1
            case Standing.AHEAD:
                moved.ahead += 1
            case Standing.CONFLICT if self._policies.on_conflict == "replace":
                moved.replaced += 1
                moved.events += written
            case Standing.CONFLICT:
                moved.skipped += 1
                self._on_problem(conflict)

    def _count_state(self, state: StatePlan) -> None:
        if state.standing is not Standing.CONFLICT:
            self.moved.states += state.standing is not Standing.SAME
        elif self._policies.on_conflict == "replace":
            self.moved.states += 1
        else:
            self.moved.skipped_states += 1
            self._on_problem(_state_conflict(state))


class _LargeSession:
    """The progress of one session that is imported in several parts."""

    def __init__(
        self,
        target: Target,
        *,
        is_dry_run: bool,
        is_to_replace: Callable[[records.Problem], bool],
    ) -> None:
        self.standing = Standing.NEW
        self.reason = ""
        self.written = 0
        self._target = target
        self._is_dry_run = is_dry_run
        self._is_to_replace = is_to_replace
        self._is_left_alone = False

    async def take(self, part: Incoming) -> None:
        """Store a part, unless it is stored; with the last part, the session.

        Raises:
            ChangedError: the target has changed since it was read; repeat the part.
        """
        if self._is_left_alone:
            return
        found = (await self._target.sessions([part.key])).get(part.key)
        events = await self._target.events([part])
        hooks = self._target.hooks
        planned = plan(part, found, events.get(part.key, []), hooks)
        if planned.standing is Standing.CONFLICT:
            self.standing, self.reason = planned.standing, planned.reason
            conflict = records.Problem(records.named(part.key), self.reason)
            if self._is_dry_run or not self._is_to_replace(conflict):
                self._is_left_alone = True
                return
        elif self.standing is not Standing.CONFLICT:
            self.standing = planned.standing
        if planned.is_lacking and not self._is_dry_run:
            await self._target.write([(part, planned, found)], [])
        self.written += len(part.appends) - planned.matched


async def _read_ahead(
    source: records.Source,
    selection: records.Selection,
    hooks: Hooks,
    moved: records.Moved,
) -> AsyncGenerator[Batch]:
    """The encoded batches of an open source; reads the next one while one is in use.

    It counts events read, and expired sessions, in ``moved``.
    """
    queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(maxsize=1)

    async def read() -> None:
        gathering = Gathering(hooks)
        async with aclosing(_unexpired(source, selection, moved)) as items:
            async for item in items:
                for batch in gathering.add(item):
                    await queue.put(batch)
        for batch in gathering.end():
            await queue.put(batch)

    async def read_to_the_end() -> None:
        try:
            await read()
        except Exception as error:  # noqa: BLE001  raised in the loop below
            await queue.put(error)
        else:
            await queue.put(None)

    reading = asyncio.create_task(read_to_the_end())
    try:
        while (batch := await queue.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        reading.cancel()
        await asyncio.wait([reading])


async def _unexpired(
    source: records.Source, selection: records.Selection, moved: records.Moved
) -> AsyncGenerator[records.Item]:
    """The items of a source without expired sessions; both are counted."""
    has_expired = False
    async with aclosing(source.read(selection)) as items:
        async for item in items:
            moved.read += isinstance(item, Event)
            if isinstance(item, records.SessionHeader):
                has_expired = item.has_expired(platform_time.get_time())
                moved.expired += has_expired
            if not (has_expired and isinstance(item, records.SessionHeader | Event)):
                yield item


def _conflict(incoming: Incoming, planned: Plan) -> records.Problem:
    return records.Problem(records.named(incoming.key), planned.reason)


def _state_conflict(state: StatePlan) -> records.Problem:
    return records.Problem(str(state.state.shared), "it was changed in the target")
