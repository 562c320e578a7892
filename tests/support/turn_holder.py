"""What a process does that holds a turn until it is killed."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService
from support.one_session import IDS


def hold(uri: str, database: str, pipe: Connection) -> None:
    """Hold the turn, have another request wait for it, and say so through the pipe."""
    asyncio.run(_hold(uri, database, pipe))


async def _hold(uri: str, database: str, pipe: Connection) -> None:
    held = asyncio.Event()

    async def request(service: MongoSessionService) -> None:
        async with service.turn(**IDS):
            held.set()
            await asyncio.Event().wait()

    async with (
        MongoSessionService(uri, database=database) as service,
        AsyncMongoClient(uri) as client,
        asyncio.TaskGroup() as requests,
    ):
        requests.create_task(request(service))
        await held.wait()
        requests.create_task(request(service))
        while not await client[database].leases.find_one({}):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pipe.send("waiting")
