"""Which changes are handled at once, and which after each other."""

from __future__ import annotations

import asyncio

import pytest

from mongo_session_service.consumers.handler import KeyedTaskPool, end_tasks

APP, USER, SESSION = ("a",), ("a", "u"), ("a", "u", "s")


class Course:
    """Work that begins and ends when it is let."""

    def __init__(self, width: int) -> None:
        self._pool = KeyedTaskPool(width)
        self.begun: list[int] = []
        self.ends: list[asyncio.Future[bool]] = []
        self.tasks: list[asyncio.Task[bool]] = []

    def start(self, *keys: tuple[str, ...]) -> None:
        """Start work in each of these keys."""
        for key in keys:
            number = len(self.tasks)
            self.ends.append(asyncio.get_running_loop().create_future())

            async def work(number: int = number) -> bool:
                self.begun.append(number)
                return await self.ends[number]

            self.tasks.append(self._pool.submit(key, work))

    async def settle(self) -> list[int]:
        """What has begun when nothing else can."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.begun


@pytest.mark.parametrize(
    ("first", "second"),
    [(SESSION, SESSION), (APP, SESSION), (SESSION, APP), (USER, APP), (USER, SESSION)],
)
async def test_related_work_keeps_its_order(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """In a session, and around what sessions share."""
    course = Course(width=9)
    course.start(first, second)

    assert await course.settle() == [0]
    course.ends[0].set_result(True)
    assert await course.settle() == [0, 1]
    await end_tasks(course.tasks)
