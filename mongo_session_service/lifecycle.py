"""Opening and closing: what every method of the service begins with."""

from __future__ import annotations

from collections.abc import Coroutine
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from mongo_session_service.backend import Clients, Opened
from mongo_session_service.driver.authorization import naming_privileges
from mongo_session_service.driver.cancellation import cancellations, heed_cancellation
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.uri import Target
from mongo_session_service.schema.setup import set_up
from mongo_session_service.telemetry import traced


class Opening:
    """What one call uses of a service, which may fail and be cancelled meanwhile.

    Every call goes through it. So it is a class, where a generator for each concern
    would take four times as long.
    """

    __slots__ = ("_cancellations", "_connection", "_opening")

    def __init__(self, opening: Coroutine[Any, Any, Opened]) -> None:
        self._opening = opening

    async def __aenter__(self) -> Opened:
        self._cancellations = cancellations()
        opened = await self._opening
        self._connection = opened.connection
        return opened

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            heed_cancellation(self._cancellations)
        elif isinstance(exc, Exception):
            async with naming_privileges(self._connection):
                raise exc


class Lifecycle:
    """A service's connections, and their setup on first use."""

    def __init__(self, uri: str | None, client: Any, target: Target) -> None:
        self._clients = Clients(uri, client, target)
        self._is_set_up = False
        self._has_indexes = True
        self.database_name = target.database
        self._hooks = target.hooks

    @traced
    async def setup(self) -> None:
        """Creates collections and indexes, and checks the server.

        Done on first use too; call it at start-up to fail early. Safe to repeat.

        Raises:
            ConfigurationError: the server is too old, or is no replica set.
            SchemaVersionError: the data was written by a newer release.
        """
        opened = await self._clients.opened()
        async with naming_privileges(opened.connection):
            self._has_indexes = await set_up(opened.connection)
        self._is_set_up = True

    async def close(self) -> None:
        """Closes the clients this service opened, once appends under way are done.

        A later call opens new ones.
        """
        await self._clients.close()

    async def __aenter__(self) -> Self:
        await self.setup()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @traced
    async def ping(self) -> float:
        """Returns how many seconds MongoDB's primary took to answer; for health checks.

        Nothing is created. An outage is told after ``serverSelectionTimeoutMS``, which
        is 30 seconds unless the URI says otherwise: ``asyncio.timeout`` shortens it.

        Raises:
            StorageUnavailableError: there is no primary, or it does not answer.
        """
        async with self._connected() as opened:
            asked = perf_counter()
            await opened.connection.database.command("ping")
            return perf_counter() - asked

    def _connected(self) -> Opening:
        return Opening(self._ready(sets_up=False))

    def _opened(self) -> Opening:
        return Opening(self._ready(sets_up=True))

    async def _ready(self, *, sets_up: bool) -> Opened:
        opened = await self._clients.opened()
        if sets_up and not self._is_set_up:
            await self._set_up(opened.connection)
        opened.connection.has_event_index = self._has_indexes
        return opened

    async def _set_up(self, connection: Connection) -> None:
        async with naming_privileges(connection), connection.setup_lock:
            if not self._is_set_up:
                self._has_indexes = await set_up(connection)
                self._is_set_up = True
