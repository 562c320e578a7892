"""Deletes that finish: of any length, wherever they are broken off."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from pymongo import MongoClient
from support.consumers import PATIENCE, begun, take
from support.long_sessions import left_in, store_long_session

from mongo_session_service import MongoSessionService, Pruned
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import backends_of
from mongo_session_service.sessions import sweep
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.testing import Limits

KEY = SessionKey("app", "user", "s")
NOTHING = {"sessions": 0, "events": 0}


class BrokenOffError(Exception):
    pass


SMALL_STEPS = Limits(removed_events=10, sweep_interval=math.inf)
"""With steps of ten events, few make a session long; nobody else finishes a delete."""
small_steps = pytest.mark.limits(removed_events=10, sweep_interval=math.inf)


async def delete_in_part(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Begin to delete the session, and break off after so many steps."""
    run, taken = Storage.run, 0

    async def run_step(*arguments: Any, **options: Any) -> Any:
        nonlocal taken
        result = await run(*arguments, **options)
        taken += 1
        if taken == steps:
            raise BrokenOffError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "run", run_step)
        with pytest.raises(BrokenOffError):
            await service.delete_session(**KEY.id)


@small_steps
@pytest.mark.parametrize("steps", range(1, 6))
async def test_a_delete_broken_off_is_a_delete(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    """After any step nobody sees the session, and the next delete finishes it."""
    await store_long_session(service, admin, database, KEY, 35)
    loaded = await service.get_session(**KEY.id)
    assert loaded is not None
    await delete_in_part(service, monkeypatch, steps)

    assert await service.get_session(**KEY.id) is None
    assert not (await service.list_sessions(app_name="app")).sessions
    with pytest.raises(SessionNotFoundError):
        await service.append_event(loaded, Event(author="x"))
    with pytest.raises(SessionNotFoundError):
        async with service.watch(*KEY):
            pass
    assert (left_in(admin, database) == NOTHING) == (steps == 5)

    await service.delete_session(**KEY.id)

    assert left_in(admin, database) == NOTHING


@small_steps
@pytest.mark.parametrize("steps", range(1, 6))
async def test_a_new_session_has_no_old_events(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    """A session of an id whose delete was broken off begins empty, and stays so."""
    await store_long_session(service, admin, database, KEY, 35)
    await delete_in_part(service, monkeypatch, steps)

    session = await service.create_session(**KEY.id, state={"new": True})
    await service.append_event(session, Event(id="e1", author="x"))

    found = await service.get_session(**KEY.id)
    assert found is not None
    assert (found.state, found.events) == ({"new": True}, session.events)
    assert left_in(admin, database) == {"sessions": 1, "events": 1}


@small_steps
@pytest.mark.parametrize("steps", range(1, 6))
async def test_a_delete_is_of_the_session_it_found(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    """A delete that is still under way leaves a new session of the same id alone."""
    await store_long_session(service, admin, database, KEY, 35)
    run, taken = Storage.run, 0

    async def run_step(*arguments: Any, **options: Any) -> Any:
        nonlocal taken
        result = await run(*arguments, **options)
        taken += 1
        if taken == steps:
            with monkeypatch.context() as patch:
                patch.setattr(Storage, "run", run)
                session = await service.create_session(**KEY.id)
                await service.append_event(session, Event(id="e1", author="new"))
        return result

    monkeypatch.setattr(Storage, "run", run_step)
    await service.delete_session(**KEY.id)

    found = await service.get_session(**KEY.id)
    assert found is not None
    assert [each.author for each in found.events] == ["new"]
    assert left_in(admin, database) == {"sessions": 1, "events": 1}


@small_steps
async def test_deletes_and_creates_at_once(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """However deletes and creates of one id meet, no event outlives its session."""
    await store_long_session(service, admin, database, KEY, 95)

    async def create() -> None:
        try:
            session = await service.create_session(**KEY.id)
            for _ in range(3):
                await service.append_event(session, Event(author="new"))
        except (AlreadyExistsError, SessionNotFoundError, StaleSessionError):
            # Deleted meanwhile, or deleted and made anew by the other create.
            pass

    for _ in range(3):
        deletes = [service.delete_session(**KEY.id) for _ in range(3)]
        await asyncio.gather(*deletes, create(), create())
        found = await service.get_session(**KEY.id)
        assert not found or {each.author for each in found.events} <= {"new"}
        assert left_in(admin, database) == {
            "sessions": int(found is not None),
            "events": len(found.events) if found else 0,
        }


@small_steps
async def test_a_long_delete_is_delivered_once(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Watchers and consumers receive one ``deleted`` for a long session."""
    await store_long_session(service, admin, database, KEY, 35)
    expected = ["deleted", "created", "created"]
    async with (
        asyncio.timeout(PATIENCE),
        service.watch("app", "user") as changes,
        service.consumer("c", start="now") as consumer,
    ):
        reading = asyncio.create_task(take(consumer, len(expected)))
        await begun(service)
        await service.delete_session(**KEY.id)
        await service.create_session(**KEY.id)
        last = await service.create_session(app_name="app", user_id="user")
        watched = [await anext(changes) for _ in expected]

        for told in (watched, await reading):
            assert [each.kind for each in told] == expected
            assert told[-1].session_id == last.id


async def test_long_sessions_are_deleted_without_transactions(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Without transactions too, a long session is removed whole."""
    async with MongoSessionService(
        mongodb_uri, database=database, transactions=False, _limits=SMALL_STEPS
    ) as service:
        await store_long_session(service, admin, database, KEY, 35)

        await service.delete_session(**KEY.id)

    assert left_in(admin, database) == NOTHING


@small_steps
async def test_prune_finishes_deletes(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several prunes at once finish what was broken off, and nothing else."""
    await store_long_session(service, admin, database, KEY, 95)
    await delete_in_part(service, monkeypatch, steps=2)
    other = await service.create_session(app_name="app", user_id="user")
    seen: list[Pruned] = []

    pruned = await asyncio.gather(*(service.prune(seen.append) for _ in range(3)))

    assert left_in(admin, database) == {"sessions": 1, "events": 0}
    assert sum(each.events for each in pruned) == 85
    assert {each.sessions for each in pruned} == {0}
    assert set(pruned) <= set(seen)
    assert await service.prune() == Pruned()
    found = await service.list_sessions(app_name="app")
    assert [each.id for each in found.sessions] == [other.id]


async def test_expired_sessions_are_found_by_their_index(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """However many sessions there are, a prune or a sweep reads no other."""
    for _ in range(20):
        await service.create_session(app_name="app", user_id="user")
    backend = await backends_of(service).backend()
    connection = backend.storage
    admin[database].command("profile", 2)

    await service.prune()
    await sweep.remove_all_expired(connection)

    admin[database].command("profile", 0)
    read = {"ns": f"{database}.sessions", "planSummary": {"$exists": True}}
    looks = list(admin[database]["system.profile"].find(read))
    assert [each["planSummary"] for each in looks] == ["IXSCAN { expire_time: 1 }"] * 2
    assert {each["keysExamined"] for each in looks} == {0}
