"""Pruning of idle sessions beside those who use them: races, long logs, the walk."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from pymongo import MongoClient
from support.fake_clock import Clock
from support.long_sessions import left_in, store_long_session

from mongo_session_service import MongoSessionService, Pruned
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.transactions import Transaction

DAY = 86400.0
KEY = SessionKey("app", "ada", "s")


async def idle_session(service: MongoSessionService, clock: Clock) -> Session:
    """A session with an event, for long enough to be pruned."""
    session = await service.create_session(**KEY.id)
    await service.append_event(session, Event(author="x", timestamp=clock.now))
    clock.now += 90 * DAY
    return session


@pytest.mark.parametrize("is_dated_back", [False, True], ids=["now", "dated back"])
@pytest.mark.parametrize("when", ["before", "within"])
@pytest.mark.parametrize("transactions", [True, False], ids=["txn", "no txn"])
async def test_an_append_between_look_and_delete_keeps_the_session(
    mongodb_uri: str,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    transactions: bool,
    when: str,
    is_dated_back: bool,
) -> None:
    """It comes before the deleting transaction, or has been overtaken by its read."""
    clock = Clock.set()
    where = {"database": database, "transactions": transactions}
    room: Any = Storage if when == "before" else Transaction
    name = "run" if when == "before" else "write"
    remove = getattr(room, name)
    async with (
        MongoSessionService(mongodb_uri, **where) as service,
        MongoSessionService(mongodb_uri, **where) as user,
    ):
        session = await idle_session(user, clock)
        appended: list[Event] = []

        async def remove_late(*arguments: Any, **options: Any) -> Any:
            if not appended:
                at = 1.0 if is_dated_back else clock.now
                appended.append(Event(author="x", timestamp=at))
                await user.append_event(session, appended[0])
            return await remove(*arguments, **options)

        monkeypatch.setattr(room, name, remove_late)
        pruned = await service.prune(idle_for=DAY)

        found = await service.get_session(**KEY.id)
        assert (pruned, len(appended)) == (Pruned(), 1)
        assert found is not None
        assert [each.id for each in found.events][1:] == [appended[0].id]


async def test_a_turn_keeps_its_session(service: MongoSessionService) -> None:
    """Whoever has the turn of a session is about to append, however long it takes."""
    clock = Clock.set()
    clock.now = time.time() - 90 * DAY
    await idle_session(service, clock)

    async with service.turn(**KEY.id):
        has_turn = await service.prune(idle_for=DAY)
    has_none = await service.prune(idle_for=DAY)

    assert (has_turn, has_none) == (Pruned(), Pruned(sessions=1, events=1))


@pytest.mark.limits(removed_events=10, prune_batch=2)
async def test_long_sessions_are_pruned_to_their_last_event(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Several prunes at once remove each of them once, in steps, and count it once."""
    clock = Clock.set()
    for number, events in enumerate((3, 35, 0, 12)):
        key = KEY._replace(session_id=f"s{number}")
        await store_long_session(service, admin, database, key, events)
    clock.now += 90 * DAY
    kept = await service.create_session(**KEY.id)
    seen: list[Pruned] = []

    counted = await service.prune(idle_for=DAY, dry_run=True)
    pruned = await asyncio.gather(
        *(service.prune(seen.append, idle_for=DAY) for _ in range(2))
    )

    assert counted == Pruned(sessions=4, events=50)
    assert sum(each.sessions for each in pruned) == 4
    assert sum(each.events for each in pruned) == 50
    assert left_in(admin, database) == {"sessions": 1, "events": 0}
    assert await service.get_session(**kept_id(kept)) is not None
    assert set(pruned) <= set(seen)


def kept_id(session: Session) -> dict[str, str]:
    return SessionKey(session.app_name, session.user_id, session.id).id


@pytest.mark.limits(prune_page=5)
async def test_the_index_of_creation_is_walked_once(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """However many pages there are, none reads again what one before it has read."""
    clock = Clock.set()
    sessions = []
    for number in range(40):
        clock.now += 1
        ids = {"app_name": f"app{number % 2}", "user_id": "ada"}
        sessions.append(await service.create_session(**ids))
    clock.now += 90 * DAY
    for session in sessions[::2]:
        await service.append_event(session, Event(author="x", timestamp=clock.now))
    await service.create_session(app_name="app0", user_id="ada")
    admin[database].command("profile", 2)

    pruned = await service.prune(idle_for=DAY)

    admin[database].command("profile", 0)
    assert pruned == Pruned(sessions=20)
    profile = admin[database]["system.profile"]
    walked = list(profile.find({"op": "command", "ns": f"{database}.sessions"}))
    pages = [each for each in walked if "create_time" in str(each["command"])]
    assert len(pages) > 4
    assert {"create_time" in each["planSummary"] for each in pages} == {True}
    # One more for each page, which ends before the key that the next begins with.
    assert sum(each["keysExamined"] for each in pages) <= 40 + 2 * len(pages)
