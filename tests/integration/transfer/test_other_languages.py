"""Stores of ADK for other languages: their times are converted, or they are named."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from google.adk.integrations.mongodb import MongoDbSessionService
from pymongo import MongoClient
from support.foreign_stores import Place

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import SourceError
from mongo_session_service.transfer import (
    AdkMongoDbSource,
    Policies,
    Problem,
    Source,
    SqliteSource,
    SqlSource,
    StoreSource,
    move,
    verify,
)

SECONDS = 1782000000.123
KEY = {"app_name": "chat", "user_id": "ada", "session_id": "s"}
TABLES = """
CREATE TABLE sessions (app_name text, user_id text, id text, state text,
    create_time {type}, update_time {type}, PRIMARY KEY (app_name, user_id, id));
CREATE TABLE events (id text, app_name text, user_id text, session_id text,
    invocation_id text, timestamp {type}, event_data text);
CREATE TABLE app_states (app_name text, state text, update_time {type});
CREATE TABLE user_states (app_name text, user_id text, state text, update_time {type});
"""
METADATA = """
CREATE TABLE adk_internal_metadata (key text, value text);
INSERT INTO adk_internal_metadata VALUES ('schema_version', '1');
"""


def script(columns: str, column: str, *events: tuple[str, str, float]) -> str:
    """A session whose events have an id, a time as SQL has it, and one in JSON."""
    lines = [
        TABLES.format(type=columns),
        f"INSERT INTO sessions VALUES ('chat','ada','s','{{}}',{column},{column});",  # noqa: S608
    ]
    for id_, time, own in events:
        data = json.dumps({"author": "user", "timestamp": own})
        row = f"'{id_}','chat','ada','s','i',{time},'{data}'"
        lines.append(f"INSERT INTO events VALUES ({row});")  # noqa: S608
    return "\n".join(lines)


def sqlite_file(path: Path, text: str) -> Path:
    with sqlite3.connect(path) as file:
        file.executescript(text)
    file.close()
    return path


async def imported(source: Source, service: MongoSessionService) -> list[float]:
    """The times of a session and of its events, once it is moved and verified."""
    async with source, StoreSource(service) as target:
        await move(source, service)
        assert (await verify(source, target)).is_equal
    session = await service.get_session(**KEY)
    assert session is not None
    (summary,) = (await service.find_sessions(app_name="chat")).sessions
    events = [each.timestamp for each in session.events]
    return [summary.create_time, session.last_update_time, *events]


@pytest.mark.parametrize("factor", [1, 1000, 1000_000, 1000_000_000])
async def test_numbers_of_any_unit(
    tmp_path: Path, service: MongoSessionService, factor: int
) -> None:
    """As ADK for JavaScript writes them on SQLite: in columns and in JSON."""
    time = round(SECONDS * factor) if factor > 1 else SECONDS
    text = script("datetime", str(time), ("e", str(time), time))
    path = sqlite_file(tmp_path / "js.db", text + METADATA)

    times = await imported(SqlSource(f"sqlite:///{path}"), service)

    assert times == pytest.approx([SECONDS] * 3, abs=1e-6)


async def test_of_a_file_of_adks_sqlite_service(
    tmp_path: Path, service: MongoSessionService
) -> None:
    """A column in seconds stands beside JSON in milliseconds."""
    text = script("real", str(SECONDS), ("e", str(SECONDS), SECONDS * 1000))
    path = sqlite_file(tmp_path / "sessions.db", text)

    assert await imported(SqliteSource(path), service) == pytest.approx([SECONDS] * 3)


async def test_columns_in_whole_seconds(
    place: Place, service: MongoSessionService
) -> None:
    """On another SQL server the finer time of the JSON is the event's, and orders."""
    url = await place.postgresql.new()
    noon = "'2026-06-21 00:00:00+00'"
    events = [("c", 1), ("a", 2), ("b", 3)]
    whole = 1782000000
    text = script(
        "timestamptz(0)",
        noon,
        *((id_, noon, (whole + part / 10) * 1000) for id_, part in events),
    )
    connection = await asyncpg.connect(url)
    await connection.execute(text + METADATA)
    await connection.close()

    times = await imported(SqlSource(url), service)

    assert times == [whole, whole, whole + 0.1, whole + 0.2, whole + 0.3]


async def test_another_time_beside_the_event_is_a_problem(
    tmp_path: Path, service: MongoSessionService
) -> None:
    """In whatever unit neither is meant."""
    text = script("real", str(SECONDS), ("e", str(SECONDS), SECONDS / 60))
    problems: list[Problem] = []

    async with SqliteSource(sqlite_file(tmp_path / "sessions.db", text)) as source:
        skipping = Policies(on_error="skip")
        await move(source, service, policies=skipping, on_problem=problems.append)

    assert "time is another one" in str(problems)


@pytest.fixture
async def old_mongodb(
    mongodb_uri: str, new_database: str
) -> AsyncIterator[MongoDbSessionService]:
    old = MongoDbSessionService(
        connection_string=mongodb_uri, database_name=new_database
    )
    yield old
    await old.close()


async def test_of_adks_mongodb_service(
    old_mongodb: Any,
    mongodb_uri: str,
    new_database: str,
    service: MongoSessionService,
    admin: MongoClient,
) -> None:
    """Its documents may have milliseconds as well."""
    await old_mongodb.create_session(**KEY)
    stored = admin[new_database]
    times = {"create_time": SECONDS * 1000, "update_time": SECONDS * 1000}
    stored.sessions.update_one({}, {"$set": {**times, "revision": 1}})
    data = {"id": "e", "author": "user", "timestamp": SECONDS * 1000}
    event = {"timestamp": SECONDS * 1000, "revision": 1, "event_data": json.dumps(data)}
    stored.events.insert_one({"_id": {**KEY, "event_id": "e"}, **KEY, **event})

    source = AdkMongoDbSource(mongodb_uri, database=new_database)
    assert await imported(source, service) == pytest.approx([SECONDS] * 3)


@pytest.mark.parametrize("actions", ["'{}'", "CAST('{}' AS BLOB)"])
@pytest.mark.parametrize("version", ["", METADATA.replace("'1'", "'0'")])
async def test_a_store_of_adk_for_go_is_named(
    tmp_path: Path, actions: str, version: str
) -> None:
    """It is not sent through the converter, which would leave out its actions."""
    value = actions.format('{"StateDelta":{"city":"Turin"}}')
    text = TABLES.format(type="datetime") + version
    text += "ALTER TABLE events ADD COLUMN actions blob;"
    text += f"INSERT INTO events (id, actions) VALUES ('e', {value});"  # noqa: S608
    url = f"sqlite:///{sqlite_file(tmp_path / 'go.db', text)}"

    with pytest.raises(SourceError, match="ADK for Go") as caught:
        async with SqlSource(url):
            pass
    assert "Convert it" not in str(caught.value)


async def test_a_store_of_adk_for_go_on_postgresql_is_named(place: Place) -> None:
    """Its bytes come as the driver has them."""
    url = await place.postgresql.new()
    connection = await asyncpg.connect(url)
    await connection.execute(
        TABLES.format(type="timestamptz")
        + "ALTER TABLE events DROP COLUMN event_data, ADD COLUMN actions bytea;"
    )
    await connection.execute(
        "INSERT INTO events (id, actions) VALUES ('e', $1)", b'{"StateDelta":{}}'
    )
    await connection.close()

    with pytest.raises(SourceError, match="ADK for Go"):
        async with SqlSource(url):
            pass
