"""Migrator: brings a service's database to this release's schema version."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mongo_session_service.backend import backend_of
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.server import naming_privileges
from mongo_session_service.schema import migrations
from mongo_session_service.schema.migrations import Migration, SchemaStatus
from mongo_session_service.schema.version import record_migration, recorded_version
from mongo_session_service.service import MongoSessionService


class Migrator:
    """Brings a service's database to this release's schema version."""

    def __init__(
        self,
        service: MongoSessionService,
        migrations: Sequence[Migration] = migrations.MIGRATIONS,
    ) -> None:
        """Connects to nothing yet; the caller closes the service."""
        self._service = service
        self._migrations = migrations

    async def status(self) -> SchemaStatus:
        """The database's version and pending migrations; nothing is changed.

        Raises:
            SchemaVersionError: it is of a newer release.
        """
        with translated():
            return await self._status(await self._connection())

    async def migrate(
        self, on_applied: Callable[[Migration], None] = lambda _: None
    ) -> SchemaStatus:
        """Apply what is pending, in order; if interrupted, the next call resumes.

        Args:
            on_applied: Called with each migration that is done.

        Raises:
            SchemaVersionError: the database is of a newer release.
        """
        with translated():
            connection = await self._connection()
            async with naming_privileges(connection):
                for migration in (await self._status(connection)).pending:
                    await migration.apply(connection)
                    await record_migration(connection, migration.version)
                    on_applied(migration)
                return await self._status(connection)

    async def _connection(self) -> Connection:
        # Not set up: that would record a version.
        return (await backend_of(self._service).here()).connection

    async def _status(self, connection: Connection) -> SchemaStatus:
        return migrations.plan(
            await recorded_version(connection) or 0, self._migrations
        )
