"""A session that is created anew while a source is read is not joined with the old."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event
from google.adk.integrations.mongodb import MongoDbSessionService
from support.transfers import IDS

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import AdkMongoDbSource, Problem, StoreSource
from mongo_session_service.transfer.sources import Item, SessionHeader


async def create(service: Any, name: str, events: int) -> None:
    session = await service.create_session(**IDS, state={"is": name})
    for number in range(events):
        await service.append_event(session, Event(id=f"{name}{number}", author="x"))


async def read_recreated(service: Any, source: Any) -> list[Item]:
    """What a source has of a session behind its header, if it is replaced there."""
    await create(service, "old", 2)
    async with source:
        items = source.read()
        assert any([isinstance(each, SessionHeader) async for each in first(items)])
        await service.delete_session(**IDS)
        await create(service, "new", 3)
        return [each async for each in items]


async def first(items: Any) -> Any:
    """The items up to the first header."""
    async for each in items:
        yield each
        if isinstance(each, SessionHeader):
            return


async def test_of_this_package(service: MongoSessionService) -> None:
    """None of the new one's events follow the header of the old one."""
    (problem,) = await read_recreated(service, StoreSource(service))
    assert isinstance(problem, Problem)


async def test_of_adks_mongodb_service(mongodb_uri: str, new_database: str) -> None:
    """The same, and what is appended meanwhile is left out, as its state is."""
    service = MongoDbSessionService(
        connection_string=mongodb_uri, database_name=new_database
    )
    source = AdkMongoDbSource(mongodb_uri, database=new_database)
    (problem,) = await read_recreated(service, source)
    assert isinstance(problem, Problem)

    items = AdkMongoDbSource(mongodb_uri, database=new_database)
    async with items as source:
        found = source.read()
        assert [each async for each in first(found)]
        session = await service.get_session(**IDS)
        assert session is not None
        await service.append_event(session, Event(id="late", author="x"))
        assert len([each async for each in found]) == 3
    await service.close()
