"""Pruning what is idle or old: nobody's live session, and nothing beside sessions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from support.fake_clock import Clock

from mongo_session_service import MongoSessionService, Pruned

DAY = 86400.0


async def create(
    ours: MongoSessionService, name: str, app_name: str = "app", **given: Any
) -> Session:
    return await ours.create_session(
        app_name=app_name, user_id="ada", session_id=name, **given
    )


async def append(
    ours: MongoSessionService, session: Session, at: float, **state: Any
) -> None:
    """Append an event whose author says that it was then."""
    event = Event(author="x", timestamp=at, actions=EventActions(state_delta=state))
    await ours.append_event(session, event)


async def ids(ours: MongoSessionService, app_name: str = "app") -> list[str]:
    listed = await ours.list_sessions(app_name=app_name)
    return sorted(each.id for each in listed.sessions)


async def test_idle_sessions_are_pruned(ours: MongoSessionService) -> None:
    """They go with their events; live ones, those that expire, and state stay."""
    clock = Clock.set()
    state = {"app:k": 1, "user:k": 2}
    idle = await create(ours, "idle")
    await append(ours, idle, clock.now, **state)
    await create(ours, "silent")
    await create(ours, "expiring", ttl=1000 * DAY)
    await create(ours, "elsewhere", "app2")
    used = await create(ours, "used")
    clock.now += 90 * DAY
    await append(ours, used, clock.now - 1)
    await create(ours, "new")
    seen: list[Pruned] = []

    wanted = {"app_name": "app", "idle_for": timedelta(days=90)}
    counted = await ours.prune(**wanted, dry_run=True)
    kept = await ids(ours)
    pruned = await ours.prune(seen.append, **wanted)

    assert counted == pruned == seen[-1] == Pruned(sessions=2, events=1)
    assert kept == ["expiring", "idle", "new", "silent", "used"]
    assert await ids(ours) == ["expiring", "new", "used"]
    assert (await create(ours, "idle")).state == state
    assert await ours.prune(**wanted) == Pruned()
    assert await ours.prune(idle_for=90 * DAY) == Pruned(sessions=1)  # in any app
    assert await ids(ours, "app2") == []


async def test_dated_back_is_not_idle(ours: MongoSessionService) -> None:
    """Neither an old event in a session in use, nor in one that was just created."""
    clock = Clock.set()
    used = await create(ours, "used")
    await append(ours, used, clock.now)
    clock.now += 90 * DAY
    await append(ours, used, clock.now)
    await append(ours, used, 1.0)
    new = await create(ours, "new")
    await append(ours, new, 1.0)

    assert await ours.prune(idle_for=1) == Pruned()
    clock.now += 2
    assert await ours.prune(idle_for=1) == Pruned(sessions=2, events=4)


async def test_old_sessions_are_pruned(ours: MongoSessionService) -> None:
    """All that were created before, in use or not; if both is asked, the idle ones."""
    clock = Clock.set()
    middle = datetime.fromtimestamp(clock.now + DAY, UTC)
    used = await create(ours, "used")
    await create(ours, "idle")
    await create(ours, "expiring", ttl=1000 * DAY)
    clock.now += DAY
    await create(ours, "later")
    clock.now += DAY
    await append(ours, used, clock.now)

    both = await ours.prune(idle_for=DAY, created_before=middle)
    between = await ids(ours)
    old = await ours.prune(created_before=middle.isoformat())

    assert (both, between) == (Pruned(sessions=1), ["expiring", "later", "used"])
    assert (old, await ids(ours)) == (Pruned(1, 1), ["expiring", "later"])


async def test_expired_sessions_of_one_app_are_pruned(
    ours: MongoSessionService,
) -> None:
    """Of others nothing is removed, and nothing that is idle only."""
    clock = Clock.behind(90 * DAY)
    await create(ours, "idle")
    await create(ours, "expiring", ttl=1)
    await create(ours, "expiring", "app2", ttl=1)
    clock.catch_up()

    counted = await ours.prune(app_name="app", dry_run=True)

    assert counted == await ours.prune(app_name="app") == Pruned(sessions=1)
    assert await ids(ours) == ["idle"]
    assert await ours.prune(dry_run=True) == Pruned(sessions=1)
