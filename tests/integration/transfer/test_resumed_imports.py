"""Ids whose sessions are half imported, expired, or being removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.long_sessions import left_in, store_long_session
from support.sample_data import APPS
from support.subscriptions import Follower, until
from support.transfers import IDS, differences, everything, moved, say

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import backends_of
from mongo_session_service.sessions.deletion import remove_some
from mongo_session_service.transfer import EVERYTHING, Policies, ServiceSource, move
from mongo_session_service.transfer.sources import Item, Selection, SessionHeader

KEY = SessionKey(**IDS)
OF_KEY = {f"_id.{name}": part for name, part in IDS.items()}


class Pausing(ServiceSource):
    """A source that lets something be done in the middle of the session ``IDS``."""

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Read, and pause after five of its six events."""
        key, number = None, 0
        async for item in super().read(selection):
            yield item
            if isinstance(item, SessionHeader):
                key, number = item.key, 0
            elif isinstance(item, Event):
                number += 1
                if (key, number) == (KEY, 5):
                    await self.pause()

    async def pause(self) -> None:
        """To be replaced."""


@pytest.fixture
def two_events_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the session one of three parts."""
    monkeypatch.setattr("mongo_session_service.transfer.batches.MAX_EVENTS", 2)


@pytest.fixture
async def half(
    two_events_together: None,  # noqa: ARG001
    old: InMemorySessionService,
    service: MongoSessionService,
) -> None:
    """Breaks an import off when four events of the session are stored."""

    async def break_off() -> None:
        raise ConnectionResetError

    source = Pausing(old, APPS)
    source.pause = break_off  # type: ignore[method-assign]
    with pytest.raises(ConnectionResetError):
        await move(source, service)


@pytest.mark.usefixtures("half")
async def test_a_half_imported_id_is_taken(
    service: MongoSessionService, old: InMemorySessionService
) -> None:
    """Nobody is shown such a session, nor can create one that would show its events."""
    assert await service.get_session(**IDS) is None
    assert KEY.session_id not in {
        each.id
        for each in (await service.list_sessions(app_name="weather")).sessions
        if each.user_id == KEY.user_id
    }
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**IDS)

    await moved(old, service)
    assert await differences(old, service) == []


@pytest.mark.usefixtures("half")
async def test_an_abandoned_import_frees_its_id(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """After its time a new session takes the id, and shows none of the old events."""
    expired = {"$set": {"expire_time": 1.0}}
    admin[database].sessions.update_one({"_id": KEY.id}, expired)

    await service.create_session(**IDS)

    session = await service.get_session(**IDS)
    assert session is not None
    assert session.events == []


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("how", ["prune", "delete"])
async def test_leftovers_of_an_import_can_be_removed(
    service: MongoSessionService,
    old: InMemorySessionService,
    admin: MongoClient,
    database: str,
    how: str,
) -> None:
    """Pruning, after its time, and deleting leave no event behind; it can come anew."""
    if how == "prune":
        expired = {"$set": {"expire_time": 1.0}}
        admin[database].sessions.update_one({"_id": KEY.id}, expired)
        await service.prune()
    else:
        await service.delete_session(**IDS)

    assert admin[database].events.count_documents(OF_KEY) == 0
    assert admin[database].sessions.count_documents({"_id": KEY.id}) == 0
    await moved(old, service)
    assert await differences(old, service) == []


async def test_an_import_finishes_a_removal_first(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Events of a session that is being removed do not end up in the imported one."""
    await store_long_session(service, admin, database, KEY, 2_500)
    opened = await backends_of(service).backend()
    steps = remove_some(opened.storage, {"_id": KEY.id})
    for _ in range(2):  # the tombstone, and the first thousand events
        await anext(steps)
    await steps.aclose()
    assert left_in(admin, database) == {"sessions": 1, "events": 1_500}

    result, _ = await moved(old, service)

    assert (result.new, result.is_complete) == (5, True)
    assert left_in(admin, database) == {"sessions": 5, "events": 24}
    assert await differences(old, service) == []


async def test_an_expired_session_is_no_conflict(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Whatever it held: it is as good as gone, though a dry run leaves it there."""
    await service.create_session(**IDS)
    await say(service, "something else")
    expired = {"$set": {"expire_time": 1.0}}
    admin[database].sessions.update_one({"_id": KEY.id}, expired)
    before = everything(admin, database)

    tried, _ = await moved(old, service, Policies(is_dry_run=True))
    assert everything(admin, database) == before
    result, _ = await moved(old, service)

    assert (tried.new, result.new) == (5, 5)
    assert await differences(old, service) == []


@pytest.mark.usefixtures("two_events_together")
async def test_a_session_deleted_during_its_import_is_reported(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """A part does not become a session; run again, the import brings all of it."""

    async def delete() -> None:
        await until(lambda: admin[database].events.count_documents(OF_KEY) == 4)
        await service.delete_session(**IDS)

    source = Pausing(old, APPS)
    source.pause = delete  # type: ignore[method-assign]

    with pytest.raises(ConflictError, match="'s1'.* was removed meanwhile.*Run the"):
        await move(source, service)

    assert await service.get_session(**IDS) is None
    await moved(old, service)
    assert await differences(old, service) == []


async def test_subscribers_receive_imported_sessions(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """First come the events, and then the session's creation."""
    user = {"app_name": KEY.app_name, "user_id": KEY.user_id}
    async with Follower(service.watch(**user)) as follower:
        await moved(old, service)
        await follower.until(lambda: follower.kinds.count("created") == 2)
        told = [each for each in follower.told if each.session_id == "s1"]
        assert [each.kind for each in told] == ["appended"] * 6 + ["created"]
        assert [each.revision for each in told] == [1, 2, 3, 4, 5, 6, 6]
