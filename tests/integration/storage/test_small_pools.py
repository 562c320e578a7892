"""A client of a single connection serves everybody, one after the other."""

from __future__ import annotations

import asyncio

from google.adk.sessions import Session
from pymongo import MongoClient
from support.failpoints import victim_uri
from support.resource_checks import leaving_nothing
from support.subscriptions import APP, IDS, PATIENCE, USER, Follower, new_event

from mongo_session_service import MongoSessionService

SESSIONS = 100


async def test_a_hundred_appends_and_a_pool_of_one(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Appends, reads and a subscription share one connection, and none is stuck."""
    uri = f"{victim_uri(mongodb_uri)}&maxPoolSize=1"
    async with (
        asyncio.timeout(PATIENCE),
        MongoSessionService(uri, database=database) as service,
        leaving_nothing(admin, service),
        Follower(service.watch(APP, USER)) as follower,
    ):

        async def read(session: Session) -> list[str]:
            found = await service.get_session(**IDS, session_id=session.id)
            assert found is not None
            return [event.author for event in found.events]

        sessions = await asyncio.gather(
            *(
                service.create_session(**IDS, session_id=str(number))
                for number in range(SESSIONS)
            )
        )
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(service.append_event(session, new_event(session.id)))
            reading = [group.create_task(read(session)) for session in sessions]
            group.create_task(service.list_sessions(**IDS))
            group.create_task(service.get_user_state(**IDS))

        for session, earlier in zip(sessions, reading, strict=True):
            assert await earlier in ([], [session.id])
            assert await read(session) == [session.id]
        await follower.until(
            lambda: (
                follower.revisions
                == {f"{APP}/{USER}/{number}": [1] for number in range(SESSIONS)}
            )
        )
