"""A client with a connection from before its server was ready."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from google.adk.sessions import Session
from watching import SESSION

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded_mongod import (
    HOST,
    SET_NAME,
    Mongod,
    find_mongod,
    free_ports,
)


class Early(NamedTuple):
    """Who has such a connection, and has not used it."""

    service: MongoSessionService
    session: Session
    """Of another's making."""


@asynccontextmanager
async def early(make_client: Callable[..., Any]) -> AsyncIterator[Early]:
    """A service whose one connection is from before its primary was one.

    PyMongo opens the like of it to end a cursor, for which it connects to any member.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="mongo-session-service-") as folder:
        mongod = Mongod(find_mongod(), port, Path(folder), None)
        try:
            mongod.wait_until_listening()
            client = make_client(HOST, port, directConnection=True)
            await client.admin.command("ping")
            _initiate(mongod, port)
            async with MongoSessionService(f"mongodb://{HOST}:{port}") as other:
                session = await other.create_session(**SESSION)
            async with MongoSessionService(client=client) as service:
                yield Early(service, session)
            closing = client.close()
            if closing is not None:
                await closing
        finally:
            mongod.release()
            mongod.wait()


def _initiate(mongod: Mongod, port: int) -> None:
    members = [{"_id": 0, "host": f"{HOST}:{port}"}]
    with mongod.connect() as admin:
        admin.admin.command("replSetInitiate", {"_id": SET_NAME, "members": members})
        while not admin.admin.command("hello")["isWritablePrimary"]:
            mongod.check()
            time.sleep(0.02)
