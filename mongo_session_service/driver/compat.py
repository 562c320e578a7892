"""Differences between PyMongo, Motor and mongomock-motor, and workarounds for them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from pymongo import AsyncMongoClient, MongoClient, WriteConcern
from pymongo.errors import PyMongoError

from mongo_session_service.driver.translation import is_logged_out, is_starting
from mongo_session_service.errors import ConfigurationError


async def renew_connections(client: Any, error: PyMongoError) -> bool:
    """Replace a client's idle connections if an error came from an outdated one.

    False if it did not, so that a retry would not help.
    """
    if not is_starting(error) and not is_logged_out(error):
        return False
    asynchronous = isinstance(client, AsyncMongoClient)
    client = client if asynchronous else client.delegate
    has_login = client.options.pool_options._credentials is not None  # noqa: SLF001
    if is_logged_out(error) and not has_login:
        return False
    for server in list(client._topology._servers.values()):  # noqa: SLF001
        resetting = server.pool.reset_without_pause()
        if asynchronous:
            await resetting
    return True


class Driver(Enum):
    """Which client library a connection speaks through."""

    PYMONGO = "PyMongo"
    MOTOR = "Motor"
    MOCK = "mongomock-motor"

    @classmethod
    def of(cls, client: object) -> Driver:
        """The driver a client belongs to.

        Raises:
            ConfigurationError: it is another object.
        """
        # mongomock-motor's client claims to be Motor's; its base classes do not.
        bases = {base.__module__.partition(".")[0] for base in type(client).__mro__}
        if "mongomock_motor" in bases:
            return cls.MOCK
        if isinstance(client, AsyncMongoClient):
            return cls.PYMONGO
        motor = sys.modules.get("motor.motor_asyncio")
        if motor and isinstance(client, motor.AsyncIOMotorClient):
            return cls.MOTOR
        if isinstance(client, MongoClient):
            raise ConfigurationError(
                "client is a synchronous MongoClient, which would block the event"
                " loop. Pass a pymongo.AsyncMongoClient, or a URI instead."
            )
        raise ConfigurationError(
            "client must be a pymongo.AsyncMongoClient, a Motor AsyncIOMotorClient or"
            f" a mongomock-motor AsyncMongoMockClient, not {type(client).__name__}."
        )

    async def opened(self, cursor: Any) -> Any:
        """The cursor of an aggregation or change stream, which PyMongo has to await."""
        return await cursor if self is Driver.PYMONGO else cursor

    async def results(self, aggregate: Any) -> list[dict[str, Any]]:
        """All results of an aggregation."""
        results: list[dict[str, Any]] = await (await self.opened(aggregate)).to_list(
            None
        )
        return results

    def blocking(self, database: Any) -> tuple[Any, Callable[[], None]]:
        """The same database for a thread without an event loop, and what closes it.

        A client of PyMongo's belongs to its event loop, so it gets a synchronous twin
        with the same settings. Those of Motor and mongomock-motor have one inside.
        """
        if self is not Driver.PYMONGO:
            return database.delegate, lambda: None
        settings = database.client._init_kwargs  # noqa: SLF001  as its own copies do
        client: MongoClient[Any] = MongoClient(**settings)
        return client.get_database(database.name), client.close

    def is_sharded(self, client: Any) -> bool:
        """Whether it speaks to a mongos, as far as the client knows."""
        if self is Driver.MOCK:
            return False
        client = client.delegate if self is Driver.MOTOR else client
        name = client.topology_description.topology_type_name
        return name in {"Sharded", "LoadBalanced"}

    def primary(self, client: Any) -> object:
        """What identifies a primary and its term, as far as the client knows them."""
        client = client.delegate if self is Driver.MOTOR else client
        servers = client.topology_description.server_descriptions().values()
        found = (
            (each.address, each.election_id) for each in servers if each.is_writable
        )
        return next(found, None)


logger = logging.getLogger(__name__)

MAJORITY: Final = WriteConcern("majority")
_JOURNALED: Final = WriteConcern("majority", j=True)


def check(client: Any) -> None:
    """Warn of settings of a client that are not used."""
    if client.read_concern.level == "linearizable":
        logger.warning(
            "The client's read concern (linearizable) is not used: sessions are read"
            " from several collections, in a majority-committed snapshot."
        )
    asked = client.write_concern.document
    unkept = [
        f"{option}={value}"
        for option, value in asked.items()
        if (option, value) not in {("w", "majority"), ("j", True)}
    ]
    if unkept:
        logger.warning(
            "The client's write concern (%s) is not used: each write waits until a"
            " majority of the members has it, because it could be lost otherwise.",
            ", ".join(unkept),
        )


def write_concern(client: Any) -> WriteConcern:
    """The write concern of every write through a client."""
    return _JOURNALED if client.write_concern.document.get("j") else MAJORITY
