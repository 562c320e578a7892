"""From any released layout to today's, while the service is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from pymongo import MongoClient

from mongo_session_service import MongoSessionService, SchemaVersionError
from mongo_session_service.database import Connection
from mongo_session_service.migrations import MIGRATIONS, Migration, Migrator
from mongo_session_service.schema import INDEXES, SCHEMA_VERSION

LAYOUTS = Path(__file__).parents[1] / "fixtures" / "layouts"
IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}


def lay_out(database: Any, version: int) -> None:
    """Put in what a release of that schema version wrote."""
    layout = json_util.loads((LAYOUTS / f"{version}.json").read_text())
    for name, documents in layout.items():
        database[name].insert_many(documents)


def indexes(database: Any) -> dict[str, Any]:
    return {
        name: database[name].index_information()
        for name in ("sessions", "events", "app_states", "user_states")
    }


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
async def test_every_released_layout_comes_to_be_todays(
    mongodb_uri: str, database: str, admin: MongoClient, version: int
) -> None:
    """What a release wrote reads the same before and after the migrations."""
    lay_out(admin[database], version)
    service = MongoSessionService(mongodb_uri, database=database)
    before = await service.get_session(**IDS)

    status = await Migrator(service).migrate()
    after = await service.get_session(**IDS)
    await service.close()

    assert (status.version, status.pending) == (SCHEMA_VERSION, ())
    assert before is not None
    assert after == before
    assert [each.author for each in after.events] == ["user", "agent"]
    assert after.state == {"a.b": 2**70, "topic": "x", "app:n": 1, "user:city": "Rome"}


async def test_all_migrations_give_what_setup_gives(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """An empty database comes to the same collections and indexes either way."""
    other = {"database": database, "collection_prefix": "migrated_"}
    migrated = MongoSessionService(mongodb_uri, **other)

    async with MongoSessionService(mongodb_uri, database=database):
        before = await Migrator(migrated).status()
    await Migrator(migrated).migrate()
    await migrated.close()

    assert (before.version, before.pending) == (0, MIGRATIONS)
    names = set(admin[database].list_collection_names())
    own = {name for name in names if not name.startswith("migrated_")}
    assert names - own == {f"migrated_{name}" for name in own}
    for name in own:
        assert (
            admin[database][name].index_information()
            == admin[database][f"migrated_{name}"].index_information()
        )
    recorded = admin[database].migrated_metadata.find_one({"_id": "schema"})
    assert recorded == {"_id": "schema", "version": SCHEMA_VERSION}


async def test_setup_makes_what_a_migration_leaves(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Who may only read it then finds the key that pages of lists need."""
    service = MongoSessionService(mongodb_uri, database=database)
    await Migrator(service).migrate()
    await service.setup()
    await service.close()

    assert admin[database].metadata.find_one({"_id": "page_tokens"}) is not None


def test_migrations_are_in_order() -> None:
    """Each version has one migration, and the last is today's version."""
    versions = [each.version for each in MIGRATIONS]

    assert versions == list(range(1, SCHEMA_VERSION + 1))


async def test_newer_data_is_refused(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Data of a newer release is neither used nor migrated, and the remedy is named."""
    newer = {"_id": "schema", "version": SCHEMA_VERSION + 1}
    admin[database].metadata.insert_one(newer)
    service = MongoSessionService(mongodb_uri, database=database)

    for attempt in (service.setup, Migrator(service).migrate, Migrator(service).status):
        with pytest.raises(SchemaVersionError, match="Upgrade mongo-session-service"):
            await attempt()
    await service.close()

    assert admin[database].list_collection_names() == ["metadata"]


async def test_migrations_go_on_where_they_were_broken_off(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A version is recorded when its migration is done, and older users go on."""
    await service.create_session(**IDS, state={"n": 1})
    is_broken = True

    async def rename(connection: Connection) -> None:
        where = {"renamed": {"$exists": False}}
        await connection.sessions.update_one(where, {"$set": {"renamed": True}})
        if is_broken:
            raise ConnectionResetError

    async def finish(connection: Connection) -> None:
        await connection.sessions.update_many({}, {"$set": {"finished": True}})

    migrations = (
        *MIGRATIONS,
        Migration(SCHEMA_VERSION + 1, "rename", rename),
        Migration(SCHEMA_VERSION + 2, "finish", finish),
    )
    migrator = Migrator(service, migrations)
    done: list[int] = []

    with pytest.raises(ConnectionResetError):
        await migrator.migrate(lambda each: done.append(each.version))
    pending = (await migrator.status()).pending
    session = await service.get_session(**IDS)
    is_broken = False
    status = await migrator.migrate(lambda each: done.append(each.version))

    assert [each.summary for each in pending] == ["rename", "finish"]
    assert session is not None
    assert session.state == {"n": 1}
    assert done == [SCHEMA_VERSION + 1, SCHEMA_VERSION + 2]
    assert (status.version, status.pending) == (SCHEMA_VERSION + 2, ())
    assert admin[database].sessions.count_documents({"finished": True}) == 1
    assert (await service.get_session(**IDS)) is not None


async def test_setup_neither_drops_nor_builds_again(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An index in the place of one's own stays as it is, with a warning."""
    index = next(each for each in INDEXES if each.collection == "events")
    events = admin[database].events
    events.create_index("event.author", name=index.name)
    before = indexes(admin[database])

    async with MongoSessionService(mongodb_uri, database=database) as service:
        await service.create_session(**IDS)
        assert await service.get_session(**IDS) is not None

    assert indexes(admin[database])["events"] == before["events"]
    assert "which is left as it is" in caplog.text
