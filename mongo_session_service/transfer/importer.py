"""The move: a source's sessions into a ``MongoSessionService``.

Reading and decoding go on while a batch is being written. What is there already is
compared rather than written, so the same move, run again, finishes what was broken off
and catches up with what changed in the source since.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final

from mongo_session_service.driver.authorization import naming_privileges
from mongo_session_service.driver.errors import translated
from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.service import MongoSessionService

from .batches import Batch, Incoming
from .claims import ChangedError
from .large import LargeSession
from .moved import CAREFUL, Moved, Policies
from .reading import read_ahead
from .reconcile import Plan, Standing, plan
from .records import EVERYTHING, Problem, Selection, Source, named
from .target import StatePlan, Target

_ATTEMPTS: Final = 5


async def move(
    source: Source,
    service: MongoSessionService,
    selection: Selection = EVERYTHING,
    policies: Policies = CAREFUL,
    *,
    on_problem: Callable[[Problem], None] = lambda _: None,
    on_progress: Callable[[Moved], None] = lambda _: None,
) -> Moved:
    """Move what is selected of an open source; safe to repeat and to break off.

    Args:
        source: Where the sessions are; it is only read.
        service: Where they go, with transactions.
        selection: Which of them.
        policies: What to do about conflicts and problems.
        on_problem: Told of each problem and conflict that is skipped.
        on_progress: Told after each batch.

    Raises:
        ConflictError: the target has something else under an id, and ``on_conflict`` is
            ``fail``. What was moved before stays.
        TransferError: something cannot be read or stored, and ``on_error`` is ``fail``.
            A dry run tells all of that instead.
    """
    with translated():
        # Before setup, which would put its indexes on another service's collections.
        opened = await service._clients.opened()  # noqa: SLF001  of the same package
        target = Target(opened.connection, is_read_only=policies.is_dry_run)
        mover = _Mover(target, policies, on_problem)
        async with naming_privileges(opened.connection):
            await mover.target.check()
            if not policies.is_dry_run:
                await service.setup()
            reading = read_ahead(source, selection, target.hooks, mover.moved)
            async with aclosing(reading) as batches:
                async for batch in batches:
                    await mover.take(batch)
                    on_progress(mover.moved)
    return mover.moved


class _Mover:
    """Takes batches one by one, and counts what becomes of them."""

    def __init__(
        self, target: Target, policies: Policies, on_problem: Callable[[Problem], None]
    ) -> None:
        self.target = target
        self.moved = Moved(started=time.time())
        self._policies = policies
        self._on_problem = on_problem
        self._large: LargeSession | None = None

    async def take(self, batch: Batch) -> None:
        """Bring the target to what a batch says."""
        for problem in batch.problems:
            if self._policies.on_error == "fail" and not self._policies.is_dry_run:
                message = (
                    f"Cannot be moved: {problem}. What was moved before stays; to go"
                    " on without this, skip errors."
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
        """Plan, and write as planned; the target may have changed in between."""
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
        """Parts of a large session come one by one, and in order."""
        [part] = batch.sessions
        if self._large is None or part.offset == 0:
            self._large = LargeSession(
                self.target,
                is_dry_run=self._policies.is_dry_run,
                is_to_replace=self._is_to_replace,
            )
        await self._large.take(part)
        if part.is_last:
            large, self._large = self._large, None
            conflict = Problem(named(part.key), large.reason)
            self._count(conflict, large.standing, large.written)

    def _is_written(self, planned: Plan | StatePlan, conflict: Problem) -> bool:
        if planned.standing is Standing.CONFLICT:
            return self._is_to_replace(conflict)
        return planned.is_lacking

    def _is_to_replace(self, conflict: Problem) -> bool:
        if self._policies.on_conflict == "fail":
            message = (
                f"The target holds something else: {conflict}. It was left as it is;"
                " choose to skip or to replace what conflicts."
            )
            raise ConflictError(message)
        return self._policies.on_conflict == "replace"

    def _count(self, conflict: Problem, standing: Standing, written: int) -> None:
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


def _conflict(incoming: Incoming, planned: Plan) -> Problem:
    return Problem(named(incoming.key), planned.reason)


def _state_conflict(state: StatePlan) -> Problem:
    return Problem(str(state.state.shared), "it was changed in the target")
