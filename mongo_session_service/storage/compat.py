"""Client libraries: how PyMongo, Motor and mongomock-motor differ.

What the package uses of PyMongo that is not its public interface is all here; a test
compares it with the PyMongo that is installed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.errors import PyMongoError

from mongo_session_service.errors import ConfigurationError
from mongo_session_service.storage.translation import is_logged_out, is_starting

logger = logging.getLogger(__name__)

MAJORITY: Final = WriteConcern("majority")
_JOURNALED: Final = WriteConcern("majority", j=True)


async def renew_connections(client: Any, error: PyMongoError) -> bool:
    """Replace a client's idle connections if an error came from an outdated one.

    False if it did not.
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


def current_cursor(stream: Any) -> object:
    """Return the cursor of a change stream, which changes when it is resumed.

    None before its first use, when Motor has not opened it.
    """
    stream = getattr(stream, "delegate", stream)  # in Motor's is PyMongo's
    return getattr(stream, "_cursor", None)


def is_buffering(cursor: object) -> bool:
    """Tell whether a cursor has documents that were fetched and not yet read."""
    return bool(getattr(cursor, "_data", ()))


class Driver(Enum):
    """Client library of a connection."""

    PYMONGO = "PyMongo"
    MOTOR = "Motor"
    MOCK = "mongomock-motor"

    @classmethod
    def detect(cls, client: object) -> Driver:
        """Return the library that a client belongs to; refuse any other object."""
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

    async def open_cursor(self, cursor: Any) -> Any:
        """Open an aggregation or change stream, which only PyMongo has to await."""
        return await cursor if self is Driver.PYMONGO else cursor

    async def fetch_all(self, aggregation: Any) -> list[dict[str, Any]]:
        """Return all results of an aggregation."""
        cursor = await self.open_cursor(aggregation)
        results: list[dict[str, Any]] = await cursor.to_list(None)
        return results

    def blocking_database(self, database: Any) -> tuple[Any, Callable[[], None]]:
        """Return a database for a thread without an event loop, and what closes it.

        A client of PyMongo's belongs to its event loop, so it gets a synchronous twin
        with the same settings. Those of Motor and mongomock-motor have one inside.
        """
        if self is not Driver.PYMONGO:
            return database.delegate, lambda: None
        settings = database.client._init_kwargs  # noqa: SLF001  as its own copies do
        client: MongoClient[Any] = MongoClient(**settings)
        return client.get_database(database.name), client.close

    def is_sharded(self, client: Any) -> bool:
        """Tell whether a client speaks to a mongos, as far as it knows."""
        if self is Driver.MOCK:
            return False
        client = client.delegate if self is Driver.MOTOR else client
        name = client.topology_description.topology_type_name
        return name in {"Sharded", "LoadBalanced"}

    def known_primary(self, client: Any) -> object:
        """Return the primary and its term, as far as the client knows them."""
        if self is Driver.MOCK:
            return None
        client = client.delegate if self is Driver.MOTOR else client
        for each in client.topology_description.server_descriptions().values():
            if each.is_writable:
                return each.address, each.election_id
        return None


def warn_of_unused_concerns(client: Any) -> None:
    """Warn of a client's read preference and concerns that are not used."""
    if client.read_preference != ReadPreference.PRIMARY:
        logger.warning(
            "The client's read preference (%s) is not used: the primary answers, since"
            " another member may not have the latest write yet.",
            client.read_preference.mongos_mode,
        )
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
    """Return the write concern of every write through a client."""
    return _JOURNALED if client.write_concern.document.get("j") else MAJORITY
