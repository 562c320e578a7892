"""Server: whether it keeps the service's promises, and which collections it holds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
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

from mongo_session_service.errors import (
    ConfigurationError,
    NotAuthorizedError,
    StorageError,
    StorageUnavailableError,
)
from mongo_session_service.storage.clients import open_client, topology_of
from mongo_session_service.storage.failures import (
    Effect,
    address_text,
    certificate_refusal,
    repeat,
)
from mongo_session_service.storage.tasks import ignore_failure

if TYPE_CHECKING:  # the command line answers without ADK
    from mongo_session_service.model.records import Document
    from mongo_session_service.storage.kernel import Storage

Result = TypeVar("Result")

_POLL: Final = 0.1  # seconds
_LOCAL_PATIENCE: Final = 1.5  # seconds
_LOCAL_HOSTS: Final = {"127.0.0.1", "::1", "localhost"}
_MIN_WIRE_VERSION: Final = 13  # MongoDB 5.0, the first with snapshot reads
_REASONS: Final = {
    11000: "the data holds an event twice",
    85: "another index of the same keys exists, and is not changed",
    86: "another index of that name exists, and is not changed",
}
_NAMESPACE_EXISTS: Final = 48
_OPTIONS_REFUSED: Final = {2, 72, 8000}
"""By a server with another storage engine, or by Atlas of a small cluster."""
_ZSTD: Final = {"wiredTiger": {"configString": "block_compressor=zstd"}}
_COMPRESSED: Final = {
    "storageEngine": _ZSTD,
    "indexOptionDefaults": {"storageEngine": _ZSTD},
}
_PRIMARY_ONLY: Final = WriteConcern(w=1)
"""Whoever creates something writes to a document after it: a majority confirms that,
and by the order of the oplog all that came before."""
_PRIMARY: Final = 1
_SECONDARY: Final = 2


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
    asking.add_done_callback(ignore_failure)
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


async def check_deployment(storage: Storage) -> None:
    """Refuse a server that cannot be used, and set the clock by it."""
    if storage.is_mock:
        return
    hello = await examined_hello(storage)
    storage.clock.set_by(hello)
    await check_product(storage, hello)
    check_server(hello, transactions=storage.has_transactions)


async def examined_hello(storage: Storage) -> dict[str, Any]:
    """Return the server's reply to ``hello``; refuse mongomock, which has no server."""
    if storage.is_mock:
        message = "There is no MongoDB behind mongomock to examine."
        raise ConfigurationError(message)
    return await storage.repeat(lambda it: ask_hello(it.client), Effect.HARMLESS)


async def require_answer(uri: str, limit: float) -> None:
    """Require an answer within seconds, unless the URI sets a time of its own."""
    client = open_client(uri)
    has_own_time = "serverselectiontimeoutms" in uri.lower()
    ask = partial(ask_hello, client)
    try:
        with pymongo.timeout(None if has_own_time else limit):
            await repeat(client, ask, Effect.HARMLESS, patient=False)
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
    is_cluster = "setName" in hello or hello.get("msg") == "isdbgrid"
    if transactions and not is_cluster:
        message = (
            "This MongoDB server is a standalone: it has no transactions, so an event"
            " and its state could be torn apart. Run it as a replica set (a single"
            " member is enough): start mongod with --replSet rs0, then call"
            " rs.initiate() once."
        )
        hint = "To do without the guarantee, pass transactions=False."
        raise ConfigurationError(message, hint=hint)


async def check_product(storage: Storage, hello: dict[str, Any]) -> None:
    """Refuse a product that implements MongoDB's protocol without snapshot reads."""
    # Only MongoDB reports a version of its topology, and an old one is refused as such.
    if "topologyVersion" in hello or hello["maxWireVersion"] < _MIN_WIRE_VERSION:
        return
    command = {
        "aggregate": f"{storage.prefix}metadata",
        "pipeline": [{"$limit": 1}],
        "cursor": {},
        "readConcern": {"level": "snapshot"},
    }
    try:
        reply = await storage.command(command)
    except (NotAuthorizedError, StorageUnavailableError):
        raise
    except StorageError:
        reply = {}
    if "atClusterTime" not in reply.get("cursor", ()):
        raise ConfigurationError(
            "This server is not MongoDB: it has no snapshot reads, which the service"
            " cannot do without. Use MongoDB 5.0 or newer, on Atlas or as a replica"
            " set."
        )


async def unreachable_members(storage: Storage) -> list[str]:
    """Return the addresses of members that the driver does not reach soon."""
    end = time.monotonic() + _LOCAL_PATIENCE
    while True:
        servers = topology_of(storage.client).server_descriptions().values()
        lost = [each for each in servers if each.server_type_name == "Unknown"]
        # Without an error it has not answered yet.
        if all(each.error for each in lost) or time.monotonic() > end:
            return sorted(address_text(each) for each in lost)
        await asyncio.sleep(_POLL)


class NotCreatedError(StorageError):
    """Something is in the place of an index; the message is what that is."""


async def collection_options(
    storage: Storage, names: Iterable[str]
) -> dict[str, Document]:
    """Return the options of each of some collections that exists, by its name."""
    by_name = {storage.prefix + each: each for each in names}
    if storage.is_mock:
        listed = await storage.database.list_collection_names()
        return {each: {} for name, each in by_name.items() if name in listed}
    command = {"listCollections": 1, "filter": {"name": {"$in": [*by_name]}}}
    found = (await storage.command(command))["cursor"]["firstBatch"]
    return {by_name[each["name"]]: each["options"] for each in found}


async def index_information(storage: Storage, collection: str) -> dict[str, Any]:
    """Return the keys and options of each index, by name."""
    return await storage.repeat(
        lambda it: it.collection(collection).index_information(), Effect.HARMLESS
    )


async def count_documents(storage: Storage, collection: str) -> int:
    """Estimate the number of documents, without reading them."""
    return await storage.repeat(
        lambda it: it.collection(collection).estimated_document_count(),
        Effect.HARMLESS,
    )


async def storage_stats(
    storage: Storage, collection: str, database: str = ""
) -> Counter[str]:
    """Return what a collection takes: each figure by MongoDB's name, of all shards.

    One of another database is named without the service's prefix.
    """
    name = collection if database else storage.prefix + collection
    stages = [{"$collStats": {"storageStats": {}}}, {"$project": {"storageStats": 1}}]
    command = {"aggregate": name, "pipeline": stages, "cursor": {}}
    reply = await storage.command(command, database=database)
    total = Counter[str]()
    for each in reply["cursor"]["firstBatch"]:
        total.update(
            {k: it for k, it in each["storageStats"].items() if isinstance(it, int)}
        )
    return total


async def create_collection(
    storage: Storage, collection: str, *, compressed: bool = False
) -> None:
    """Create a collection, if it is not there.

    If it is to be ``compressed``, it and its indexes are, as far as the server can:
    harder than by default, or at all.
    """
    name, options = storage.prefix + collection, dict[str, Any]()
    if not storage.is_mock:
        options = {"write_concern": _PRIMARY_ONLY, "check_exists": False}

    async def create(it: Storage, **more: Any) -> None:
        with suppress(CollectionInvalid):
            try:
                await it.database.create_collection(name, **options, **more)
            except OperationFailure as error:
                if error.code in _OPTIONS_REFUSED and more:
                    await create(it)
                elif error.code != _NAMESPACE_EXISTS:
                    raise

    more: dict[str, Any] = _COMPRESSED if compressed and not storage.is_mock else {}
    # What is created twice is there once.
    await storage.repeat(partial(create, **more), Effect.HARMLESS)


async def create_indexes(
    storage: Storage,
    collection: str,
    indexes: Sequence[tuple[list[tuple[str, int]], dict[str, Any]]],
) -> None:
    """Create indexes, each of keys and options, and their collection.

    Raises:
        NotCreatedError: of several none may be created.
    """
    models = [IndexModel(keys, **options) for keys, options in indexes]

    async def create(it: Storage) -> None:
        target = it.collection(collection)
        if not it.is_mock:
            target = target.with_options(write_concern=_PRIMARY_ONLY)
        try:
            await target.create_indexes(models)
        except OperationFailure as error:
            if error.code not in _REASONS:
                raise
            raise NotCreatedError(_REASONS[error.code]) from None

    await storage.repeat(create, Effect.HARMLESS)


def initiate_replica_set(
    name: str, hosts: list[str], settings: dict[str, int]
) -> Iterator[None]:
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
