"""Whereabouts: the database that a command shows, and what else holds sessions."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import pymongo
from pymongo.errors import PyMongoError

from mongo_session_service.backend import backend_of
from mongo_session_service.cli.terminal import printable
from mongo_session_service.errors import StorageUnavailableError
from mongo_session_service.model.wording import plural
from mongo_session_service.sessions import directory

if TYPE_CHECKING:
    from mongo_session_service.driver.connection import Connection
    from mongo_session_service.service import MongoSessionService

_OF_MONGODB: Final = {"admin", "config", "local"}
_NEAR: Final = 0.5
"""How alike two names are for one to be a misspelling of the other; 1 is equal."""
_MOST: Final = 100
"""Databases looked into."""
_PATIENCE: Final = 5.0  # seconds


def server_of(uri: str) -> str:
    """The hosts in a URI, without user and password."""
    authority = uri.partition("://")[2].partition("?")[0].partition("/")[0]
    return printable(authority.rpartition("@")[2])


async def whereabouts(
    service: MongoSessionService, uri: str, apps: Sequence[str]
) -> str:
    """The database and the server, and where sessions are if it holds none.

    If it holds none of some of these apps, the apps with similar names as well.
    """
    shown = f"database {printable(service.database_name)} on {server_of(uri)}"
    connection = (await backend_of(service).here()).connection
    try:
        with pymongo.timeout(_PATIENCE):
            if await _has_sessions(connection.database, connection.prefix):
                return shown + await _instead(connection, apps)
            others = await _others(connection)
    except (
        PyMongoError,
        StorageUnavailableError,
    ):  # nothing is known of others, say for want of a privilege
        return shown
    if not others:
        return f"{shown}, which holds no sessions"
    return f"{shown}, which holds no sessions; there are some in {', '.join(others)}"


async def _has_sessions(database: Any, prefix: str) -> bool:
    return await database[f"{prefix}sessions"].find_one({}, {"_id": 1}) is not None


async def _instead(at: Connection, apps: Sequence[str]) -> str:
    """That apps have no sessions, and which have; empty if all of them have some."""
    stored = await directory.apps(at) if apps else []
    without = [each for each in apps if each not in stored]
    if not without:
        return ""
    near = {
        it for app in without for it in get_close_matches(app, stored, cutoff=_NEAR)
    }
    some = f", but some of the similar {_named(sorted(near))}"
    hint = some if near else "; `mongo-session-service sessions` lists its apps"
    return f", which holds no sessions of {_named(without)}{hint}"


def _named(apps: Sequence[str]) -> str:
    return f"{plural(len(apps), 'app')} {printable(', '.join(apps))}"


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
