"""What the package uses of PyMongo's private parts is as it was looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.asynchronous.command_cursor import AsyncCommandCursor
from pymongo.errors import ConfigurationError, OperationFailure

from mongo_session_service.storage.compat import (
    Driver,
    current_cursor,
    is_buffering,
    renew_connections,
)

LOGGED_OUT = OperationFailure("command find requires authentication", 13)
STARTING = ConfigurationError("Sessions are not supported by this MongoDB deployment")


@pytest.mark.parametrize(
    ("login", "error", "is_renewed"),
    [
        ("user:secret@", LOGGED_OUT, True),
        ("", LOGGED_OUT, False),
        ("", STARTING, True),
        ("user:secret@", OperationFailure("no", 13), False),
    ],
)
async def test_outdated_connections_are_replaced(
    login: str, error: Any, *, is_renewed: bool
) -> None:
    """A client has credentials and pools where they are looked for."""
    async with AsyncMongoClient(f"mongodb://{login}127.0.0.1:1/") as client:
        await client.aconnect()
        (server,) = client._topology._servers.values()  # noqa: SLF001
        before = server.pool.gen.get_overall()

        assert await renew_connections(client, error) is is_renewed

        assert (server.pool.gen.get_overall() > before) is is_renewed


async def test_a_thread_gets_a_client_with_the_same_settings() -> None:
    """A client keeps the arguments that it was made with."""
    async with AsyncMongoClient("mongodb://127.0.0.1:1/", appname="a") as client:
        database, close = Driver.PYMONGO.blocking_database(client["db"])

        assert isinstance(database.client, MongoClient)
        assert database.client.options.pool_options.appname == "a"
        assert database.name == "db"
        close()


async def test_what_a_cursor_has_buffered_is_seen() -> None:
    """The documents of a reply wait in the cursor, and the cursor in its stream."""
    async with AsyncMongoClient(connect=False) as client:
        reply = {"id": 0, "firstBatch": [{"n": 1}], "ns": "db.c"}
        cursor: Any = AsyncCommandCursor(client["db"]["c"], reply, None)
        stream = SimpleNamespace(_cursor=cursor)

        assert current_cursor(stream) is cursor
        assert current_cursor(SimpleNamespace(delegate=None)) is None
        assert is_buffering(cursor)
        await cursor.next()
        assert not is_buffering(cursor)


def test_a_change_stream_keeps_its_cursor_there() -> None:
    """It stores the cursor under that name when it is opened."""
    assert "_cursor" in AsyncChangeStream._initialize_cursor.__code__.co_names  # noqa: SLF001
