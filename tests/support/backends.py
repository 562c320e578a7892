"""The services held to the contract, ADK's own reference first.

A difference is written down under the name of the test it fails, with the reason. It
is strict: a test that starts to pass has to be taken off the list.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from google.adk.sessions import BaseSessionService, InMemorySessionService
from mongomock_motor import AsyncMongoMockClient
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.storage import server
from mongo_session_service.storage.clients import Driver
from support import routing
from support.command_log import CommandsSent
from support.encryption_hooks import SEALED

Make = Callable[..., contextlib.AbstractAsyncContextManager[BaseSessionService]]


@dataclass(frozen=True)
class Backend:
    """A way to run the service, and where it is known to differ."""

    name: str
    make: Make
    """Takes a MongoDB URI, the name of an empty database, and arguments of ours."""
    differences: Mapping[str, str] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def _in_memory(_uri: str, _database: str) -> AsyncIterator[BaseSessionService]:
    yield InMemorySessionService()


@contextlib.asynccontextmanager
async def _from_uri(
    uri: str, database: str, **arguments: Any
) -> AsyncIterator[BaseSessionService]:
    async with MongoSessionService(uri, database=database, **arguments) as service:
        yield service


@contextlib.asynccontextmanager
async def _sealed(
    uri: str, database: str, **arguments: Any
) -> AsyncIterator[BaseSessionService]:
    async with MongoSessionService(
        uri, database=database, **SEALED, **arguments
    ) as service:
        yield service


@contextlib.contextmanager
def behind_mongos() -> Iterator[None]:
    """Take the replica set for a sharded cluster, of which none is at hand."""
    greeting = {
        "maxWireVersion": 17,
        "msg": "isdbgrid",
        "localTime": datetime.now(UTC).replace(tzinfo=None),
    }
    hello = mock.AsyncMock(return_value=greeting)
    with (
        mock.patch.object(Driver, "is_sharded", return_value=True),
        mock.patch.object(server, "ask_hello", hello),
    ):
        yield


@contextlib.asynccontextmanager
async def _as_through_mongos(
    uri: str, database: str, **arguments: Any
) -> AsyncIterator[BaseSessionService]:
    """As on a sharded cluster: no command for one user may concern all shards."""
    log = CommandsSent()
    async with AsyncMongoClient(uri, event_listeners=[log]) as client:
        with behind_mongos():
            service = MongoSessionService(client=client, database=database, **arguments)
            yield service
            await service.close()  # what it still writes is for a mongos as well
    sent = (it for each in log.sent for it in routing.accesses(*each))
    to_all = [each for each in sent if routing.broadcast_to_one(each)]
    assert not to_all, sorted({(each.shape, each.names_one_user) for each in to_all})


@contextlib.asynccontextmanager
async def _motor(
    uri: str, database: str, **arguments: Any
) -> AsyncIterator[BaseSessionService]:
    client = AsyncIOMotorClient(uri)
    yield MongoSessionService(client=client, database=database, **arguments)
    client.close()


@contextlib.asynccontextmanager
async def _without_transactions(
    uri: str, database: str, **arguments: Any
) -> AsyncIterator[BaseSessionService]:
    service = MongoSessionService(
        uri, database=database, transactions=False, **arguments
    )
    async with service:
        yield service


@contextlib.asynccontextmanager
async def _mongomock(
    _uri: str, database: str, **arguments: Any
) -> AsyncIterator[BaseSessionService]:
    client = AsyncMongoMockClient()
    yield MongoSessionService(
        client=client, database=database, transactions=False, **arguments
    )


_OF_SEALED = dict.fromkeys(
    (
        "test_values_find_equal_values_only",
        "test_no_operator_reaches_the_server",
    ),
    "what is encrypted twice does not equal itself",
) | dict.fromkeys(
    (
        "test_a_new_session_has_one_title",
        "test_each_side_renames",
        "test_a_display_name_that_is_no_title_is_stored_as_state",
        "test_deltas_of_few_and_of_many_keys",
        "test_a_rename_without_an_event_is_in_no_log",
        "test_a_rewind_undoes_renames_of_the_log",
    ),
    "titles are in clear, and are no display names then",
)
_OF_MOCK = {
    "test_a_first_write_creates_the_indexes": "mongomock reports no partial indexes",
    "test_values_find_equal_values_only": "in mongomock True equals 1",
    "test_parts_of_titles_find_sessions": "mongomock does not know $indexOfCP",
}

_OF_ADK = {
    "test_a_rewind_keeps_the_initial_state": (
        "ADK empties what no event has set: google/adk-python#4839"
    )
}

BACKENDS = (
    Backend("adk-in-memory", _in_memory, _OF_ADK),
    Backend("uri", _from_uri),
    Backend("sealed", _sealed, _OF_SEALED),
    Backend("mongos", _as_through_mongos),
    Backend("motor", _motor),
    Backend("no-transactions", _without_transactions),
    Backend("mongomock-motor", _mongomock, _OF_MOCK),
)
OURS = BACKENDS[1:]
