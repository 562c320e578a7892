"""What turns cost: commands, and nothing outside of them."""

from __future__ import annotations

from google.adk.events import Event
from pymongo import AsyncMongoClient, MongoClient
from support.command_log import CommandsSent
from support.one_session import IDS, read

from mongo_session_service import MongoSessionService

APPEND = ["update", "insert", "commitTransaction"]
TAKE = RELEASE = "findAndModify"
READ = "aggregate"


async def test_an_uncontended_turn_costs_two_updates(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """And the read of its Session; appends in it are as many commands as elsewhere."""
    sent = CommandsSent()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[sent]) as client:
        service = MongoSessionService(client=client, database=database)
        await service.setup()
        session = await service.create_session(**IDS)
        sent.clear()
        await service.append_event(session, Event(author="outside"))
        outside = sent.names

        sent.clear()
        async with service.turn(**IDS) as session:
            await service.append_event(session, Event(author="inside"))
        inside = sent.names
        await service.close()
    assert outside == APPEND
    assert inside == [TAKE, READ, *APPEND, RELEASE]
    stored = admin[database].sessions.find_one({})
    assert stored is not None
    assert stored["turn"].keys() == {"epoch", "ended"}


async def test_an_append_renews_its_turn(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """However large its delta is."""
    await service.create_session(**IDS)
    sessions = admin[database].sessions
    async with service.turn(**IDS) as session:
        for keys in (1, 1000):
            before = {"first_revision": 1} | sessions.find_one({})["turn"]
            event = Event(author="x")
            event.actions.state_delta = {f"key {number}": 1 for number in range(keys)}
            await service.append_event(session, event)
            after = sessions.find_one({})["turn"]
            assert after["renewed_at"] > before["renewed_at"]
            assert after == {**before, "renewed_at": after["renewed_at"]}
    assert (await read(service)).state == session.state
