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
from dataclasses import dataclass, field
from typing import Final

from pymongo.errors import PyMongoError

from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.service import MongoSessionService, connection_of
from mongo_session_service.transfer.comparison import (
    ComparisonResult,
    SessionPlan,
    StatePlan,
)
from mongo_session_service.transfer.import_batches import Batch, encoded_batches
from mongo_session_service.transfer.import_target import ChangedError, ImportTarget
from mongo_session_service.transfer.source_items import (
    CAREFUL,
    EVERYTHING,
    Moved,
    Policies,
    Problem,
    Selection,
    Source,
)

_IMPORT_ATTEMPTS: Final = 5
"""How often a batch is planned again because the target has changed."""


async def move(
    source: Source,
    service: MongoSessionService,
    selection: Selection = EVERYTHING,
    policies: Policies = CAREFUL,
    *,
    on_problem: Callable[[Problem], None] = lambda _: None,
    on_progress: Callable[[Moved], None] = lambda _: None,
) -> Moved:
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
    # Before setup: that would create indexes on another service's collections.
    async with connection_of(service) as connection:
        target = ImportTarget(connection, is_read_only=policies.is_dry_run)
        importer = _Importer(target, policies, on_problem)
        await target.refuse_other_layouts()
        if not policies.is_dry_run:
            await service.setup()
        batches = encoded_batches(source, selection, target.hooks)
        try:
            async with aclosing(_read_ahead(batches)) as reading:
                async for batch in reading:
                    await importer.store_batch(batch)
                    on_progress(importer.moved)
        except TransferError:
            with suppress(PyMongoError):  # else it expires
                await target.release_places()
            raise
    return importer.moved


@dataclass(slots=True)
class _Importer:
    """Writes batches one by one, and counts the results."""

    target: ImportTarget
    policies: Policies
    on_problem: Callable[[Problem], None]
    moved: Moved = field(default_factory=lambda: Moved(time.time()))
    conflict: Problem | None = None
    """In an earlier part of the session whose parts are being imported."""
    written: int = 0
    """Events of its earlier parts that were written."""

    async def store_batch(self, batch: Batch) -> None:
        """Store a batch in the target, as far as the target lacks it."""
        self.moved.read += batch.events_read
        self.moved.expired += batch.expired
        for problem in batch.problems:
            self._leave_out(problem, "on_error", TransferError)
            self.moved.problems += 1
        for conflict in batch.conflicts:
            self._leave_out(conflict, "on_conflict", ConflictError)
            self.moved.skipped += 1
        for _ in range(_IMPORT_ATTEMPTS):
            with suppress(ChangedError):
                await self._store(batch)
                return
        message = "Sessions in the target changed during the import; stop its writers."
        raise ConflictError(message)

    async def _store(self, batch: Batch) -> None:
        sessions = await self.target.plan_sessions(batch.sessions)
        # Some services store an empty row for each user.
        shared = [each for each in batch.states.values() if each.state]
        states = await self.target.plan_states(shared)
        if not self.policies.is_dry_run:
            await self.target.write(
                [each for each in sessions if self._is_written(each)],
                [each for each in states if self._is_written(each)],
            )
        for session in sessions:
            self._count(session)
        for state in states:
            self._count_state(state)

    def _leave_out(
        self, problem: Problem, policy: str, kind: type[TransferError]
    ) -> None:
        """Leave out what cannot be moved, if the policy lets it."""
        if getattr(self.policies, policy) == "fail" and not self.policies.is_dry_run:
            raise kind(
                f"Cannot be moved: {problem}. What was moved before is kept. To"
                f" continue without it: {_choice(policy, 'skip')}."
            )
        self.on_problem(problem)

    def _replaces(self, planned: SessionPlan | StatePlan) -> bool:
        return self.policies.on_conflict == "replace" and planned.may_replace

    def _is_written(self, planned: SessionPlan | StatePlan) -> bool:
        if planned.comparison is not ComparisonResult.CONFLICT:
            # After a conflict in one part, the other parts are left alone, too.
            return planned.is_lacking and (self._replaces(planned) or not self.conflict)
        if self.policies.on_conflict == "fail":
            replacing = "; to replace it, 'replace' instead" * planned.may_replace
            raise ConflictError(
                f"The target holds something else: {planned.conflict}. It was left as"
                f" it is. To continue without it: {_choice('on_conflict', 'skip')}"
                f"{replacing}."
            )
        return self._replaces(planned)

    def _count(self, session: SessionPlan) -> None:
        self.written += len(session.incoming.appends) - session.matched
        if session.comparison is ComparisonResult.CONFLICT and not self.conflict:
            self.conflict = session.conflict
        if not session.incoming.is_last:
            return
        conflict, self.conflict = self.conflict, None
        written, self.written = self.written, 0
        moved = self.moved
        match session.comparison:
            case _ if conflict and self._replaces(session):
                moved.replaced += 1
                moved.events += written
            case _ if conflict:
                moved.skipped += 1
                self.on_problem(conflict)
            case ComparisonResult.SAME:
                moved.unchanged += 1
            case ComparisonResult.AHEAD:
                moved.ahead += 1
            case ComparisonResult.NEW:
                moved.new += 1
                moved.events += written
            case ComparisonResult.BEHIND:
                moved.caught_up += 1
                moved.events += written

    def _count_state(self, state: StatePlan) -> None:
        if state.comparison is ComparisonResult.AHEAD:
            self.moved.ahead_states += 1
        elif state.comparison is not ComparisonResult.CONFLICT:
            self.moved.states += state.comparison is not ComparisonResult.SAME
        elif self._replaces(state):
            self.moved.states += 1
        else:
            self.moved.skipped_states += 1
            self.on_problem(state.conflict)


async def _read_ahead(batches: AsyncGenerator[Batch]) -> AsyncGenerator[Batch]:
    """Yield batches, each of which is read while the one before is in use."""

    async def following() -> Batch | None:
        return await anext(batches, None)

    reading = asyncio.create_task(following())
    try:
        while (batch := await reading) is not None:
            reading = asyncio.create_task(following())
            yield batch
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await batches.aclose()


def _choice(policy: str, value: str) -> str:
    """Say how to choose a policy, in Python and in a terminal."""
    option = f"--{policy.replace('_', '-')} {value}"
    return f"Policies({policy}={value!r}) in Python, {option} in a terminal"
