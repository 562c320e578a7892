"""A service on a client of the caller's, who alone closes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.adk.events import Event
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient
from support.failpoints import failing, victim_uri

from mongo_session_service import ConfigurationError, MongoSessionService

IDS = {"app_name": "app", "user_id": "user"}


async def use(service: MongoSessionService, session_id: str) -> None:
    session = await service.create_session(**IDS, session_id=session_id)
    await service.append_event(session, Event(author="x"))
    assert await service.get_session(**IDS, session_id=session_id) == session


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("make", [AsyncMongoClient, AsyncIOMotorClient])
def test_a_borrowed_client_stays_in_its_loop(
    mongodb_uri: str,
    database: str,
    make: Callable[[str], Any],
    is_closed: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """Used from another loop, even after ``close()``, it is refused with the remedy."""
    client = make(mongodb_uri)
    service = MongoSessionService(client=client, database=database)
    elsewhere: list[BaseException | None] = []

    async def main() -> None:
        await use(service, "s")
        if is_closed:
            await service.close()
        thread = threading.Thread(target=in_another_loop)
        thread.start()
        await asyncio.to_thread(thread.join)
        await use(service, "s2")
        if make is AsyncMongoClient:
            await client.close()
        else:
            client.close()

    def in_another_loop() -> None:
        try:
            asyncio.run(use(service, "elsewhere"))
        except ConfigurationError as error:
            elsewhere.append(error)

    asyncio.run(main())

    assert "another event loop" in str(elsewhere[0])
    assert "URI" in str(elsewhere[0])


async def test_a_borrowed_client_is_not_closed(mongodb_uri: str, database: str) -> None:
    """The caller's client is the caller's: close() leaves it open."""
    async with AsyncMongoClient(mongodb_uri) as client:
        async with MongoSessionService(client=client, database=database) as service:
            await use(service, "s")
        await client.admin.command("ping")


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_close_waits_for_appends_of_a_borrowed_client(
    mongodb_uri: str,
    admin: MongoClient,
    database: str,
    is_elsewhere: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """Once the service is closed, its appends are committed, in whichever loop."""
    client: AsyncMongoClient[Any] = AsyncMongoClient(victim_uri(mongodb_uri))
    service = MongoSessionService(client=client, database=database)
    session = await service.create_session(**IDS, session_id="s")
    slow = {"blockConnection": True, "blockTimeMS": 200}

    with failing(admin, "commitTransaction", times=1, **slow) as wait_until_hit:
        append = service.append_event(session, Event(author="x"))
        appending = asyncio.create_task(append)
        await asyncio.to_thread(wait_until_hit)
        if is_elsewhere:
            await asyncio.to_thread(asyncio.run, service.close())
        else:
            await service.close()
        stored = admin[database]["events"].count_documents({})
        await appending
        await client.close()

    assert stored == 1


@pytest.mark.parametrize("make", [AsyncMongoClient, AsyncIOMotorClient])
async def test_a_client_closed_too_early_is_reported(
    mongodb_uri: str, database: str, make: Callable[[str], Any]
) -> None:
    """The error names the remedy."""
    client = make(mongodb_uri)
    service = MongoSessionService(client=client, database=database)
    await use(service, "s")
    closing = client.close()
    if closing is not None:
        await closing

    with pytest.raises(ConfigurationError, match="client was closed. Give"):
        await use(service, "s2")
