"""Setup: collections and indexes, as far as the server permits, and their version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from mongo_session_service.errors import NotAuthorizedError, SchemaVersionError
from mongo_session_service.schema.indexes import INDEXES, Index
from mongo_session_service.storage import server
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.server import NotCreatedError
from mongo_session_service.storage.statements import DuplicateError, Query, Update

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
"""Version of the layout of documents that this release writes.

It rises when an earlier release would misread them: that one then refuses the data.
"""

_VERSION_ID: Final = {"_id": "schema"}

NEEDED: Final = (
    *("sessions", "events", "app_states", "user_states", "partials"),
    *("checkpoints", "leases", "dead_letters", "metadata"),
)
"""A transaction that has to create its collection conflicts with all others."""
COLLECTIONS: Final = (*NEEDED, "imports")
_INDEXED: Final = ("sessions", "events", "partials")
_LARGEST: Final = "events"
"""The collection that has nearly all bytes of a database; a third less if compressed by
zstd, with its indexes."""


class SetupResult(NamedTuple):
    """The indexes that a database lacks after it was set up."""

    missing: frozenset[str]
    """Their names."""
    is_to_be_built: bool
    """True if one was left out, since a call would have waited for its build."""


async def check(storage: Storage) -> None:
    """Refuse a server that cannot be used, and data of a newer release."""
    await server.check_deployment(storage)
    refuse_newer(await recorded_version(storage))


async def set_up(storage: Storage, *, builds: bool = True) -> SetupResult:
    """Check both, and create what is missing; safe to repeat and to race.

    Where nothing is missing, one round trip follows the server's greeting. Without
    ``builds``, no index of a large collection is built. If something cannot be created,
    because the user lacks a privilege or something else is in its place, a warning is
    logged and the service works without it.
    """
    attempts = _CreationAttempts(storage)
    # Alone: of several tasks that PyMongo keeps waiting for a server, one that is
    # cancelled can wait for ever.
    await server.check_deployment(storage)
    version, collections, indexes = await asyncio.gather(
        recorded_version(storage),
        _missing_collections(attempts),
        _missing_indexes(attempts),
    )
    refuse_newer(version)
    skipped = await _create_missing(attempts, collections, indexes, builds=builds)
    if version is None:
        with attempts.recording_failure("the schema version"):
            await _record_version(storage)
    attempts.log_failures()
    failed = [each for each in INDEXES if _index_name(storage, each) in attempts.failed]
    return SetupResult(
        frozenset(each.name for each in (*failed, *skipped)), bool(skipped)
    )


async def missing_indexes(storage: Storage) -> list[Index]:
    """List the indexes that do not exist, or differ from their definition."""
    found = await asyncio.gather(
        *(server.index_information(storage, name) for name in _INDEXED)
    )
    described = dict(zip(_INDEXED, found, strict=True))
    return [each for each in INDEXES if not each.is_like(described[each.collection])]


class _CreationAttempts:
    """Attempts to create something, and why those that failed did."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.failed: dict[str, str] = {}

    @contextmanager
    def recording_failure(self, *things: str) -> Iterator[None]:
        """Try to create something that the service works without."""
        try:
            yield
        except NotAuthorizedError:
            self.failed |= dict.fromkeys(things, "the user lacks the privilege")
        except NotCreatedError as error:
            self.failed |= dict.fromkeys(things, str(error))

    def log_failures(self) -> None:
        if not self.failed:
            return
        logger.warning(
            "Not all could be created in database %r: %s. The service works without,"
            " but slower. Remove the cause, then call setup() as a user with the role"
            " that `mongo-session-service grants` prints.",
            self.storage.database.name,
            "; ".join(f"{what} ({why})" for what, why in self.failed.items()),
        )


async def _missing_collections(attempts: _CreationAttempts) -> set[str]:
    with attempts.recording_failure("collections"):
        return {*NEEDED} - await server.collection_names(attempts.storage)
    return set()


async def _missing_indexes(attempts: _CreationAttempts) -> list[Index]:
    # Creating an index that exists would need the privilege as well.
    with attempts.recording_failure(
        *(_index_name(attempts.storage, each) for each in INDEXES)
    ):
        return await missing_indexes(attempts.storage)
    return []


async def _create_missing(
    attempts: _CreationAttempts,
    collections: set[str],
    indexes: list[Index],
    *,
    builds: bool,
) -> list[Index]:
    """Create collections and indexes, and return the indexes that were left out."""
    storage = attempts.storage
    new = set(collections)
    skipped: list[Index] = []
    if _LARGEST in new:
        # First, since an index that creates it would not have it compressed.
        with attempts.recording_failure(f"collection {storage.prefix + _LARGEST!r}"):
            await server.create_collection(storage, _LARGEST, compressed=True)
            new.discard(_LARGEST)
    for name in _INDEXED:
        lacking = [each for each in indexes if each.collection == name]
        keeps_waiting = (
            lacking
            and not builds
            and name not in collections
            and await server.count_documents(storage, name)
            > storage.limits.unindexed_documents
        )
        if keeps_waiting:
            skipped += lacking
        elif lacking and await _create_indexes(attempts, name, lacking):
            new.discard(name)
    for name in sorted(new):
        with attempts.recording_failure(f"collection {storage.prefix + name!r}"):
            await server.create_collection(storage, name)
    return skipped


async def _create_indexes(
    attempts: _CreationAttempts, name: str, lacking: list[Index]
) -> bool:
    """Create indexes, and their collection; True if all exist then."""
    definitions = [(each.directed_keys, each.options) for each in lacking]
    with suppress(NotAuthorizedError, NotCreatedError):
        await server.create_indexes(attempts.storage, name, definitions)
        return True
    for index, each in zip(lacking, definitions, strict=True):
        # One that fails does not keep the others from it.
        with attempts.recording_failure(_index_name(attempts.storage, index)):
            await server.create_indexes(attempts.storage, name, [each])
    return False


def _index_name(storage: Storage, index: Index) -> str:
    return f"index {index.name!r} of {storage.prefix + index.collection!r}"


async def recorded_version(storage: Storage) -> int | None:
    """Read the version of a database's data; None if none is recorded."""
    recorded = await storage.find_one(Query("metadata", _VERSION_ID))
    return recorded["version"] if recorded else None


def refuse_newer(version: int | None) -> None:
    if version is not None and version > SCHEMA_VERSION:
        message = (
            f"The data has schema version {version}; this release knows up to"
            f" {SCHEMA_VERSION}. Upgrade mongo-session-service."
        )
        raise SchemaVersionError(message)


async def _record_version(storage: Storage) -> None:
    """Record this release's version, unless one is recorded already."""
    change = {"$setOnInsert": {"version": SCHEMA_VERSION}}
    with suppress(DuplicateError):
        await storage.commit(Update("metadata", _VERSION_ID, change, upsert=True))
