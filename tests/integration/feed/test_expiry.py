"""Sessions that expire: who is told, and what is left of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from pymongo import MongoClient
from starlette.applications import Starlette
from support.consumers import begun, take
from support.fake_clock import Clock
from support.http_server import Client, serving
from support.long_sessions import left_in, store_long_session
from support.subscriptions import (
    APP,
    ID,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    new_event,
)

from mongo_session_service import MongoSessionService, Pruned
from mongo_session_service.feed import subscription
from mongo_session_service.http import changes_route
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import deletion
from mongo_session_service.sessions.batch import BatchStore


async def test_documents_have_what_they_need(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Details are plain fields, and a session without them has none."""
    clock = Clock.set()
    details: dict[str, Any] = {"title": "T", "labels": {"b": "2", "a": "1"}, "ttl": 9}
    await service.create_session(**SESSION, **details)
    plain = await service.create_session(**IDS, session_id="plain")
    await service.append_event(plain, Event(author="x"))
    bare = {"_id", "state", "revision", "create_time", "update_time", "initial_state"}

    stored = {
        each["_id"]["session_id"]: {name: each[name] for name in each.keys() - bare}
        for each in admin[database].sessions.find()
    }

    assert stored["plain"] == {}
    assert stored[ID] == {
        "title": "T",
        "labels": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}],
        "ttl": 9.0,
        "expire_time": clock.now + 9,
    }


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[None]:
    """Receives an item whenever a subscription has looked if its session expired."""
    looks, look = asyncio.Queue[None](), subscription.load_expiry

    async def looking(*arguments: Any) -> Any:
        found = await look(*arguments)
        looks.put_nowait(None)
        return found

    monkeypatch.setattr(subscription, "load_expiry", looking)
    return looks


async def test_a_watched_session_expires(
    service: MongoSessionService, looks: asyncio.Queue[None]
) -> None:
    """Its subscription is told that it is deleted when its time has come, and ends."""
    clock = Clock.set()
    session = await service.create_session(**SESSION, ttl=0.1)
    async with Follower(service.watch(APP, USER, ID)) as follower:
        for revision in (1, 2):
            clock.now += 0.09
            await looks.get()
            await service.append_event(session, new_event())
            await follower.reached(revision)
        clock.now += 1
        assert await follower.ended() is None

    assert follower.kinds == ["snapshot", "appended", "appended", "deleted"]
    with pytest.raises(SessionNotFoundError):
        await service.wait_for(**SESSION, revision=5)


async def test_a_watched_session_lives_longer(
    service: MongoSessionService, looks: asyncio.Queue[None]
) -> None:
    """Who watches a session that got another end is told nothing before that."""
    clock = Clock.set()
    session = await service.create_session(**SESSION, state={"app:a": 1}, ttl=0.1)
    async with Follower(service.watch(APP, USER, ID)) as follower:
        await follower.until(lambda: follower.told)
        await service.update_session(**SESSION, ttl=None)
        await looks.get()
        clock.now += 1
        await service.append_event(session, new_event())
        await follower.reached(1)
        await service.update_session(**SESSION, ttl=1000)
        await looks.get()
        await service.append_event(session, new_event())
        await follower.reached(2)
        await service.update_session(**SESSION, ttl=0.1)
        clock.now += 1
        assert await follower.ended() is None

    kinds = [each for each in follower.kinds if each != "updated"]
    assert kinds == ["snapshot", "appended", "appended", "deleted"]
    assert follower.kinds.count("updated") == 3


async def test_a_cancelled_reader_is_told_of_the_end(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that is cancelled while it looks at the clock looks again."""
    looking, look = asyncio.Event(), subscription.load_expiry

    async def never(*_: object) -> None:
        looking.set()
        await asyncio.Event().wait()

    clock = Clock.set()
    await service.create_session(**SESSION, ttl=0.1)
    async with asyncio.timeout(PATIENCE), service.watch(APP, USER, ID) as changes:
        assert (await anext(changes)).kind == "snapshot"
        monkeypatch.setattr(subscription, "load_expiry", never)
        reading = asyncio.ensure_future(anext(changes))
        await looking.wait()
        reading.cancel()
        await asyncio.wait([reading])
        monkeypatch.setattr(subscription, "load_expiry", look)
        clock.now += 1

        assert (await anext(changes)).kind == "deleted"


async def test_expired_sessions_are_not_shown(service: MongoSessionService) -> None:
    """Neither a subscription nor a wait knows an expired session."""
    clock = Clock.set()
    await service.create_session(**SESSION, ttl=10)
    clock.now += 10

    with pytest.raises(SessionNotFoundError):
        async with service.watch(APP, USER, ID):
            pass
    with pytest.raises(SessionNotFoundError):
        await service.wait_for(**SESSION, revision=0)


async def test_a_stream_to_a_browser_ends(service: MongoSessionService) -> None:
    """A stream over HTTP tells that its session has expired, and ends."""
    clock = Clock.set()
    await service.create_session(**SESSION, ttl=0.1)
    route = changes_route(service, authorize=lambda *_: True)
    app = Starlette(routes=[route])
    async with serving(app) as url, Client(f"{url}/changes") as client:
        assert (await client.next()).kind == "snapshot"
        clock.now += 1
        told = await client.rest()

    assert [each.kind for each in told] == ["deleted"]


async def test_a_prune_is_told_once(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each expired session, long or short, is told to be deleted once; others stay."""
    monkeypatch.setattr(deletion, "STEP", 10)
    clock = Clock.set()
    await service.create_session(**IDS, session_id="kept", state={"user:u": 1}, ttl=99)
    await service.create_session(**IDS, session_id="short", ttl=10)
    await store_long_session(service, admin, database, SessionKey(APP, USER, ID), 35)
    await service.update_session(**SESSION, ttl=10)
    clock.now += 10
    seen: list[Pruned] = []
    async with (
        asyncio.timeout(PATIENCE),
        service.watch(APP, USER) as changes,
        service.consumer("c", start="now") as consumer,
    ):
        reading = asyncio.create_task(take(consumer, 3))
        await begun(service)
        pruned = await asyncio.gather(*(service.prune(seen.append) for _ in range(3)))
        last = await service.create_session(**IDS)
        told = [await anext(changes) for _ in range(3)]

        for each in (told, await reading):
            deleted, created = each[:2], each[2]
            assert {each.kind for each in deleted} == {"deleted"}
            assert {each.session_id for each in deleted} == {"short", ID}
            assert (created.kind, created.session_id) == ("created", last.id)

    assert sum(each.sessions for each in pruned) == 2
    assert sum(each.events for each in pruned) == 35
    assert set(pruned) <= set(seen)
    assert left_in(admin, database) == {"sessions": 2, "events": 0}
    assert await service.get_user_state(**IDS) == {"u": 1}


async def test_a_time_to_live_that_changes_back_makes_nobody_stale(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that is refused for it is tried again, even if all looks well then."""
    session = await service.create_session(**SESSION)
    await service.update_session(**SESSION, ttl=10)
    explain = BatchStore.explain_refusal

    async def overtaken(*arguments: Any, **how: Any) -> int:
        monkeypatch.setattr(BatchStore, "explain_refusal", explain)
        await service.update_session(**SESSION, ttl=None)
        return await explain(*arguments, **how)

    monkeypatch.setattr(BatchStore, "explain_refusal", overtaken)
    await service.append_event(session, new_event())

    found = await service.get_session(**SESSION)
    assert found is not None
    assert found.events == session.events
    assert len(found.events) == 1


async def test_a_prune_and_appends_at_once(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """A session is appended to or removed, whole, however the two meet."""
    clock = Clock.set()
    for number in range(20):
        session = await service.create_session(**IDS, session_id=str(number), ttl=10)
        clock.now += 9.99  # one writer's clock is behind the other's
        appending = service.append_event(session, new_event())
        clock.now += 0.02
        _, appended = await asyncio.gather(
            service.prune(), appending, return_exceptions=True
        )

        found = await service.get_session(**IDS, session_id=str(number))
        if isinstance(appended, SessionNotFoundError):
            assert found is None
        else:
            assert isinstance(appended, Event)
            assert found is None or found.events == [appended]
        clock.now += 100
        await service.prune()
        assert left_in(admin, database) == {"sessions": 0, "events": 0}
