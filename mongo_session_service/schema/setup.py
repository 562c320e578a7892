"""Setup: collections and indexes, as far as the server permits, and their version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from pymongo import IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure
from pymongo.write_concern import WriteConcern

from mongo_session_service.errors import SchemaVersionError
from mongo_session_service.schema.indexes import INDEXES, Index
from mongo_session_service.storage import server
from mongo_session_service.storage.compat import Driver
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.transactions import Txn
from mongo_session_service.storage.translation import UNAUTHORIZED

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
"""Version of the layout of documents that this release writes.

It rises when an earlier release would misread them: that one then refuses the data.
"""

_VERSION_ID: Final = {"_id": "schema"}

_WORKS_WITHOUT: Final = {
    UNAUTHORIZED: "the user lacks the privilege",
    11000: "the data holds an event twice",
    85: "another index of the same keys exists, and is not changed",
    86: "another index of that name exists, and is not changed",
}
_NAMESPACE_EXISTS: Final = 48
_NEEDED: Final = (
    *("sessions", "events", "app_states", "user_states", "partials"),
    *("checkpoints", "leases", "dead_letters", "metadata"),
)
"""A transaction that has to create its collection conflicts with all others."""
_INDEXED: Final = ("sessions", "events", "partials")
_PRIMARY_ONLY: Final = WriteConcern(w=1)
"""For what is created before the version is recorded: a majority confirms that, and by
the order of the oplog all that came before."""


class SetupResult(NamedTuple):
    """The indexes that a database lacks after it was set up."""

    missing: frozenset[str]
    """Their names."""
    is_to_be_built: bool
    """True if one was left out, since a call would have waited for its build."""


async def check(connection: Connection) -> None:
    """Refuse a server that cannot be used, and data of a newer release."""
    await _check_server(connection)
    refuse_newer(await recorded_version(connection))


async def _check_server(connection: Connection) -> None:
    if connection.driver is not Driver.MOCK:
        hello = await server.ask_hello(connection.client)
        connection.clock.set_by(hello)
        await server.check_product(connection.metadata, hello)
        server.check_server(hello, transactions=connection.has_transactions)


async def set_up(connection: Connection, *, builds: bool = True) -> SetupResult:
    """Check both, and create what is missing; safe to repeat and to race.

    Where nothing is missing, one round trip follows the server's greeting. Without
    ``builds``, no index of a large collection is built. If something cannot be created,
    because the user lacks a privilege or something else is in its place, a warning is
    logged and the service works without it.
    """
    attempts = _Attempts(connection)
    # Alone: of several tasks that PyMongo keeps waiting for a server, one that is
    # cancelled can wait for ever.
    await _check_server(connection)
    version, collections, indexes = await asyncio.gather(
        recorded_version(connection),
        _missing_collections(attempts),
        _missing_indexes(attempts),
    )
    refuse_newer(version)
    skipped = await _create_missing(attempts, collections, indexes, builds=builds)
    if version is None:
        with attempts.trying("the schema version"):
            await record_version(connection)
    attempts.warn()
    failed = [
        each for each in INDEXES if _index_name(connection, each) in attempts.failed
    ]
    return SetupResult(
        frozenset(each.name for each in (*failed, *skipped)), bool(skipped)
    )


async def missing_indexes(connection: Connection) -> list[Index]:
    """List the indexes that do not exist, or differ from their definition."""
    found = await asyncio.gather(
        *(getattr(connection, name).index_information() for name in _INDEXED)
    )
    described = dict(zip(_INDEXED, found, strict=True))
    return [each for each in INDEXES if not each.is_like(described[each.collection])]


class _Attempts:
    """Attempts to create something, and why those that failed did."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.failed: dict[str, str] = {}

    @contextmanager
    def trying(self, *things: str) -> Iterator[None]:
        """Try to create something that the service works without."""
        try:
            yield
        except OperationFailure as error:
            if error.code not in _WORKS_WITHOUT:
                raise
            self.failed |= dict.fromkeys(things, _WORKS_WITHOUT[error.code])

    def warn(self) -> None:
        """Log all failures at once."""
        if not self.failed:
            return
        logger.warning(
            "Not all could be created in database %r: %s. The service works without,"
            " but slower. Remove the cause, then call setup() as a user with the role"
            " that `mongo-session-service grants` prints.",
            self.connection.database.name,
            "; ".join(f"{what} ({why})" for what, why in self.failed.items()),
        )


async def _missing_collections(attempts: _Attempts) -> set[str]:
    database, prefix = attempts.connection.database, attempts.connection.prefix
    with attempts.trying("collections"):
        there = {*await database.list_collection_names()}
        return {each for each in _NEEDED if f"{prefix}{each}" not in there}
    return set()


async def _missing_indexes(attempts: _Attempts) -> list[Index]:
    # Creating an index that exists would need the privilege as well.
    with attempts.trying(*(_index_name(attempts.connection, each) for each in INDEXES)):
        return await missing_indexes(attempts.connection)
    return []


async def _create_missing(
    attempts: _Attempts, collections: set[str], indexes: list[Index], *, builds: bool
) -> list[Index]:
    """Create collections and indexes, and return the indexes that were left out."""
    new = set(collections)
    skipped: list[Index] = []
    for name in _INDEXED:
        lacking = [each for each in indexes if each.collection == name]
        keeps_waiting = (
            lacking
            and not builds
            and name not in new
            and await _is_large(attempts.connection, name)
        )
        if keeps_waiting:
            skipped += lacking
        elif lacking and await _create_indexes(attempts, name, lacking):
            new.discard(name)
    for name in sorted(new):
        with attempts.trying(f"collection {attempts.connection.prefix + name!r}"):
            await _create_collection(attempts.connection, name)
    return skipped


async def _is_large(connection: Connection, name: str) -> bool:
    count: int = await getattr(connection, name).estimated_document_count()
    return count > connection.limits.unindexed_documents


async def _create_indexes(attempts: _Attempts, name: str, lacking: list[Index]) -> bool:
    """Create indexes, and their collection; tell whether all exist then."""
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
        with attempts.trying(_index_name(attempts.connection, index)):
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


def _index_name(connection: Connection, index: Index) -> str:
    return f"index {index.name!r} of {getattr(connection, index.collection).name!r}"


async def recorded_version(connection: Connection, txn: Txn = None) -> int | None:
    """Read the version of a database's data; None if none is recorded."""
    recorded = await connection.metadata.find_one(_VERSION_ID, session=txn)
    return recorded["version"] if recorded else None


def refuse_newer(version: int | None) -> None:
    """Refuse data that a newer release has written."""
    if version is not None and version > SCHEMA_VERSION:
        message = (
            f"The data has schema version {version}; this release knows up to"
            f" {SCHEMA_VERSION}. Upgrade mongo-session-service."
        )
        raise SchemaVersionError(message)


async def record_version(connection: Connection) -> None:
    """Record this release's version, unless one is recorded already."""
    update = {"$setOnInsert": {"version": SCHEMA_VERSION}}
    await connection.metadata.update_one(_VERSION_ID, update, upsert=True)
