"""What a process does that consumes until it is killed."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.connection import Connection

from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits

LIMITS = Limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
"""For many take-overs."""


def consume(uri: str, database: str, pipe: Connection) -> None:
    """Note every event in the collection ``seen``, and tell of it through the pipe.

    Every seventh time it commits, and notes what is committed now.
    """
    asyncio.run(_consume(uri, database, pipe))


async def _consume(uri: str, database: str, pipe: Connection) -> None:
    async with (
        AsyncMongoClient(uri) as client,
        MongoSessionService(uri, database=database, _limits=LIMITS) as service,
        service.consumer("crashing") as consumer,
    ):
        seen, mine, number = client[database].seen, {"process": os.getpid()}, 0
        async for change in consumer:
            if change.kind == "appended":
                key = f"{change.session_id}/{change.revision}"
                await seen.insert_one({"key": key, **mine})
                number += 1
                pipe.send(key)
            if number % 7 == 0:
                await consumer.commit()
                await seen.update_many(mine, {"$set": {"committed": True}})
