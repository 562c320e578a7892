"""A client with a connection from before its server was ready."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from google.adk.sessions import Session
from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded.mongod import HOST, Mongod, find_mongod, free_ports
from support.replica_set import initiate_alone
from support.subscriptions import SESSION


class Early(NamedTuple):
    """Who has such a connection, and has not used it."""

    service: MongoSessionService
    session: Session
    """Of another's making."""


@asynccontextmanager
async def early() -> AsyncIterator[Early]:
    """A service whose one connection is from before its primary was one.

    PyMongo opens the like of it to end a cursor, for which it connects to any member.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="mongo-session-service-") as folder:
        mongod = Mongod(find_mongod(), port, Path(folder), None)
        try:
            mongod.wait_until_listening()
            client = AsyncMongoClient[Any](HOST, port, directConnection=True)
            await client.admin.command("ping")
            initiate_alone(mongod, port)
            async with MongoSessionService(f"mongodb://{HOST}:{port}") as other:
                session = await other.create_session(**SESSION)
            async with MongoSessionService(client=client) as service:
                yield Early(service, session)
            await client.close()
        finally:
            mongod.end()
