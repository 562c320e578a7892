"""A subscription to one session: where it begins, what it tells, how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import AsyncMongoClient
from support.command_log import BytesReceived
from support.subscriptions import (
    APP,
    ID,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    new_event,
    stored_state,
)

from mongo_session_service import InvalidInputError, MongoSessionService
from mongo_session_service.testing import Limits


async def test_a_subscription_begins_with_a_snapshot(
    service: MongoSessionService,
) -> None:
    """It has the whole merged state; each append is one change after it."""
    await service.create_session(**IDS, session_id="other", state={"user:u": 1})
    session = await service.create_session(**SESSION, state={"own": 1, "app:a": 1})
    await service.append_event(session, new_event(before=True))

    async with Follower(service.watch(APP, USER, ID)) as follower:
        events = [new_event(own=2, app_a=2, user_u=2, temp="no"), new_event()]
        events[0].actions.state_delta["temp:t"] = 1
        for event in events:
            await service.append_event(session, event)
        await follower.reached(3)
        assert follower.state == await stored_state(service)

    snapshot, first, second = follower.told
    assert snapshot.kind == "snapshot"
    assert snapshot.revision == 1
    assert snapshot.event is None
    assert snapshot.state == {"own": 1, "before": True, "app:a": 1, "user:u": 1}
    assert first.kind == second.kind == "appended"
    assert (first.revision, second.revision) == (2, 3)
    assert (first.event, second.event) == tuple(events)
    assert first.state is None
    assert first.state_delta == {"own": 2, "app:a": 2, "user:u": 2, "temp": "no"}
    assert first.time == events[0].timestamp
    assert first.session_key == (APP, USER, ID)
    assert second.state_delta == {}


async def test_shared_state_set_elsewhere_is_delivered(
    service: MongoSessionService,
) -> None:
    """State of other users is not."""
    session = await service.create_session(**SESSION)
    same_user = await service.create_session(**IDS, session_id="2")
    same_app = await service.create_session(app_name=APP, user_id="other")
    stranger = await service.create_session(app_name="other", user_id=USER)

    async with Follower(service.watch(APP, USER, ID)) as follower:
        await service.append_event(stranger, new_event(app_x=0, user_x=0, x=0))
        await service.append_event(same_app, new_event(app_x=1, user_x=0, x=0))
        await service.append_event(same_user, new_event(app_x=2, user_x=3, x=0))
        await service.create_session(
            app_name=APP, user_id="new", state={"app:x": 4, "user:x": 0}
        )
        await service.append_event(session, new_event(app_x=5, user_x=6))
        await follower.reached(1)

    told = [(each.kind, each.user_id, each.state_delta) for each in follower.told[1:]]
    assert told == [
        ("state", None, {"app:x": 1}),
        ("state", USER, {"user:x": 3}),
        ("state", None, {"app:x": 2}),
        ("state", None, {"app:x": 4}),
        ("appended", USER, {"app:x": 5, "user:x": 6}),
    ]
    assert all(change.session_id is None for change in follower.told[1:5])
    assert all(change.revision is None for change in follower.told[1:5])


async def test_a_deletion_ends_the_subscription(service: MongoSessionService) -> None:
    """It is the last change."""
    session = await service.create_session(**SESSION)
    async with Follower(service.watch(APP, USER, ID)) as follower:
        await service.append_event(session, new_event())
        await service.delete_session(**SESSION)
        again = await service.create_session(**SESSION)
        await service.append_event(again, new_event())

        assert await follower.ended() is None

    assert follower.summary == [("snapshot", 0), ("appended", 1), ("deleted", None)]
    with pytest.raises(StopAsyncIteration):
        await anext(follower.subscription)


async def test_a_subscription_after_a_revision_replays_events(
    service: MongoSessionService,
) -> None:
    """First come the events after it, then shared state as it is."""
    session = await service.create_session(**SESSION, state={"user:u": 0})
    events = [new_event(n=number, app_a=number) for number in range(1, 6)]
    for event in events:
        await service.append_event(session, event)

    async with Follower(service.watch(APP, USER, ID, after_revision=2)) as follower:
        await follower.until(lambda: len(follower.told) == 5)
        await service.append_event(session, new_event(n=6))
        await follower.reached(6)

    assert follower.summary == [
        *(("appended", revision) for revision in (3, 4, 5)),
        ("state", None),
        ("state", None),
        ("appended", 6),
    ]
    assert [change.event for change in follower.told[:3]] == events[2:]
    assert follower.state == await stored_state(service)


@pytest.mark.limits(page_events=32)
async def test_replay_of_many_pages_while_writers_go_on(
    service: MongoSessionService, limits: Limits
) -> None:
    """However far behind, every revision comes once and in order, then live ones."""
    stored, more = 2 * limits.page_events + 10, 60
    session = await service.create_session(**SESSION)
    for start in range(0, stored, 128):
        await asyncio.gather(
            *(
                service.append_event(session, new_event(n=number, app_n=number))
                for number in range(start, min(start + 128, stored))
            )
        )
    other = await service.create_session(**IDS, session_id="other")

    async def go_on() -> None:
        for number in range(more):
            await service.append_event(session, new_event(n=-number))
            await service.append_event(other, new_event(app_n=-number))

    writer = asyncio.create_task(go_on())
    async with Follower(service.watch(APP, USER, ID, after_revision=0)) as follower:
        await writer
        await follower.reached(stored + more)
        last = await stored_state(service)
        await follower.until(lambda: follower.state == last)

    assert follower.revisions == {"app/user/s": list(range(1, stored + more + 1))}


async def test_replay_of_more_than_a_reply_holds(service: MongoSessionService) -> None:
    """Large events are replayed too, though no reply of the server holds them all."""
    session = await service.create_session(**SESSION, state={"big": "x" * 6_000_000})
    for number in range(4):
        await service.append_event(session, new_event(text=str(number) * 9_000_000))

    async with Follower(service.watch(APP, USER, ID, after_revision=0)) as follower:
        await follower.reached(4)

    assert follower.revisions == {"app/user/s": [1, 2, 3, 4]}


@pytest.mark.parametrize("after_revision", [None, 0, 7])
async def test_a_session_that_is_not_stored(
    service: MongoSessionService, after_revision: int | None
) -> None:
    """Opening raises ADK's own error, and leaves nothing behind."""
    with pytest.raises(SessionNotFoundError):
        async with service.watch(APP, USER, ID, after_revision=after_revision):
            pass

    # One that is let in is counted after the other has been let out.
    async with service.watch(APP):
        assert service.feed_stats().subscriptions == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"session_id": ID}, "app_name"),
        ({"app_name": APP, "session_id": ID}, "user_id"),
        ({"user_id": USER}, "app_name"),
        ({"app_name": ""}, "app_name"),
        ({"app_name": APP, "user_id": 5}, "user_id"),
        ({"app_name": APP, "user_id": USER, "session_id": " "}, "session_id"),
        ({"app_name": APP, "after_revision": 1}, "session_id"),
        ({**SESSION, "after_revision": -1}, "after_revision"),
        ({**SESSION, "after_revision": "1"}, "after_revision"),
        ({**SESSION, "after_revision": True}, "after_revision"),
        ({**SESSION, "after_revision": 2**63}, "after_revision"),
        *(({"max_bytes": it}, "max_bytes") for it in (0, -1, True, None, "1", 1.5)),
    ],
)
def test_arguments_that_name_nothing(arguments: dict[str, Any], named: str) -> None:
    """They are refused at once, by the argument's name."""
    service = MongoSessionService("mongodb://127.0.0.1/")

    with pytest.raises(InvalidInputError, match=named):
        service.watch(**arguments)


async def test_session_ids_are_stripped(service: MongoSessionService) -> None:
    """An id with spaces around it names the session that create_session made."""
    await service.create_session(**IDS, session_id="  s ")

    async with asyncio.timeout(PATIENCE), service.watch(APP, USER, " s  ") as changes:
        assert (await anext(changes)).session_id == "s"


async def test_a_subscription_is_opened_once_and_first(
    service: MongoSessionService,
) -> None:
    """Reading before opening, and opening twice, are mistakes that are named."""
    subscription = service.watch(APP)
    with pytest.raises(RuntimeError, match="async with"):
        await anext(subscription)
    async with subscription:
        with pytest.raises(RuntimeError, match="once"):
            await subscription.__aenter__()


async def test_a_title_is_the_display_name(service: MongoSessionService) -> None:
    """A snapshot shows a title that was set without an event, and so does creation."""
    shown = {"__session_metadata__": {"displayName": "T"}}
    async with service.watch(APP, USER) as changes:
        await service.create_session(**SESSION, title="T")
        created = await anext(changes)
    async with service.watch(APP, USER, ID) as changes:
        snapshot = await anext(changes)

    assert created.state_delta == snapshot.state == shown


@pytest.mark.limits(page_events=10)
@pytest.mark.parametrize("pages", [2, 4])
async def test_catching_up_reads_state_at_most_once(
    service: MongoSessionService, mongodb_uri: str, database: str, pages: int
) -> None:
    """However many pages there are; that of the session not at all."""
    large = 100_000
    state = {"large": "x" * large, "app:large": "y" * large}
    session = await service.create_session(**SESSION, state=state)
    for number in range(10 * pages):
        await service.append_event(session, new_event(n=number))
    received = BytesReceived()
    limits = Limits(page_events=10)
    async with AsyncMongoClient(mongodb_uri, event_listeners=[received]) as client:
        watched = MongoSessionService(client=client, database=database, _limits=limits)
        async with watched, watched.watch(*SESSION.values(), after_revision=0) as it:
            for _ in range(10 * pages):
                await anext(it)
            assert received.bytes < 1.5 * large
