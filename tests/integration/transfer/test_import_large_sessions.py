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
    SKIP,
    differences,
    everything,
    moved,
    say,
)

from mongo_session_service import MongoSessionService
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


async def test_a_large_session_with_an_early_conflict_is_left_alone(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Nothing is added behind the parts that are the same, nor behind the others."""
    await moved(old, service)
    for number in range(4):
        await say(old, f"only there {number}", LATER + number)
    third = {"_id": {**IDS, "revision": 3}}
    admin[database].events.update_one(third, {"$set": {"event.author": "changed"}})

    before = everything(admin, database)

    result, _ = await moved(old, service, SKIP)

    assert (result.skipped, result.unchanged, result.events) == (1, 4, 0)
    assert everything(admin, database) == before
