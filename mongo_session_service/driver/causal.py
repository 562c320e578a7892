"""Reads from secondaries that are never behind what their service has seen.

A secondary may lag. So a service remembers the latest time on MongoDB's clock that it
has heard of, whether from a write of its own or from a change it was told of, and has
the secondary wait until it has come as far.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.errors import ExecutionTimeout

from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.compat import Driver, results_of, session_of
from mongo_session_service.driver.retry import PATIENCE
from mongo_session_service.driver.snapshot_retry import SNAPSHOT, once_created
from mongo_session_service.driver.transactions import Latest, end

CATCHING_UP: Final = 5.0
"""Seconds a secondary has for a read, before the primary is asked instead."""
STRICTLY_CATCHING_UP: Final = PATIENCE
"""The same where the primary must not be asked."""


class Secondaries:
    """What a client's read preference lets be read, if it is not the primary."""

    @classmethod
    def of(cls, client: Any, driver: Driver, latest: Latest) -> Self | None:
        """What the client prefers to read; None if that is the primary."""
        if client.read_preference == ReadPreference.PRIMARY:
            return None
        return cls(client, driver, latest)

    def __init__(self, client: Any, driver: Driver, latest: Latest) -> None:
        self._client = client
        self._driver = driver
        self._latest = latest
        self._preference = client.read_preference
        self._is_strict = self._preference.mode == ReadPreference.SECONDARY.mode
        patience = STRICTLY_CATCHING_UP if self._is_strict else CATCHING_UP
        self._patience_ms = round(1000 * patience)

    async def read(
        self, collection: Any, pipeline: list[dict[str, Any]], batch_size: int
    ) -> list[dict[str, Any]] | None:
        """All results of an aggregation, from one point in time of every collection.

        None if no such server has caught up in time, and the primary may be asked.
        """
        try:
            return await once_created(
                lambda: self._read(collection, pipeline, batch_size)
            )
        except ExecutionTimeout:
            if self._is_strict:
                raise
            return None

    async def _read(
        self, collection: Any, pipeline: list[dict[str, Any]], batch_size: int
    ) -> list[dict[str, Any]]:
        there = collection.with_options(
            read_preference=self._preference, read_concern=SNAPSHOT
        )
        async with session_of(self._client, self._driver) as session:
            self._latest.bring_to(session)
            aggregate = there.aggregate(
                pipeline,
                session=session,
                batchSize=batch_size,
                maxTimeMS=self._patience_ms,
            )
            try:
                results = await results_of(aggregate, self._driver)
            except asyncio.CancelledError:
                # Of several members that may be asked, this may meet another.
                await uninterrupted(end(session, self._preference))
                raise
            self.heard_of(session.operation_time, session)
            return results

    def heard_of(self, time: Timestamp, session: Any) -> None:
        """The service has seen something of this time, which none may be behind.

        It was told in a session of the driver's.
        """
        self._latest.advance(time, None, session.cluster_time)
