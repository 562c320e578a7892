"""From one schema version to the next: migrations as data, in order.

A release reads the data of every version before its own, so it is installed first,
everywhere, and migrated to afterwards. A migration runs beside readers and writers and
may be broken off: it is repeated from its beginning, and its version is recorded when
all of it is done. From then on, older releases refuse the data when they start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mongo_session_service.backend import backend_of
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.server import naming_privileges
from mongo_session_service.errors import SchemaVersionError
from mongo_session_service.schema.setup import create_layout
from mongo_session_service.service import MongoSessionService


@dataclass(frozen=True, slots=True)
class Migration:
    """One step to a version; repeating it changes nothing."""

    version: int
    summary: str
    apply: Callable[[Connection], Awaitable[None]]


MIGRATIONS: Final = (
    Migration(1, "create the collections, and the index on events", create_layout),
)


class Status(NamedTuple):
    """Where a database stands."""

    version: int
    """As recorded; 0 if none is."""
    pending: tuple[Migration, ...]


def plan(version: int, migrations: Sequence[Migration]) -> Status:
    """What a database of a version lacks.

    Raises:
        SchemaVersionError: it is of a newer version than any migration's.
    """
    newest = migrations[-1].version
    if version > newest:
        message = (
            f"The data has schema version {version}; this release knows up to"
            f" {newest}. Upgrade mongo-session-service."
        )
        raise SchemaVersionError(message)
    return Status(version, tuple(each for each in migrations if each.version > version))


class Migrator:
    """Brings a service's database to this release's schema version."""

    def __init__(
        self,
        service: MongoSessionService,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        """Connects to nothing yet; the service stays the caller's to close."""
        self._service = service
        self._migrations = migrations

    async def status(self) -> Status:
        """Where the database stands; nothing is changed.

        Raises:
            SchemaVersionError: it is of a newer release.
        """
        with translated():
            return await self._status(await self._connection())

    async def migrate(
        self, on_applied: Callable[[Migration], None] = lambda _: None
    ) -> Status:
        """Apply what is pending, in order; run again, it goes on where it stopped.

        Args:
            on_applied: Told of each migration that is done.

        Raises:
            SchemaVersionError: the database is of a newer release.
        """
        with translated():
            connection = await self._connection()
            async with naming_privileges(connection):
                for migration in (await self._status(connection)).pending:
                    await migration.apply(connection)
                    await _record(connection, migration.version)
                    on_applied(migration)
                return await self._status(connection)

    async def _connection(self) -> Connection:
        # Not set up: that would record a version.
        return (await backend_of(self._service).here()).connection

    async def _status(self, connection: Connection) -> Status:
        recorded = await connection.metadata.find_one({"_id": "schema"})
        return plan(recorded["version"] if recorded else 0, self._migrations)


async def _record(connection: Connection, version: int) -> None:
    # Another migrator may have gone further meanwhile.
    await connection.metadata.update_one(
        {"_id": "schema"}, {"$max": {"version": version}}, upsert=True
    )
