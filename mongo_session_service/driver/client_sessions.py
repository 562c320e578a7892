"""Client sessions that are kept, so that others can end what their owner leaves.

A process that dies in a transaction leaves its locks for 60 to 90 seconds. The ids of
its client sessions stand beside the lease that it holds; who takes over that ends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document


class ClientSessions:
    """A few client sessions of one connection, opened when they are needed."""

    def __init__(self, connection: Connection, most: int) -> None:
        self._connection, self._most = connection, most
        self._opened: list[Any] = []
        self._idle: list[Any] = []

    async def ids(self) -> list[Document]:
        """The ids of all of them; none where there are no transactions."""
        await self._open_all()
        return [each.session_id for each in self._opened]

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Any]:
        """One that nobody else uses meanwhile; None if there is none."""
        await self._open_all()
        session = self._idle.pop() if self._idle else None
        try:
            yield session
        finally:
            if session is not None:
                self._idle.append(session)

    async def end_all(self) -> None:
        """End them; the next use opens new ones."""
        ended, self._opened, self._idle = self._opened, [], []
        for each in ended:
            await each.end_session()

    async def _open_all(self) -> None:
        at = self._connection
        while at.has_transactions and len(self._opened) < self._most:
            session = await at.start_session(causal_consistency=False)
            self._opened.append(session)
            self._idle.append(session)
