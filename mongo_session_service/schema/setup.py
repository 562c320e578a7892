"""Setup: creation of collections and indexes, as far as the server permits it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pymongo.errors import CollectionInvalid, OperationFailure

from mongo_session_service.driver import server
from mongo_session_service.driver.compat import Driver
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import UNAUTHORIZED, refusal_of
from mongo_session_service.schema.indexes import INDEXES, Index
from mongo_session_service.schema.version import (
    SCHEMA_VERSION,
    check_version,
    record_first_version,
    recorded_version,
)

logger = logging.getLogger(__name__)

_WORKS_WITHOUT: Final = {
    UNAUTHORIZED: "the user lacks the privilege",
    11000: "the data holds an event twice",
    85: "another index of the same keys exists, and is not changed",
    86: "another index of that name exists, and is not changed",
}
_NAMESPACE_EXISTS: Final = 48
_NEEDED: Final = (
    *("sessions", "events", "app_states", "user_states"),
    *("checkpoints", "leases", "dead_letters", "metadata"),
)
"""A transaction that has to create its collection conflicts with all others."""


async def set_up(connection: Connection) -> frozenset[str]:
    """Check the server, and create what is missing; safe to repeat and to race.

    Returns the names of the indexes that do not exist. If something cannot be created,
    because the user lacks a privilege or something else is in its place, a warning is
    logged and the service works without it.

    Raises:
        ConfigurationError: the server is too old, or has no transactions.
        SchemaVersionError: the data was written by a newer release.
    """
    if connection.driver is not Driver.MOCK:
        hello = await server.greeted(connection.client)
        server.check_server(hello, transactions=connection.has_transactions)
    is_recorded = await check_version(connection)
    attempts = await _attempt_layout(connection)
    if not is_recorded:
        with attempts.at("the schema version"):
            await record_first_version(connection)
    attempts.warn()
    return frozenset(
        each.name for each in INDEXES if _named(connection, each) in attempts.failed
    )


async def is_undone(connection: Connection, missing: frozenset[str]) -> bool:
    """Whether more indexes are missing than when it was set up, or the data is newer.

    Whatever is dropped, renamed or restored takes its indexes along.
    """
    gone = {each.name for each in await missing_indexes(connection)} - missing
    if gone:
        logger.warning(
            "Indexes are gone from database %r: %s. Its collections were dropped,"
            " renamed or restored, or their indexes dropped. The next call sets up"
            " again; events may have been stored twice since.",
            connection.database.name,
            ", ".join(sorted(gone)),
        )
    version = await recorded_version(connection)
    return bool(gone) or (version or 0) > SCHEMA_VERSION


async def missing_indexes(connection: Connection) -> list[Index]:
    """The indexes that do not exist, or differ from their definition."""
    found = {
        name: await getattr(connection, name).index_information()
        for name in {index.collection for index in INDEXES}
    }
    return [index for index in INDEXES if not index.is_like(found[index.collection])]


async def create_layout(connection: Connection) -> None:
    """Create what is missing; what exists is never dropped, nor built again.

    A warning names what cannot be created.
    """
    (await _attempt_layout(connection)).warn()


class _Attempts:
    """What could not be created, and why."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.failed: dict[str, str] = {}

    @contextmanager
    def at(self, *things: str) -> Iterator[None]:
        """Try to create something that the service works without."""
        try:
            yield
        except OperationFailure as error:
            if error.code not in _WORKS_WITHOUT:
                raise
            why = _WORKS_WITHOUT[error.code]
            if error.code == UNAUTHORIZED:
                refusal = refusal_of(error)
                prefix = self._connection.prefix
                missing = server.missing_privileges(refusal, prefix) if refusal else []
                why = f"{why} {', '.join(map(str, missing))}".rstrip()
            self.failed |= dict.fromkeys(things, why)

    def warn(self) -> None:
        """Log it all at once."""
        if not self.failed:
            return
        logger.warning(
            "Not all could be created in database %r: %s. The service works without,"
            " but slower. Remove the cause, then call setup() as a user with the role"
            " that `mongo-session-service grants` prints.",
            self._connection.database.name,
            "; ".join(f"{what} ({why})" for what, why in self.failed.items()),
        )


async def _attempt_layout(connection: Connection) -> _Attempts:
    attempts = _Attempts(connection)
    await _create_collections(connection, attempts)
    await _create_indexes(connection, attempts)
    return attempts


async def _create_collections(connection: Connection, attempts: _Attempts) -> None:
    with attempts.at("collections"):
        there = await connection.database.list_collection_names()
        needed = {f"{connection.prefix}{each}" for each in _NEEDED}
        for name in sorted(needed - {*there}):
            with attempts.at(f"collection {name!r}"), suppress(CollectionInvalid):
                try:
                    await connection.database.create_collection(name)
                except OperationFailure as error:
                    if error.code != _NAMESPACE_EXISTS:
                        raise


async def _create_indexes(connection: Connection, attempts: _Attempts) -> None:
    # Creating an index that exists would need the privilege as well.
    with attempts.at(*(_named(connection, each) for each in INDEXES)):
        for index in await missing_indexes(connection):
            collection = getattr(connection, index.collection)
            with attempts.at(_named(connection, index)):
                await collection.create_index(index.directed, **index.options)


def _named(connection: Connection, index: Index) -> str:
    return f"index {index.name!r} of {getattr(connection, index.collection).name!r}"
