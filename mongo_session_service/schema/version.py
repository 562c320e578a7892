"""Schema version: how it is read from a database, judged and recorded."""

from __future__ import annotations

from typing import Final

from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import SchemaVersionError

SCHEMA_VERSION: Final = 1
"""Version of the layout of documents that this release writes."""

_ID: Final = {"_id": "schema"}

_TELLS_WAITING: Final = "tells_waiting"
"""Where it is recorded that each session names the calls that wait for people."""


async def recorded_version(connection: Connection, txn: Txn = None) -> int | None:
    """Read the version of a database's data; None if none is recorded."""
    recorded = await connection.metadata.find_one(_ID, session=txn)
    return recorded["version"] if recorded else None


def refuse_newer(version: int | None) -> None:
    """Refuse data that a newer release has written.

    Raises:
        SchemaVersionError: the data's version is above this release's.
    """
    if version is not None and version > SCHEMA_VERSION:
        message = (
            f"The data has schema version {version}; this release knows up to"
            f" {SCHEMA_VERSION}. Upgrade mongo-session-service."
        )
        raise SchemaVersionError(message)


async def check_version(connection: Connection) -> bool:
    """Refuse data of a newer release; tell whether any version is recorded.

    Raises:
        SchemaVersionError: the data was written by a newer release.
    """
    version = await recorded_version(connection)
    refuse_newer(version)
    return version is not None


async def record_version(connection: Connection) -> None:
    """Record this release's version, unless one is recorded already."""
    update = {"$setOnInsert": {"version": SCHEMA_VERSION, _TELLS_WAITING: True}}
    await connection.metadata.update_one(_ID, update, upsert=True)


async def tells_waiting(connection: Connection) -> bool:
    """Tell whether sessions name what waits; those of earlier releases do not."""
    recorded = await connection.metadata.find_one(_ID)
    return recorded is None or recorded.get(_TELLS_WAITING, False)


async def record_waiting(connection: Connection) -> None:
    """Record that all sessions name what waits."""
    await connection.metadata.update_one(_ID, {"$set": {_TELLS_WAITING: True}})
