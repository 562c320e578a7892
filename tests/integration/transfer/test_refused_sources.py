"""A source that is not what it is taken for is refused before anything is read."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest
from pymongo import MongoClient
from support.foreign_stores import Place, adk_1_18, adk_mongodb, sql_sqlite, sqlite

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import SourceError
from mongo_session_service.transfer import (
    AdkMongoDbSource,
    ServiceSource,
    Source,
    SqliteSource,
    SqlSource,
)


async def refused(source: Source, match: str) -> None:
    with pytest.raises(SourceError, match=match):
        async with source:
            pass


@pytest.mark.parametrize(
    ("module", "url"),
    [("sqlalchemy", "sqlite:///x"), ("asyncpg", "postgresql://h/x")],
)
def test_a_missing_driver_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, module: str, url: str
) -> None:
    """Without SQLAlchemy or a driver, the error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(SourceError, match=r"'mongo-session-service\[sql\]'"):
        SqlSource(url)


@pytest.mark.parametrize("name", ["app_states", "user_states", "sessions", "events"])
async def test_a_view_is_no_table(place: Place, name: str) -> None:
    """A file of a few kilobytes may hold one of any number of rows."""
    store = await sqlite(place)
    with sqlite3.connect(place.folder / "sessions.db") as file:
        file.execute(f"ALTER TABLE {name} RENAME TO old")
        file.execute(f"CREATE VIEW {name} AS SELECT * FROM old")  # noqa: S608
    file.close()

    await refused(store.source, "does not hold the tables")


async def test_urls_for_other_drivers_are_understood(place: Place) -> None:
    """A URL that names a blocking driver, or TLS as psycopg does, is read as well."""
    url = await place.postgresql.new()
    for_psycopg = url.replace("postgresql:", "postgresql+psycopg2:")

    await refused(SqlSource(f"{for_psycopg}&sslmode=disable"), "holds no ADK sessions")
    await refused(SqlSource(f"{url}&wrong=option"), "does not know an option")


async def test_a_database_that_refuses_is_reported_with_the_remedy(
    place: Place,
) -> None:
    """A wrong user, password or name is the server's own message."""
    url = await place.postgresql.new()

    nobodys = SqlSource(url.replace("/test_", "/nobodys_"))
    await refused(
        nobodys, 'be opened: database "nobodys_.*" does not exist. Check what'
    )


def test_a_password_is_not_shown() -> None:
    """Neither a source's name nor its errors show the password in its URL."""
    source = SqlSource("postgresql://me:s3cr3t@host/db?password=s3cr3t")

    assert "s3cr3t" not in source.name
    with pytest.raises(SourceError) as caught:
        SqlSource("no-such-database://me:s3cr3t@host/db")
    assert "s3cr3t" not in str(caught.value)


async def test_an_unknown_schema_version_is_refused(place: Place) -> None:
    """A database of a later ADK is named as such, rather than read wrongly."""
    await sql_sqlite(place)
    with sqlite3.connect(place.folder / "adk.db") as file:
        file.execute("UPDATE adk_internal_metadata SET value = '9'")
    file.close()

    await refused(SqlSource(f"sqlite:///{place.folder}/adk.db"), "schema version 9")


async def test_pickles_name_the_command_that_converts_them(tmp_path: Path) -> None:
    """A database of google-adk 1.x is refused before anything of it is loaded."""
    path = adk_1_18(tmp_path)

    await refused(SqlSource(f"sqlite:///{path}"), "`adk migrate session --source_db_")


async def test_each_sqlite_layout_names_its_command(place: Place) -> None:
    """ADK's two kinds of SQLite files are told apart, and the right one is named."""
    await sql_sqlite(place)
    await sqlite(place)

    await refused(SqliteSource(place.folder / "adk.db"), "use `import sql`")
    url = f"sqlite:///{place.folder}/sessions.db"
    await refused(SqlSource(url), "use `import sqlite`")


async def test_another_services_collections_are_no_source(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Documents of another service's are refused by the collection's name."""
    await service.create_session(app_name="app", user_id="user")

    source = AdkMongoDbSource(mongodb_uri, database=database)
    await refused(source, "'sessions' of database .* does not hold")


async def test_another_layout_of_adks_names_the_way_to_read_it(
    place: Place, admin: MongoClient
) -> None:
    """Sessions whose ids are text were written before google-adk 2.13."""
    store = await adk_mongodb(place)
    sessions = admin[place.database].sessions
    session = sessions.find_one_and_delete({}) or {}
    sessions.delete_many({})
    sessions.insert_one({**session, "_id": "/".join(session["_id"].values())})

    await refused(store.source, "does not hold .* google-adk 2.13 .*`import service`")


def test_a_database_has_to_be_named(mongodb_uri: str) -> None:
    """A URI without a database is not guessed at."""
    with pytest.raises(SourceError, match="Name the source's database"):
        AdkMongoDbSource(mongodb_uri)


def test_an_import_from_a_service_requires_app_names() -> None:
    """The public methods do not list apps, so they have to be named."""
    with pytest.raises(SourceError, match="Name the apps"):
        ServiceSource(None, [])  # type: ignore[arg-type]
