"""What a process does that feeds a memory service until it is killed."""

from __future__ import annotations

import asyncio
from importlib import import_module
from multiprocessing.connection import Connection

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.memory import remember
from mongo_session_service.model.limits import Limits

LIMITS = Limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
"""For many take-overs."""


def feed(uri: str, database: str, pipe: Connection) -> None:
    """Feed ADK's memory service on the same database; tell of every change before."""
    asyncio.run(_feed(uri, database, pipe))


async def _feed(uri: str, database: str, pipe: Connection) -> None:
    adk = import_module("google.adk.integrations.mongodb")  # from ADK 2.13 on
    memory = adk.MongoDbMemoryService(connection_string=uri, database_name=database)
    handler = remember(memory)

    async def handle(change: Change) -> None:
        pipe.send(change.revision)
        await handler(change)

    async with MongoSessionService(uri, database=database, _limits=LIMITS) as service:
        await service.consumer("memory", app_name="app").run(handle)
