"""Values of other tools that JSON, or Python, has no place for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bson import Decimal128, ObjectId
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from google.adk.events import Event
from pymongo import MongoClient
from support.http_paths import CHANGES, app_of
from support.http_server import Client, serving
from support.subscriptions import APP, ID, SESSION, USER, Follower, new_event

from mongo_session_service import MongoSessionService

VALUES = [DatetimeMS(2**60), ObjectId(), Decimal128("1"), b"\xff"]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_foreign_values_are_delivered_unchanged(
    service: MongoSessionService, database: str, admin: MongoClient, value: Any
) -> None:
    """Readers and followers get them; in JSON they become text."""
    session = await service.create_session(**SESSION)
    async with (
        Follower(service.watch(APP, USER, ID)) as follower,
        Follower(service.watch()) as everything,
    ):
        admin[database].app_states.insert_one({"_id": APP, "state": {"v": value}})
        await service.append_event(session, new_event())
        await follower.reached(1)
        await everything.until(lambda: len(everything.told) == 2)

    assert follower.state == {"app:v": value}
    sent = json.loads(everything.told[0].json_text)["state_delta"]
    assert sent == {"app:v": "_w==" if value == b"\xff" else str(value)}
    found = await service.get_session(**SESSION)
    assert found is not None
    assert found.state == {"app:v": value}


@pytest.mark.parametrize("query", [{}, {"history": "all"}])
async def test_a_stream_continues_after_a_value_that_is_not_json(
    service: MongoSessionService, database: str, admin: MongoClient, query: Any
) -> None:
    """A browser receives it as text, and the changes after it."""
    session = await service.create_session(**SESSION)
    value = ObjectId()
    admin[database].app_states.insert_one({"_id": APP, "state": {"v": value}})
    async with (
        serving(app_of(service)) as url,
        Client(f"{url}{CHANGES}", **query) as client,
    ):
        snapshot = await client.next()
        await service.append_event(session, Event(author="x", output={"\ud800": 1}))
        told = [await client.next()]
        while told[-1].kind != "appended":
            told.append(await client.next())

    assert snapshot.data["state"] == {"app:v": str(value)}
    assert told[-1].data["event"]["output"] == {"\ud800": 1}


async def test_invalid_utf_8_ends_no_stream(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """The valid part of the text is delivered."""
    session = await service.create_session(**SESSION)
    text = b"a\xffb\0"
    raw = b"\2v\0" + len(text).to_bytes(4, "little") + text
    state = RawBSONDocument((len(raw) + 5).to_bytes(4, "little") + raw + b"\0")
    async with Follower(service.watch(APP, USER, ID)) as follower:
        admin[database].app_states.insert_one({"_id": APP, "state": state})
        await service.append_event(session, new_event())
        await follower.reached(1)

    assert follower.state == {"app:v": "a\N{REPLACEMENT CHARACTER}b"}
