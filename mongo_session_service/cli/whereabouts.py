"""Whereabouts: the database that a command shows, and others that hold sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pymongo
from pymongo.errors import PyMongoError

from mongo_session_service.backend import backend_of
from mongo_session_service.cli.terminal import printable

if TYPE_CHECKING:
    from mongo_session_service.driver.connection import Connection
    from mongo_session_service.service import MongoSessionService

_OF_MONGODB: Final = {"admin", "config", "local"}
_MOST: Final = 100
"""Databases looked into."""
_PATIENCE: Final = 5.0  # seconds


def server_of(uri: str) -> str:
    """The hosts in a URI, without user and password."""
    authority = uri.partition("://")[2].partition("?")[0].partition("/")[0]
    return printable(authority.rpartition("@")[2])


async def whereabouts(service: MongoSessionService, uri: str) -> str:
    """The database and the server, and where sessions are if it holds none."""
    shown = f"database {printable(service.database_name)} on {server_of(uri)}"
    connection = (await backend_of(service).here()).connection
    try:
        with pymongo.timeout(_PATIENCE):
            if await _has_sessions(connection.database, connection.prefix):
                return shown
            others = await _others(connection)
    except PyMongoError:  # nothing is known of others, say for want of a privilege
        return shown
    if not others:
        return f"{shown}, which holds no sessions"
    return f"{shown}, which holds no sessions; there are some in {', '.join(others)}"


async def _has_sessions(database: Any, prefix: str) -> bool:
    return await database[f"{prefix}sessions"].find_one({}, {"_id": 1}) is not None


async def _others(connection: Connection) -> list[str]:
    """Databases and prefixes with sessions, as the options name them."""
    names = await connection.client.list_database_names()
    found = []
    for name in [each for each in names if each not in _OF_MONGODB][:_MOST]:
        database = connection.client[name]
        there = set(await database.list_collection_names())
        ends = [each for each in there if each.endswith("sessions")]
        for prefix in sorted(each.removesuffix("sessions") for each in ends):
            ours = {f"{prefix}{name}" for name in ("sessions", "events", "metadata")}
            if ours <= there and await _has_sessions(database, prefix):
                option = f" --prefix {prefix}" if prefix else ""
                found.append(printable(f"--database {name}{option}"))
    return found
