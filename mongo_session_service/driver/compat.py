"""PyMongo's ``AsyncMongoClient``, Motor and mongomock-motor: which one a client is."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import ConfigurationError as DriverConfigurationError

from mongo_session_service.errors import ConfigurationError

from .starting import is_starting, renew_connections


class Driver(Enum):
    """Which client library a connection speaks through."""

    PYMONGO = "PyMongo"
    MOTOR = "Motor"
    MOCK = "mongomock-motor"

    @classmethod
    def of(cls, client: object) -> Driver:
        """The driver a client belongs to.

        Raises:
            ConfigurationError: it is none of the three.
        """
        # mongomock-motor's client says it is Motor's; its bases do not lie.
        bases = {base.__module__.partition(".")[0] for base in type(client).__mro__}
        if "mongomock_motor" in bases:
            return cls.MOCK
        if isinstance(client, AsyncMongoClient):
            return cls.PYMONGO
        motor = sys.modules.get("motor.motor_asyncio")
        if motor and isinstance(client, motor.AsyncIOMotorClient):
            return cls.MOTOR
        if isinstance(client, MongoClient):
            message = (
                "client is a synchronous MongoClient, which would block the event"
                " loop. Pass a pymongo.AsyncMongoClient, or a URI instead."
            )
            raise ConfigurationError(message)
        message = (
            "client must be a pymongo.AsyncMongoClient, a Motor AsyncIOMotorClient or"
            f" a mongomock-motor AsyncMongoMockClient, not {type(client).__name__}."
        )
        raise ConfigurationError(message)


@asynccontextmanager
async def session_of(client: Any, driver: Driver) -> AsyncIterator[Any]:
    """A session of the driver's, causally consistent as they are by default."""
    starting = client.start_session()
    if driver is Driver.MOTOR:
        starting = await starting
    async with starting as session:
        try:
            yield session
        except DriverConfigurationError as error:
            if is_starting(error):
                await renew_connections(client)
            raise


async def opened(cursor: Any, driver: Driver) -> Any:
    """The cursor of an aggregation or a change stream, for which PyMongo has to ask."""
    return await cursor if driver is Driver.PYMONGO else cursor


async def results_of(aggregate: Any, driver: Driver) -> list[dict[str, Any]]:
    """All results of an aggregation."""
    cursor = await opened(aggregate, driver)
    results: list[dict[str, Any]] = await cursor.to_list(None)
    return results


def primary_of(client: Any, driver: Driver) -> object:
    """What tells a primary, and its time as one, from others; as far as is known."""
    client = client.delegate if driver is Driver.MOTOR else client
    servers = client.topology_description.server_descriptions().values()
    return next(
        ((each.address, each.election_id) for each in servers if each.is_writable), None
    )
