"""Setup: collections, indexes and their version."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, NamedTuple

from mongo_session_service.codec.former_families import former_families
from mongo_session_service.codec.record import FAMILY, STATES
from mongo_session_service.errors import (
    ConfigurationError,
    NotAuthorizedError,
    SchemaVersionError,
)
from mongo_session_service.model.metadata import CONVERSATION
from mongo_session_service.model.records import Document
from mongo_session_service.schema.indexes import INDEXES, Index
from mongo_session_service.storage import server
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.server import NotCreatedError
from mongo_session_service.storage.statements import DuplicateError, Query, Update
from mongo_session_service.storage.transactions import Transaction

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
"""Version of the layout of documents that this release writes.

It rises when an earlier release would misread them: that one then refuses the data.
"""

_VERSION_ID: Final = {"_id": "schema"}

NEEDED: Final = (
    *("sessions", "events", "app_states", "user_states", "partials", "families"),
    *("checkpoints", "leases", "dead_letters", "metadata"),
)
"""A transaction that has to create its collection conflicts with all others."""
COLLECTIONS: Final = (*NEEDED, "imports")
_INDEXED: Final = ("sessions", "events", "partials", "families")
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
    """Refuse a server or collections that cannot be used, and newer data."""
    await server.check_deployment(storage)
    version, there = await asyncio.gather(recorded_version(storage), existing(storage))
    refuse_newer(version)
    with suppress(NotAuthorizedError):  # who only reads sees each version by itself
        await _store_former_families(storage, there)


async def set_up(storage: Storage, *, builds: bool = True) -> SetupResult:
    """Check all that, and create what is missing; safe to repeat and to race.

    Where nothing is missing, one round trip follows the server's greeting, and no
    privilege to create is needed. Without ``builds``, no index of a large collection is
    built. An index in whose place something else is, is left out with a warning: the
    service works without it.

    Raises:
        NotAuthorizedError: The user may not create what is missing.
    """
    # Alone: of several tasks that PyMongo keeps waiting for a server, one that is
    # cancelled can wait for ever.
    await server.check_deployment(storage)
    version, there, indexes = await asyncio.gather(
        recorded_version(storage),
        existing(storage),
        missing_indexes(storage),
    )
    refuse_newer(version)
    await _store_former_families(storage, there)
    missing = {*NEEDED} - there
    result = await _create_missing(storage, missing, indexes, builds=builds)
    if version is None:
        await _record_version(storage)
    return result


async def _store_former_families(storage: Storage, there: set[str]) -> None:
    """Give each family a document, unless these have a collection already."""
    former = {"branch.family": {"$type": "string"}, FAMILY: None}

    async def store(tx: Transaction) -> None:
        found = await tx.find(Query("sessions", former, without=STATES))
        for family, versions in former_families(found):
            own = dict.fromkeys(("branch", *CONVERSATION), "")
            joined = {"$set": {FAMILY: family.key.family}, "$unset": own}
            place = {"_id": family.key.id}
            await tx.write(Update("families", place, family.document, upsert=True))
            for each in versions:
                await tx.write(Update("sessions", {"_id": each.key.id}, joined))

    if "sessions" in there and "families" not in there:
        await storage.run(store)


async def existing(storage: Storage) -> set[str]:
    """Return which of the service's collections exist; refuse one with a collation."""
    there = await server.collection_options(storage, COLLECTIONS)
    for name, options in there.items():
        if "collation" in options:
            raise _collation_error(storage, name, "Collection ", options["collation"])
    return {*there}


async def missing_indexes(storage: Storage) -> list[Index]:
    """List the indexes that do not exist, or differ from their definition.

    One with a collation is refused if it is unique, or has the name of ours.
    """
    found = await asyncio.gather(
        *(server.index_information(storage, name) for name in _INDEXED)
    )
    described = dict(zip(_INDEXED, found, strict=True))
    ours = {each.name for each in INDEXES}
    for collection, indexes in described.items():
        for name, it in indexes.items():
            if "collation" in it and (it.get("unique") or name in ours):
                what = f"Index {name!r} of "
                raise _collation_error(storage, collection, what, it["collation"])
    return [each for each in INDEXES if not each.is_like(described[each.collection])]


def _collation_error(
    storage: Storage, collection: str, what: str, collation: Document
) -> ConfigurationError:
    name = f"{storage.database.name}.{storage.prefix}{collection}"
    return ConfigurationError(
        f"{what}{name!r} has a collation, {collation['locale']!r}: by it, ids that"
        " differ are one, and so are their users. Make it anew without one."
    )


async def _create_missing(
    storage: Storage, collections: set[str], indexes: list[Index], *, builds: bool
) -> SetupResult:
    new = set(collections)
    skipped: list[Index] = []
    failed: dict[Index, str] = {}
    if _LARGEST in new:
        # First, since an index that creates it would not have it compressed.
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
        elif lacking:
            failed |= await _create_indexes(storage, name, lacking)
            new.discard(name)
    for name in sorted(new):
        await server.create_collection(storage, name)
    if failed:
        logger.warning(
            "Not all could be created in database %r: %s. The service works without,"
            " but slower. Remove the cause, then call setup().",
            storage.database.name,
            "; ".join(
                f"index {it.name!r} of {storage.prefix + it.collection!r} ({why})"
                for it, why in failed.items()
            ),
        )
    names = frozenset(each.name for each in (*failed, *skipped))
    return SetupResult(names, bool(skipped))


async def _create_indexes(
    storage: Storage, name: str, lacking: list[Index]
) -> dict[Index, str]:
    """Create indexes, and their collection; return why some could not be created."""
    definitions = [(each.directed_keys, each.options) for each in lacking]
    with suppress(NotCreatedError):
        await server.create_indexes(storage, name, definitions)
        return {}
    failed: dict[Index, str] = {}
    for index, each in zip(lacking, definitions, strict=True):
        # One that fails does not keep the others from it.
        try:
            await server.create_indexes(storage, name, [each])
        except NotCreatedError as error:
            failed[index] = str(error)
    return failed


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
