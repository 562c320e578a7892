"""A look at a database, and at what it takes to work with it; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC
from typing import Any, Final, NamedTuple

from mongo_session_service.driver import snapshots
from mongo_session_service.driver.authorization import naming_privileges
from mongo_session_service.driver.compat import Driver
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.server import greeted
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import (
    ConfigurationError,
    MongoSessionServiceError,
    NotAuthorizedError,
    StorageUnavailableError,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.schema.indexes import (
    check_server,
    is_standalone,
    missing_indexes,
)
from mongo_session_service.service import MongoSessionService

from . import checkups
from .checkups import EXAMINED, LATEST, SAMPLE, Examined, Finding, Oplog, Status

Document = dict[str, Any]

_MOST: Final = 1000
"""Of what is found wrong, no more is fetched."""


async def examine(service: MongoSessionService) -> AsyncIterator[Finding]:
    """Tells how a service's database is, one respect after another.

    It creates nothing, not even the collections of a service that has never been used.
    Up to 10,000 sessions and events are all looked at, of more a sample.

    Raises:
        StorageUnavailableError: MongoDB cannot be reached.
        ConfigurationError: it can never be, or not from this event loop.
    """
    with translated():
        # Not set up: that would create collections.
        connection = (await service._clients.opened()).connection  # noqa: SLF001
        if connection.driver is Driver.MOCK:
            raise ConfigurationError("There is no MongoDB behind mongomock to examine.")
        await greeted(connection.client)
    for check in CHECKS:
        yield await _result(check, connection)


class _Check(NamedTuple):
    name: str
    look: Callable[[Connection], Awaitable[Finding]]


async def _result(check: _Check, connection: Connection) -> Finding:
    try:
        async with naming_privileges(connection):
            return await check.look(connection)
    except NotAuthorizedError as error:
        return Finding(check.name, Status.UNKNOWN, str(error), checkups.GRANT)
    except StorageUnavailableError:
        raise
    except MongoSessionServiceError as error:
        return Finding(check.name, Status.FAILED, str(error), checkups.AS_IT_SAYS)


async def _server(connection: Connection) -> Finding:
    hello = await greeted(connection.client)
    info = await connection.client.admin.command("buildInfo")
    return checkups.judge_server(hello, info["version"])


async def _members(connection: Connection) -> Finding:
    hello = await greeted(connection.client)
    servers = connection.client.topology_description.server_descriptions()
    lost = [
        f"{host}:{port}"
        for (host, port), each in servers.items()
        if each.server_type_name == "Unknown"
    ]
    return checkups.judge_members(hello, lost)


async def _transactions(connection: Connection) -> Finding:
    async def read(txn: Txn) -> None:
        await connection.metadata.find_one({"_id": "schema"}, session=txn)

    if not connection.has_transactions:
        return checkups.judge_transaction(None)
    check_server(await greeted(connection.client), transactions=True)
    began = time.perf_counter()
    await connection.transaction(read)
    return checkups.judge_transaction(time.perf_counter() - began)


async def _privileges(connection: Connection) -> Finding:
    asking = connection.client.admin.command("connectionStatus", showPrivileges=True)
    about = (await asking)["authInfo"]
    return checkups.judge_privileges(
        [each["user"] for each in about["authenticatedUsers"]],
        about["authenticatedUserPrivileges"],
        connection.database.name,
        connection.prefix,
    )


async def _version(connection: Connection) -> Finding:
    recorded = await connection.metadata.find_one({"_id": "schema"})
    return checkups.judge_version(recorded["version"] if recorded else None)


async def _indexes(connection: Connection) -> Finding:
    names = await connection.database.list_collection_names()
    missing = await missing_indexes(connection)
    return checkups.judge_indexes(missing, is_set_up=connection.sessions.name in names)


async def _oplog(connection: Connection) -> Finding:
    oplog = connection.client["local"]["oplog.rs"]
    first = await oplog.find({}, {"ts": 1}).sort("$natural", 1).limit(1).to_list(1)
    if not first:
        return checkups.judge_oplog(None)
    now = await snapshots.now(connection)
    (stats,) = await connection.aggregate(
        oplog,
        [{"$collStats": {"storageStats": {}}}, {"$project": {"storageStats": 1}}],
    )
    held = stats["storageStats"]
    fullness = held["size"] / held["maxSize"]
    return checkups.judge_oplog(Oplog(now.time - first[0]["ts"].time, fullness))


async def _clock(connection: Connection) -> Finding:
    before = time.time()
    hello = await connection.client.admin.command("hello")
    after = time.time()
    there = hello["localTime"].replace(tzinfo=UTC).timestamp()
    middle, uncertainty = (before + after) / 2, (after - before) / 2
    return checkups.judge_clock(middle - there, uncertainty)


async def _events(connection: Connection) -> Finding:
    """Look for events whose session is not stored."""
    key = {name: f"$_id.{name}" for name in SessionKey._fields}
    owner = {
        "from": connection.sessions.name,
        "localField": "_id",
        "foreignField": "_id",
        "pipeline": [{"$project": {"_id": 1}}],
        "as": "owner",
    }
    stages = [{"$group": {"_id": key}}, {"$lookup": owner}, {"$match": {"owner": []}}]
    examined = await _examined(connection, connection.events, {"_id": 1}, stages)
    return checkups.judge_orphans(examined)


async def _sessions(connection: Connection) -> Finding:
    """Compare sessions' revisions with the latest of their events."""
    # What is stored under revision 0 is no event.
    below = {"$mergeObjects": ["$$key", {"revision": 0}]}
    above = {"$mergeObjects": ["$$key", {"revision": {"$literal": {}}}]}
    is_its = {"$and": [{"$gt": ["$_id", below]}, {"$lt": ["$_id", above]}]}
    latest = [
        {"$match": {"$expr": is_its}},
        {"$sort": {"_id": -1}},
        {"$limit": LATEST},
        {
            "$group": {
                "_id": 1,
                "count": {"$sum": 1},
                "first": {"$min": "$_id.revision"},
                "last": {"$max": "$_id.revision"},
            }
        },
    ]
    log = {
        "from": connection.events.name,
        "let": {"key": "$_id"},
        "pipeline": latest,
        "as": "log",
    }
    nothing = {"count": 0, "first": 1, "last": 0}
    count = {"$min": ["$revision", LATEST]}
    first = {"$add": [{"$subtract": ["$revision", count]}, 1]}
    expected = {"count": count, "first": first, "last": "$revision"}
    is_wrong = {
        "$or": [{"$ne": [f"$found.{name}", it]} for name, it in expected.items()]
    }
    stages = [
        {"$match": {"revision": {"$gte": 0}}},
        {"$lookup": log},
        {"$set": {"found": {"$ifNull": [{"$first": "$log"}, nothing]}}},
        {"$match": {"$expr": is_wrong}},
    ]
    examined = await _examined(connection, connection.sessions, {"revision": 1}, stages)
    return checkups.judge_revisions(examined)


async def _examined(
    connection: Connection,
    collection: Any,
    fields: Document,
    stages: list[Document],
) -> Examined:
    """Which documents some stages leave, of all or of a sample at one time."""
    total = await collection.estimated_document_count()
    is_sample = total > EXAMINED
    # Drawn before anything else, or else MongoDB would read them all.
    drawn: list[Document] = [{"$sample": {"size": SAMPLE}}] if is_sample else []
    named: list[Document] = [{"$limit": _MOST}, {"$project": {"_id": 1}}]
    pipeline = [*drawn, {"$project": fields}, *stages, *named]
    is_alone = is_standalone(await greeted(connection.client))
    # A standalone server knows of no one time.
    read = connection.aggregate if is_alone else connection.snapshot
    wrong = await read(collection, pipeline)
    return Examined(total, is_sample, [each["_id"] for each in wrong])


CHECKS: Final = (
    _Check("server", _server),
    _Check("replica set", _members),
    _Check("transactions", _transactions),
    _Check("privileges", _privileges),
    _Check("clock", _clock),
    _Check("schema version", _version),
    _Check("indexes", _indexes),
    _Check("oplog window", _oplog),
    _Check("events", _events),
    _Check("sessions", _sessions),
)
