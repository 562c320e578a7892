"""Handler lanes: changes of different sessions at once, related ones in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, TypeAlias

from mongo_session_service.changes.decoder import LogRecord, StateSet
from mongo_session_service.model.records import SessionKey

Lane: TypeAlias = tuple[str, ...]
"""An app, a user or a session. Lanes are related if one begins with the other."""


_OF_SESSION: Final = len(SessionKey._fields)


def lane_of(item: LogRecord) -> Lane:
    """Return the lane of a change: the app, user or session that it concerns."""
    if not isinstance(item, StateSet):
        return tuple(item.key)
    owner = (item.app_name, item.user_id)
    return tuple(part for part in owner if part is not None)


class Lanes:
    """Runs work, some at once, and after all related work that was started before."""

    def __init__(self, width: int) -> None:
        self._room = asyncio.Semaphore(width)
        self._last: dict[Lane, asyncio.Task[bool]] = {}

    def start_in_lane(
        self, lane: Lane, work: Callable[[], Coroutine[None, None, bool]]
    ) -> asyncio.Task[bool]:
        """Start work, whose result is whether it was done; False if one before was not.

        It begins as soon as there is room, and related work has ended.
        """
        before = [self._last[each] for each in self._related_lanes(lane)]
        task = asyncio.create_task(self._run_after(before, work))
        self._last[lane] = task
        return task

    def _related_lanes(self, lane: Lane) -> list[Lane]:
        parts = [lane[:length] for length in range(1, len(lane))]
        found = [each for each in (*parts, lane) if each in self._last]
        if len(lane) < _OF_SESSION:
            size = len(lane)
            longer = (each for each in self._last if len(each) > size)
            found += [each for each in longer if each[:size] == lane]
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
