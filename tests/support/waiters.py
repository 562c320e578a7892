"""Callers who wait for turns, as a test sees them."""

from __future__ import annotations

from mongo_session_service import MongoSessionService
from mongo_session_service.turns.waiting_line import Waiter, WaitingLine
from support.subscriptions import until


async def in_line(service: MongoSessionService, count: int) -> None:
    """Return when so many of a service wait, and the turn was looked at for each."""

    def waiting() -> list[Waiter]:
        lines = service._backends.parts(WaitingLine).values()  # noqa: SLF001
        waiters = (it for each in lines for it in each._lines.values())  # noqa: SLF001
        return [each for line in waiters for each in line if each.create_time]

    await until(lambda: len(waiting()) == count)
