"""A client of a single connection serves everybody, one after the other."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import Runner
from google.adk.sessions import Session
from pymongo import AsyncMongoClient, MongoClient
from support.failpoints import victim_uri
from support.resource_checks import leaving_nothing
from support.scripted_model import said
from support.spoken_model import SpokenModel
from support.subscriptions import (
    APP,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    new_event,
)

from mongo_session_service import Change, MongoSessionService

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


@pytest.mark.parametrize("size", [1, 2])
async def test_a_turn_is_followed_in_a_small_pool(
    mongodb_uri: str, database: str, size: int
) -> None:
    """A borrowed client serves an agent, two streams and a consumer as well."""
    model, handled = SpokenModel(), asyncio.Event()
    agent = LlmAgent(name="agent", model=model)
    received: list[str] = []

    async def handle(change: Change) -> None:
        if change.revision == 2:
            handled.set()

    async with (
        asyncio.timeout(PATIENCE),
        AsyncMongoClient(mongodb_uri, maxPoolSize=size) as client,
        MongoSessionService(client=client, database=database) as service,
        service.consumer("reader") as consumer,
    ):
        await service.create_session(**SESSION)
        reading = asyncio.create_task(consumer.run(handle))
        async with service.watch(*SESSION.values(), partials=True) as changes:
            running = await service.start_turn(
                Runner(agent=agent, app_name=APP, session_service=service),
                user_id=USER,
                session_id=SESSION["session_id"],
                new_message=said("Hello?"),
                run_config=RunConfig(streaming_mode=StreamingMode.SSE),
            )
            model.say("Hello.")
            async for change in changes:
                received.append(change.kind)
                if change.kind == "partial":
                    model.end_answer()
                if change.revision == 2:
                    break
        await running.result()
        await handled.wait()
        reading.cancel()
    assert {"snapshot", "turn", "partial", "appended"} <= {*received}
