"""Setup: creation of collections and indexes, as far as the server permits it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pymongo import IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure
from pymongo.write_concern import WriteConcern

from mongo_session_service.driver import server
from mongo_session_service.driver.compat import Driver
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.translation import UNAUTHORIZED
from mongo_session_service.schema.indexes import INDEXES, Index
from mongo_session_service.schema.version import (
    SCHEMA_VERSION,
    check_version,
    record_version,
    recorded_version,
)

logger = logging.getLogger(__name__)

LARGE: Final = 10_000
"""Documents; an index of fewer is built in about a tenth of a second."""
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
_INDEXED: Final = ("sessions", "events")
_PRIMARY_ONLY: Final = WriteConcern(w=1)
"""For what is created before the version is recorded: a majority confirms that, and by
the order of the oplog all that came before. What a failover takes back later is noticed
as any other loss is."""


class Layout(NamedTuple):
    """What a database lacks after it was set up."""

    missing: frozenset[str]
    """The names of the indexes that do not exist."""
    is_to_be_built: bool
    """Whether an index was left out since a call would have waited for its build."""


async def set_up(connection: Connection, *, builds: bool = True) -> Layout:
    """Check the server, and create what is missing; safe to repeat and to race.

    Where nothing is missing, one round trip follows the server's greeting. Without
    ``builds``, no index of a large collection is built. If something cannot be created,
    because the user lacks a privilege or something else is in its place, a warning is
    logged and the service works without it.

    Raises:
        ConfigurationError: the server is not MongoDB, too old, or without transactions.
        SchemaVersionError: the data was written by a newer release.
    """
    attempts = _Attempts(connection)
    if connection.driver is not Driver.MOCK:
        # Alone: of several tasks that PyMongo keeps waiting for a server, one that is
        # cancelled can wait for ever.
        hello = await server.greeted(connection.client)
        await server.check_product(connection, hello)
        server.check_server(hello, transactions=connection.has_transactions)
    is_recorded, found = await asyncio.gather(
        check_version(connection), _find(attempts)
    )
    left = await _create_missing(attempts, found, builds=builds)
    if not is_recorded:
        with attempts.at("the schema version"):
            await record_version(connection)
    attempts.warn()
    failed = [each for each in INDEXES if _named(connection, each) in attempts.failed]
    return Layout(frozenset(each.name for each in (*failed, *left)), bool(left))


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
    of = await asyncio.gather(*(_described(connection, each) for each in _INDEXED))
    found = dict(zip(_INDEXED, of, strict=True))
    return [index for index in INDEXES if not index.is_like(found[index.collection])]


async def _described(connection: Connection, collection: str) -> dict[str, Any]:
    described: dict[str, Any] = await getattr(
        connection, collection
    ).index_information()
    return described


async def create_index(connection: Connection, index: Index) -> None:
    """Create an index that is not part of every setup.

    Raises:
        OperationFailure: it cannot be created.
    """
    collection = getattr(connection, index.collection)
    await collection.create_index(index.directed, **index.options)


async def has_index(connection: Connection, index: Index) -> bool:
    """Whether an index exists as it is defined."""
    return index.is_like(
        await getattr(connection, index.collection).index_information()
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a database lacks."""

    collections: frozenset[str]
    indexes: list[Index]


class _Attempts:
    """What could not be created, and why."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.failed: dict[str, str] = {}

    @contextmanager
    def at(self, *things: str) -> Iterator[None]:
        """Try to create something that the service works without."""
        try:
            yield
        except OperationFailure as error:
            if error.code not in _WORKS_WITHOUT:
                raise
            self.failed |= dict.fromkeys(things, _WORKS_WITHOUT[error.code])

    def warn(self) -> None:
        """Log it all at once."""
        if not self.failed:
            return
        logger.warning(
            "Not all could be created in database %r: %s. The service works without,"
            " but slower. Remove the cause, then call setup() as a user with the role"
            " that `mongo-session-service grants` prints.",
            self.connection.database.name,
            "; ".join(f"{what} ({why})" for what, why in self.failed.items()),
        )


async def _find(attempts: _Attempts) -> _Found:
    collections, indexes = await asyncio.gather(
        _missing_collections(attempts), _missing_indexes(attempts)
    )
    return _Found(collections, indexes)


async def _missing_collections(attempts: _Attempts) -> frozenset[str]:
    database, prefix = attempts.connection.database, attempts.connection.prefix
    with attempts.at("collections"):
        there = {*await database.list_collection_names()}
        return frozenset(each for each in _NEEDED if f"{prefix}{each}" not in there)
    return frozenset()


async def _missing_indexes(attempts: _Attempts) -> list[Index]:
    # Creating an index that exists would need the privilege as well.
    with attempts.at(*(_named(attempts.connection, each) for each in INDEXES)):
        return await missing_indexes(attempts.connection)
    return []


async def _create_missing(
    attempts: _Attempts, found: _Found, *, builds: bool
) -> list[Index]:
    """Create what was not found; the indexes that were left out."""
    new = set(found.collections)
    left: list[Index] = []
    for name in _INDEXED:
        lacking = [each for each in found.indexes if each.collection == name]
        keeps_waiting = (
            lacking
            and not builds
            and name not in new
            and await _is_large(attempts.connection, name)
        )
        if keeps_waiting:
            left += lacking
        elif lacking and await _have_created(attempts, name, lacking):
            new.discard(name)
    for name in sorted(new):
        with attempts.at(f"collection {attempts.connection.prefix + name!r}"):
            await _create_collection(attempts.connection, name)
    return left


async def _is_large(connection: Connection, name: str) -> bool:
    count: int = await getattr(connection, name).estimated_document_count()
    return count > LARGE


async def _have_created(attempts: _Attempts, name: str, lacking: list[Index]) -> bool:
    """Create indexes, with their collection if it does not exist; whether all exist."""
    collection = _unconfirmed(attempts.connection, name)
    models = [IndexModel(each.directed, **each.options) for each in lacking]
    try:
        await collection.create_indexes(models)
    except OperationFailure as error:
        if error.code not in _WORKS_WITHOUT:
            raise
    else:
        return True
    for index in lacking:  # One that fails does not keep the others from it.
        with attempts.at(_named(attempts.connection, index)):
            await collection.create_index(index.directed, **index.options)
    return False


async def _create_collection(connection: Connection, name: str) -> None:
    options: dict[str, Any] = {}
    if connection.driver is not Driver.MOCK:
        options = {"write_concern": _PRIMARY_ONLY, "check_exists": False}
    with suppress(CollectionInvalid):
        try:
            await connection.database.create_collection(
                connection.prefix + name, **options
            )
        except OperationFailure as error:
            if error.code != _NAMESPACE_EXISTS:
                raise


def _unconfirmed(connection: Connection, name: str) -> Any:
    collection = getattr(connection, name)
    if connection.driver is Driver.MOCK:
        return collection
    return collection.with_options(write_concern=_PRIMARY_ONLY)


def _named(connection: Connection, index: Index) -> str:
    return f"index {index.name!r} of {getattr(connection, index.collection).name!r}"
