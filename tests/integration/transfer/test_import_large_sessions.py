"""Sessions that are too large to be written at once, and moves that are broken off."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.sample_data import APPS
from support.transfers import (
    IDS,
    LATER,
    REPLACE,
    SKIP,
    differences,
    everything,
    moved,
    say,
)

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.transfer import EVERYTHING, ServiceSource, move
from mongo_session_service.transfer.sources import Item, Selection


@pytest.fixture(autouse=True)
def two_events_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every session of six events one of three parts."""
    monkeypatch.setattr("mongo_session_service.transfer.batches.MAX_EVENTS", 2)


class BrokenOffError(Exception):
    pass


class Breaking(ServiceSource):
    """A source that breaks off after so many events."""

    left = 0

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        async for item in super().read(selection):
            if isinstance(item, Event):
                if self.left == 0:
                    raise BrokenOffError
                self.left -= 1
            yield item


async def break_off(
    old: InMemorySessionService, service: MongoSessionService, after: int
) -> None:
    source = Breaking(old, APPS)
    source.left = after
    with pytest.raises(BrokenOffError):
        await move(source, service)


@pytest.mark.parametrize("after", range(0, 24, 3))
async def test_a_move_goes_on_after_it_was_broken_off(
    old: InMemorySessionService, service: MongoSessionService, after: int
) -> None:
    """Wherever it stopped, no session is there in part, and the next move ends it."""
    await break_off(old, service, after)

    for app_name in APPS:
        listed = await service.list_sessions(app_name=app_name)
        for each in listed.sessions:
            session = await service.get_session(
                app_name=app_name, user_id=each.user_id, session_id=each.id
            )
            assert session is not None
            assert len(session.events) == 6
    await moved(old, service)
    assert await differences(old, service) == []


async def test_leftovers_of_an_interrupted_move_are_replaced(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Events of a session that never came to exist are replaced, not added to."""
    await break_off(old, service, 5)
    stored = admin[database].events
    assert stored.count_documents({}) == 4
    stored.update_one({"_id.revision": 2}, {"$set": {"event.author": "changed"}})

    await moved(old, service)

    assert stored.count_documents({}) == 24
    assert await differences(old, service) == []


async def test_a_large_session_catches_up(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """Only what is new of a large session is written, in parts as well."""
    await moved(old, service)
    for number in range(5):
        await say(old, f"late {number}", LATER + number, topic=f"late {number}")

    result, _ = await moved(old, service)
    again, _ = await moved(old, service)

    assert (result.caught_up, result.unchanged, result.events) == (1, 4, 5)
    assert (again.unchanged, again.events) == (5, 0)
    assert await differences(old, service) == []


async def test_a_large_session_that_went_on_in_the_target_is_left_alone(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """A large session that is ahead is told from one in conflict."""
    await moved(old, service)
    for number in range(3):
        await say(service, f"after the switch {number}", LATER + number)

    result, problems = await moved(old, service)

    assert (result.ahead, result.unchanged, problems) == (1, 4, [])


async def test_a_conflict_in_a_large_session_is_found(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """It stops the move, is skipped or replaced, in whichever part it is."""
    await moved(old, service)
    await say(old, "in the old", topic="old")
    await say(service, "in the new", topic="new")
    before = everything(admin, database)

    with pytest.raises(ConflictError, match=r"event 7 \('in the old'\) differs"):
        await moved(old, service)
    skipped, _ = await moved(old, service, SKIP)
    assert everything(admin, database) == before
    replaced, _ = await moved(old, service, REPLACE)

    assert (skipped.skipped, skipped.unchanged) == (1, 4)
    assert (replaced.replaced, replaced.unchanged, replaced.events) == (1, 4, 1)
    assert await differences(old, service) == []


async def test_an_early_conflict_in_a_large_session_is_replaced(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """All from the first difference on is the source's, and nothing is left over."""
    await moved(old, service)
    for number in range(4):
        await say(service, f"only here {number}", LATER + number)
    third = {"_id": {**IDS, "revision": 3}}
    admin[database].events.update_one(third, {"$set": {"event.author": "changed"}})

    result, _ = await moved(old, service, REPLACE)

    assert (result.replaced, result.events) == (1, 4)
    assert await differences(old, service) == []
