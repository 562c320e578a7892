"""Writers whose batches are noted, or held up, in place of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import chain
from types import SimpleNamespace
from typing import Any

from mongo_session_service.model.records import Append
from mongo_session_service.sessions.writer import QueuedWrite, Verdict, Writer
from mongo_session_service.storage.database import ServerClock
from mongo_session_service.testing import Limits

LIMIT = 60.0


class Database:
    """Notes the batches that are committed; ``meet`` decides which ones fail."""

    def __init__(self, meet: Callable[[list[str]], Any] | None = None) -> None:
        self.batches: list[list[QueuedWrite]] = []
        self._meet = meet

    async def commit_batch(self, planned: list[QueuedWrite], *_: object) -> None:
        if self._meet is not None:
            await self._meet(names(planned))
        self.batches.append(planned)

    @property
    def stored(self) -> list[list[str]]:
        """The ids of the events of each batch."""
        return [names(each) for each in self.batches]

    @property
    def in_order(self) -> list[str]:
        return [*chain.from_iterable(self.stored)]


def names(planned: list[QueuedWrite]) -> list[str]:
    return [it.write.event["id"] for it in planned if isinstance(it.write, Append)]


def writer_of(database: Database, **limits: Any) -> Writer:
    connection = SimpleNamespace(
        write_timeout=LIMIT,
        has_transactions=True,
        clock=ServerClock(),
        database=SimpleNamespace(name="database"),
        limits=Limits(**limits),
    )
    return Writer(connection, database.commit_batch, not_judged)  # type: ignore[arg-type]


async def not_judged(*_: object) -> Verdict:
    raise AssertionError("A batch that is committed is not judged.")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Gate:
    """Holds batches up until it is opened."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._is_open = asyncio.Event()

    async def pass_through(self, ids: list[str]) -> None:
        self.waiting += ids
        await self._is_open.wait()

    def open(self) -> None:
        self._is_open.set()
