"""Server: whether it keeps the service's promises, and which collections it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pymongo
from pymongo import IndexModel, MongoClient
from pymongo.common import SERVER_SELECTION_TIMEOUT
from pymongo.errors import (
    CollectionInvalid,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.write_concern import WriteConcern

from mongo_session_service.errors import ConfigurationError, StorageError
from mongo_session_service.storage.clients import Driver, open_client
from mongo_session_service.storage.failures import (
    TRANSIENT_CODES,
    UNAUTHORIZED,
    Effect,
    ErrorTranslation,
    certificate_refusal,
    repeat,
    topology_of,
)

if TYPE_CHECKING:  # the command line answers without ADK
    from mongo_session_service.storage.database import Database

_POLL: Final = 0.1  # seconds
_LOCAL_PATIENCE: Final = 1.5  # seconds
_LOCAL_HOSTS: Final = {"127.0.0.1", "::1", "localhost"}
_MIN_WIRE_VERSION: Final = 13  # MongoDB 5.0, the first with snapshot reads


async def ask_hello(client: Any) -> dict[str, Any]:
    """Return the server's reply to ``hello``, in which it describes itself.

    If no server has a certificate that is accepted, it raises ``ConfigurationError``:
    the driver would retry that for half a minute, as if the server were down. Where
    nobody listens on this machine, it fails soon, unless the client has a time of its
    own for that: the driver would wait as long as for a distant election.
    """
    started = time.monotonic()
    has_own_time = client.options.server_selection_timeout != SERVER_SELECTION_TIMEOUT
    asking = asyncio.ensure_future(client.admin.command("hello"))
    # If the caller is cancelled, the client may be closed before it ends.
    asking.add_done_callback(lambda it: it.cancelled() or it.exception())
    try:
        while not (await asyncio.wait([asking], timeout=_POLL))[0]:
            if refusal := certificate_refusal(client):
                raise ConfigurationError(refusal)
            servers = topology_of(client).server_descriptions().values()
            is_late = not has_own_time and time.monotonic() - started > _LOCAL_PATIENCE
            if is_late and all(
                each.address[0] in _LOCAL_HOSTS and each.error for each in servers
            ):
                raise ServerSelectionTimeoutError
        hello: dict[str, Any] = asking.result()
        return hello
    finally:
        asking.cancel()


async def shake_hands(database: Database) -> None:
    """Refuse a server that cannot be used, and set the clock by it."""

    async def ask() -> None:
        hello = await ask_hello(database.client)
        database.clock.set_by(hello)
        await check_product(database.metadata, hello)
        check_server(hello, transactions=database.has_transactions)

    if database.driver is not Driver.MOCK:
        await repeat(database.client, ask, Effect.READ, patient=False)


async def examined_hello(database: Database) -> dict[str, Any]:
    """Return the server's reply to ``hello``; refuse mongomock, which has no server."""
    if database.driver is Driver.MOCK:
        message = "There is no MongoDB behind mongomock to examine."
        raise ConfigurationError(message)
    return await ask_hello(database.client)


async def require_answer(uri: str, limit: float) -> None:
    """Require an answer within seconds, unless the URI sets a time of its own."""
    client = open_client(uri)
    has_own_time = "serverselectiontimeoutms" in uri.lower()
    async with ErrorTranslation(client):
        try:
            with pymongo.timeout(None if has_own_time else limit):
                await ask_hello(client)
        finally:
            await client.close()


def check_server(hello: dict[str, Any], *, transactions: bool) -> None:
    """Refuse a server that cannot keep the promises, from its ``hello`` reply."""
    if hello["maxWireVersion"] < _MIN_WIRE_VERSION:
        message = "MongoDB 5.0 or newer is needed; this server is older. Upgrade it."
        raise ConfigurationError(message)
    if hello.get("isreplicaset"):
        message = "The replica set is not initiated: call rs.initiate() on it once."
        raise ConfigurationError(message)
    if transactions and is_standalone(hello):
        message = (
            "This MongoDB server is a standalone: it has no transactions, so an event"
            " and its state could be torn apart. Run it as a replica set (a single"
            " member is enough): start mongod with --replSet rs0, then call"
            " rs.initiate() once."
        )
        hint = "To do without the guarantee, pass transactions=False."
        raise ConfigurationError(message, hint=hint)


async def check_product(metadata: Any, hello: dict[str, Any]) -> None:
    """Refuse a product that speaks MongoDB's protocol and lacks snapshot reads."""
    # Only MongoDB reports a version of its topology, and an old one is refused as such.
    if "topologyVersion" in hello or hello["maxWireVersion"] < _MIN_WIRE_VERSION:
        return
    command = {
        "aggregate": metadata.name,
        "pipeline": [{"$limit": 1}],
        "cursor": {},
        "readConcern": {"level": "snapshot"},
    }
    try:
        reply = await metadata.database.command(command)
    except OperationFailure as error:
        if error.code in TRANSIENT_CODES | {UNAUTHORIZED}:
            raise
        reply = {}
    if "atClusterTime" not in reply.get("cursor", ()):
        raise ConfigurationError(
            "This server is not MongoDB: it has no snapshot reads, which the service"
            " cannot do without. Use MongoDB 5.0 or newer, on Atlas or as a replica"
            " set."
        )


def is_mongos(hello: dict[str, Any]) -> bool:
    """True if a server is the router of a sharded cluster."""
    return hello.get("msg") == "isdbgrid"


def is_standalone(hello: dict[str, Any]) -> bool:
    """True if a server belongs to no replica set, nor to a sharded cluster."""
    return "setName" not in hello and not is_mongos(hello)


Result = TypeVar("Result")

_REASONS: Final = {
    11000: "the data holds an event twice",
    85: "another index of the same keys exists, and is not changed",
    86: "another index of that name exists, and is not changed",
}
_NAMESPACE_EXISTS: Final = 48
_PRIMARY_ONLY: Final = WriteConcern(w=1)
"""Whoever creates something writes to a document after it: a majority confirms that,
and by the order of the oplog all that came before."""


class NotCreatedError(StorageError):
    """Something is in the place of an index; the message is what that is."""


async def collection_names(database: Database) -> set[str]:
    """Return the names of the service's collections, without its prefix."""
    names = await _repeat(database, database.database.list_collection_names)
    prefix = database.prefix
    return {each.removeprefix(prefix) for each in names if each.startswith(prefix)}


async def index_information(database: Database, collection: str) -> dict[str, Any]:
    """Return the keys and options of each index, by name."""
    return await _repeat(database, database.collection(collection).index_information)


async def count_documents(database: Database, collection: str) -> int:
    """Estimate the number of documents, without reading them."""
    counted = database.collection(collection).estimated_document_count
    return await _repeat(database, counted)


async def create_collection(database: Database, collection: str) -> None:
    """Create a collection, unless it exists."""
    is_mock = database.driver is Driver.MOCK
    options: dict[str, Any] = {"write_concern": _PRIMARY_ONLY, "check_exists": False}

    async def create() -> None:
        with suppress(CollectionInvalid):
            try:
                await database.database.create_collection(
                    database.prefix + collection, **({} if is_mock else options)
                )
            except OperationFailure as error:
                if error.code != _NAMESPACE_EXISTS:
                    raise

    await _repeat(database, create)


async def create_indexes(
    database: Database,
    collection: str,
    indexes: Sequence[tuple[list[tuple[str, int]], dict[str, Any]]],
) -> None:
    """Create indexes, each of keys and options, and their collection.

    Raises:
        NotCreatedError: of several none may be created.
    """
    target = database.collection(collection)
    if database.driver is not Driver.MOCK:
        target = target.with_options(write_concern=_PRIMARY_ONLY)
    models = [IndexModel(keys, **options) for keys, options in indexes]

    async def create() -> None:
        try:
            await target.create_indexes(models)
        except OperationFailure as error:
            if error.code not in _REASONS:
                raise
            raise NotCreatedError(_REASONS[error.code]) from None

    await _repeat(database, create)


async def _repeat(database: Database, work: Callable[[], Awaitable[Result]]) -> Result:
    # What is created twice is there once.
    return await repeat(database.client, work, Effect.READ, patient=False)


_PRIMARY: Final = 1
_SECONDARY: Final = 2


def initiate(name: str, hosts: list[str], settings: dict[str, int]) -> Iterator[None]:
    """Initiate a replica set, unless its data holds it.

    Each look at its members is one step; it ends once there is a primary and the others
    are secondaries. The first member calls for elections at once, rather than after a
    timeout.
    """
    members = [{"_id": index, "host": host} for index, host in enumerate(hosts)]
    config = {"_id": name, "members": members, "settings": settings}
    client: MongoClient[Any] = MongoClient(
        hosts[0], directConnection=True, serverSelectionTimeoutMS=2000
    )
    with client:
        with suppress(PyMongoError):  # it is initiated already
            client.admin.command("replSetInitiate", config)
        while True:
            with suppress(PyMongoError):
                status = client.admin.command("replSetGetStatus")
                states = sorted(member["state"] for member in status["members"])
                if states == [_PRIMARY] + [_SECONDARY] * (len(states) - 1):
                    return
                if _PRIMARY not in states:
                    client.admin.command("replSetStepUp")
            yield
