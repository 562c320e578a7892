"""From any released layout to today's, while the service is in use."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.consumers import take
from support.fake_clock import Clock
from support.one_session import IDS, read
from support.subscriptions import PATIENCE, until

from mongo_session_service import (
    Change,
    HistoryLostError,
    MongoSessionService,
    SchemaVersionError,
)
from mongo_session_service.admin import Migrator
from mongo_session_service.driver.connection import Connection
from mongo_session_service.schema.indexes import INDEXES
from mongo_session_service.schema.migrations import MIGRATIONS, Migration
from mongo_session_service.schema.version import SCHEMA_VERSION
from mongo_session_service.transfer import ServiceSource, move

LAYOUTS = Path(__file__).parents[2] / "fixtures" / "layouts"
RELEASED = sorted(path.stem for path in LAYOUTS.glob("*.json"))


def lay_out(database: Any, name: str) -> None:
    """Put in what a release wrote."""
    layout = json_util.loads((LAYOUTS / f"{name}.json").read_text())
    for collection, documents in layout.items():
        database[collection].insert_many(documents)


def indexes(database: Any) -> dict[str, Any]:
    return {
        name: database[name].index_information()
        for name in ("sessions", "events", "app_states", "user_states")
    }


def test_every_version_has_a_layout() -> None:
    """One at least, and more where more came to be stored at the same version."""
    versions = {int(re.findall(r"^\d+", name)[0]) for name in RELEASED}

    assert versions == set(range(1, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("released", RELEASED)
async def test_every_released_layout_comes_to_be_todays(
    mongodb_uri: str, database: str, admin: MongoClient, released: str
) -> None:
    """What a release wrote reads the same before and after the migrations."""
    lay_out(admin[database], released)
    service = MongoSessionService(mongodb_uri, database=database)
    before = await service.get_session(**IDS)

    status = await Migrator(service).migrate()
    after = await service.get_session(**IDS)
    await service.close()

    assert (status.version, status.pending) == (SCHEMA_VERSION, ())
    assert before is not None
    assert after == before
    assert [each.author for each in after.events] == ["user", "agent"]
    state = {"a.b": 2**70, "topic": "x", "app:n": 1, "user:city": "Rome"}
    title = {"__session_metadata__": {"displayName": "Monday"}}
    assert after.state == state | (title if released == "1b" else {})


async def test_all_that_version_1_came_to_hold_is_understood(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Details, initial states, imports, dead letters and checkpoints go on from it."""
    lay_out(admin[database], "1b")
    Clock.set()  # to the time it was written at
    found = {}
    handled: list[Change] = []
    service = MongoSessionService(mongodb_uri, database=database)
    await Migrator(service).migrate()
    async with service:
        found["title"] = await service.find_sessions(app_name="app", title="Monday")
        found["label"] = await service.find_sessions(
            app_name="app", labels={"team": "blue"}
        )
        beginnings = [
            await service.get_session_at(**{**IDS, "session_id": name}, revision=0)
            for name in ("s", "large")
        ]
        async with ServiceSource(await an_old_store(), ["moved"]) as source:
            moved = await move(source, service)
        billing = service.consumer("billing")
        letters = [each async for each in billing.dead_letters()]
        assert await billing.replay_dead_letters(handled.append) == 1
        with pytest.raises(HistoryLostError):  # it is of another server's log
            await take(billing, 1)
        async with service.consumer("billing", on_history_lost="replay") as consumer:
            told = await take(consumer, 2)

    for page in found.values():
        assert [(each.id, each.ttl) for each in page.sessions] == [("s", 3e9)]
    states = [each.state for each in beginnings if each]
    assert [each.get("topic") for each in states] == ["initial", None]
    assert states[0]["a.b"] == 2**70
    assert len(states[1]["text"]) == 5000
    assert (moved.new, moved.unchanged, moved.states) == (0, 1, 0)
    assert [each.error for each in letters] == ["ValueError: no money"]
    assert [each.revision for each in handled] == [2]
    assert [each.revision for each in told] == [1, 2]


async def an_old_store() -> InMemorySessionService:
    """What was moved in before the layout was written."""
    old = InMemorySessionService()
    state = {"own": 1, "user:u": 1, "app:a": 1}
    await old.create_session(
        app_name="moved", user_id="user", session_id="s", state=state
    )
    return old


async def test_a_migration_keeps_nobody_waiting(
    mongodb_uri: str, service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Between any two of its steps a writer appends, a reader reads, and all is kept.

    So it is for the real ones, which come first, as for one that changes documents.
    """
    session = await service.create_session(**IDS)
    admin[database].metadata.delete_one({"_id": "schema"})
    appended = read_since = 0
    is_over = asyncio.Event()

    async def write() -> None:
        nonlocal appended
        while not is_over.is_set():
            await service.append_event(session, Event(author="x"))
            appended += 1

    async def keep_reading() -> None:
        nonlocal read_since
        before = 0
        while not is_over.is_set():
            events = len((await read(service)).events)
            assert events >= before
            before = events
            read_since += 1

    async def step_by_step(connection: Connection) -> None:
        for number in range(5):
            change = {"$set": {f"step{number}": True}}
            await connection.sessions.update_many({}, change)
            seen = appended, read_since
            await until(lambda seen=seen: appended > seen[0] and read_since > seen[1])

    migrations = (*MIGRATIONS, Migration(SCHEMA_VERSION + 1, "steps", step_by_step))
    migrating = MongoSessionService(mongodb_uri, database=database)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        tasks.create_task(keep_reading())
        status = await Migrator(migrating, migrations).migrate()
        is_over.set()
    await migrating.close()

    assert (status.version, status.pending) == (SCHEMA_VERSION + 1, ())
    assert (await read(service)).events == session.events
    assert len(session.events) == appended > 5
    stored = admin[database].sessions.find_one()
    assert [name for name in stored if name.startswith("step")] == [
        f"step{number}" for number in range(5)
    ]


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
    assert "is not changed" in caplog.text
