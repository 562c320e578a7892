"""What a move does about a source, or a target, that is not as it should be."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService, Session
from google.genai import types
from pymongo import MongoClient
from support.foreign_stores import Place, adk_mongodb, sql_sqlite, sqlite
from support.transfers import IDS, NAMED, SKIP, moved

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.transfer import Policies, Problem, StoreSource, move, verify
from mongo_session_service.transfer.importer import ImportTarget


def damage_text(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("UPDATE events SET event_data = '{' WHERE id = 's2-1-agent'")
        file.execute("UPDATE sessions SET state = '[]' WHERE user_id = 'bob/x'")
    file.close()


FILES = [(sqlite, "sessions.db"), (sql_sqlite, "adk.db")]


@pytest.mark.parametrize(("make", "file"), FILES)
async def test_invalid_utf_8_is_reported_by_its_key(
    make: Any, file: str, place: Place, service: MongoSessionService
) -> None:
    """SQLite keeps any bytes; a row of such is left out alone, and not quoted."""
    store = await make(place)
    with sqlite3.connect(place.folder / file) as connection:
        connection.execute(
            "UPDATE events SET event_data = CAST(? AS TEXT) WHERE id = 's2-1-agent'",
            [b'{"secret": "\xff"}'],
        )
    connection.close()
    told: list[Problem] = []

    async with store.source as source:
        result = await move(
            source, service, policies=Policies(on_error="skip"), on_problem=told.append
        )

    assert (result.new, result.events, result.problems) == (5, 23, 1)
    assert str(told[0]) == (
        f"event 's2-1-agent' of {NAMED.format('s2', 'ada')}:"
        " it holds text that is not UTF-8"
    )


async def test_rows_that_break_their_tables_rules_are_reported(
    place: Place, service: MongoSessionService
) -> None:
    """Rows without state, id or time are left out alone; a whole file can follow."""
    store = await sqlite(place)
    with sqlite3.connect(place.folder / "sessions.db") as file:
        for table in ("app_states", "sessions"):
            file.execute(f"CREATE TABLE loose AS SELECT * FROM {table}")  # noqa: S608
            file.execute(f"DROP TABLE {table}")
            file.execute(f"ALTER TABLE loose RENAME TO {table}")
        file.execute("UPDATE app_states SET state = NULL WHERE app_name = 'weather'")
        for row in (
            ("weather", "eve", "no state", None, 1.5, 2.5),
            ("weather", "eve", "endless", "{}", 1.5, float("inf")),
            ("weather", "eve", "", "{}", 1.5, 2.5),
        ):
            file.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row)
    file.close()
    told: list[Problem] = []

    async with store.source as source:
        result = await move(
            source, service, policies=Policies(on_error="skip"), on_problem=told.append
        )

    assert (result.new, result.problems) == (5, 4)
    no_object = "a JSON object was expected"
    assert sorted(str(each).split(": ", 1) for each in told) == [
        [NAMED.format("", "eve"), "session_id must not be empty"],
        [NAMED.format("endless", "eve"), "one of its times is not finite"],
        [NAMED.format("no state", "eve"), f"{no_object}, not nothing"],
        ["state of app 'weather'", f"{no_object}, not nothing"],
    ]


@pytest.mark.parametrize(("make", "file"), FILES)
async def test_unreadable_rows_are_reported_by_their_key(
    make: Any, file: str, place: Place, service: MongoSessionService
) -> None:
    """A broken row stops a move, or is left out; a dry run reports all."""
    store = await make(place)
    damage_text(place.folder / file)
    told: list[Problem] = []
    tried_told: list[Problem] = []
    trying = Policies(is_dry_run=True)

    async with store.source as source, StoreSource(service) as target:
        with pytest.raises(TransferError, match="'bob/x'|'s2-1-agent'"):
            await move(source, service)
        tried = await move(
            source, service, policies=trying, on_problem=tried_told.append
        )
        result = await move(
            source, service, policies=Policies(on_error="skip"), on_problem=told.append
        )
        verified = await verify(source, target)

    assert (result.problems, result.is_complete) == (2, False)
    assert tried.problems == 2
    assert tried_told == told
    assert sorted(str(each) for each in told) == [
        f"event 's2-1-agent' of {NAMED.format('s2', 'ada')}: it holds broken JSON",
        f"{NAMED.format('s/3', 'bob/x')}: a JSON object was expected, not a list",
    ]
    assert verified.differences == 2


async def test_an_event_that_is_too_large_is_reported(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """An event over the document limit is left out by its name, and the rest moves."""
    session = await old.get_session(**IDS)
    assert session is not None
    part = types.Part(text="x" * 16_000_000)
    event = Event(id="huge", author="user", content=types.Content(parts=[part]))
    await old.append_event(session, event)

    with pytest.raises(TransferError, match="event 'huge' of session 's1'"):
        await moved(old, service)
    result, problems = await moved(old, service, Policies(on_error="skip"))

    assert (result.events, result.problems) == (24, 1)
    assert any("'huge'" in each for each in problems)


async def test_a_second_event_of_the_same_id_is_reported(
    old: InMemorySessionService,
    service: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stores without a unique index may hold doubles, which are not moved twice."""
    get_session = old.get_session

    async def with_a_double(**ids: Any) -> Session | None:
        session = await get_session(**ids)
        if session is not None and ids == IDS:
            session.events.append(session.events[0])
        return session

    monkeypatch.setattr(old, "get_session", with_a_double)
    result, told = await moved(old, service, Policies(on_error="skip"))

    assert (result.new, result.events, result.problems) == (5, 24, 1)
    assert "the session already has an event with this id" in told[0]


async def test_documents_without_ids_are_reported(
    place: Place, service: MongoSessionService, admin: MongoClient
) -> None:
    """What others have put into the source's collections does not stop the rest."""
    store = await adk_mongodb(place)
    stored = admin[place.database]
    stored.events.insert_one({"app_name": None, "timestamp": 1.0})
    stored.sessions.insert_one({"app_name": "weather", "state": "{}", "user_id": 5})
    told: list[str] = []

    async with store.source as source, StoreSource(service) as target:
        result = await move(
            source,
            service,
            policies=Policies(on_error="skip"),
            on_problem=lambda each: told.append(str(each)),
        )
        verified = await verify(source, target)

    assert (result.new, result.events, verified.differences) == (5, 24, 1)
    (problem,) = told
    assert problem == (
        "session None of user 5 in app 'weather': user_id must be a string, not int"
    )


async def test_another_services_collections_are_no_target(
    place: Place, mongodb_uri: str, admin: MongoClient
) -> None:
    """Sessions are not imported among documents of another layout, nor indexes put."""
    store = await adk_mongodb(place)
    before = admin[place.database].events.index_information()
    service = MongoSessionService(mongodb_uri, database=place.database)

    async with store.source as source:
        with pytest.raises(ConflictError, match="another service's sessions"):
            await move(source, service)
    await service.close()

    assert admin[place.database].events.index_information() == before
    assert "metadata" not in admin[place.database].list_collection_names()


@pytest.mark.parametrize("events", [0, 2])
async def test_a_session_created_meanwhile_is_a_conflict(
    old: InMemorySessionService,
    service: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
    events: int,
) -> None:
    """An id taken between a look and a write keeps its session, without our events."""
    look = ImportTarget.plan_sessions
    looks = 0

    async def sessions(target: ImportTarget, keys: Any) -> Any:
        nonlocal looks
        found = await look(target, keys)
        looks += 1
        if looks == 1:
            session = await service.create_session(**IDS, state={"mine": True})
            for number in range(events):
                await service.append_event(session, Event(id=f"{number}", author="x"))
        return found

    monkeypatch.setattr(ImportTarget, "plan_sessions", sessions)
    result, problems = await moved(old, service, SKIP)

    session = await service.get_session(**IDS)
    assert session is not None
    assert [each.id for each in session.events] == ["0", "1"][:events]
    assert session.state["mine"] is True
    assert (result.skipped, result.new + result.unchanged) == (1, 4)
    assert NAMED.format("s1", "ada") in problems[-1]
