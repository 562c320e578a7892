"""Whether anything is left of what is over: by server, driver or event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from pymongo import AsyncMongoClient, MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.service import backends_of
from support.cancel_points import is_drivers
from support.failpoints import open_transactions
from support.patience import PATIENCE


def cursors(admin: MongoClient, database: str, *, streams: bool = True) -> set[int]:
    """The ids of those in a database that no request is using just now."""
    but = "" if streams else r"(?!\$cmd)"
    stages = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"type": "idleCursor", "ns": {"$regex": rf"^{database}\.{but}"}}},
    ]
    return {each["cursor"]["cursorId"] for each in admin.admin.aggregate(stages)}


def checked_out(client: AsyncMongoClient[Any]) -> int:
    """How many places in a client's pools are taken, with a connection or without."""
    servers = client._topology._servers.values()  # noqa: SLF001  nobody else tells
    return sum(each.pool.requests for each in servers)


async def returned(client: AsyncMongoClient[Any], *, but: int = 0) -> None:
    """Return when all connections are back in their pools; fails if that is long.

    The driver takes one itself now and then.

    Args:
        client: Whose.
        but: As many may be in use.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while checked_out(client) > but:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.01)
    assert checked_out(client) <= but


def others_tasks() -> set[asyncio.Task[Any]]:
    """All tasks but the current one and the driver's, which listens to the server."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return {each for each in tasks if each and not is_drivers(each)}


async def tasks_over(before: set[asyncio.Task[Any]]) -> None:
    """Return when all tasks have ended that were begun since; fails if that is long."""
    if left := others_tasks() - before:
        _, pending = await asyncio.wait(left, timeout=PATIENCE)
        assert not pending, pending


@asynccontextmanager
async def leaving_nothing(
    admin: MongoClient, service: MongoSessionService
) -> AsyncIterator[None]:
    """Close a service of the victim's at the end; fails if anything is left of it."""
    before = others_tasks()
    yield
    opened = backends_of(service).opened  # of every loop
    clients = [each.storage.client for each in opened]
    await service.close()
    await tasks_over(before)
    for client in clients:
        await returned(client)
    assert open_transactions(admin) == 0
    assert cursors(admin, service.database_name, streams=False) == set()
