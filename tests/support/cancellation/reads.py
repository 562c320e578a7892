"""Calls that read: what was cancelled is read again, whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from support.cancellation.world import (
    APP,
    STATE,
    USER,
    Prepared,
    World,
    ids_of,
    of_user,
    works,
)


async def get(world: World) -> Prepared:
    session = await world.known()

    async def check() -> None:
        found = await world.stored(session)
        assert found is not None
        assert found.events == session.events

    return world.service.get_session(**ids_of(session)), check


async def get_at(world: World) -> Prepared:
    session = await world.known()
    asked = {**ids_of(session), "revision": 2}

    async def check() -> None:
        past = await world.service.get_session_at(**asked)
        assert past is not None
        assert past.events == session.events[:2]

    return world.service.get_session_at(**asked), check


async def list_(world: World) -> Prepared:
    session = await world.known()

    async def check() -> None:
        listed = await world.service.list_sessions(**of_user(session))
        assert session.id in {each.id for each in listed.sessions}

    return world.service.list_sessions(**of_user(session)), check


async def find(world: World) -> Prepared:
    user = {"app_name": "app", "user_id": world.new_id()}
    sessions = [await world.session(0, **user) for _ in range(2)]

    async def look() -> list[str]:
        search = {**user, "where": {"k": 1}, "limit": 1}
        first = await world.service.find_sessions(**search)
        token = first.next_page_token
        second = await world.service.find_sessions(**search, page_token=token)
        return [each.id for each in (*second.sessions, *first.sessions)]

    async def check() -> None:
        # They may have been created at the same time, and n100 comes before n99.
        assert sorted(await look()) == sorted(each.id for each in sessions)

    return look(), check


async def find_branches(world: World) -> Prepared:
    session = await world.session(0)

    async def look() -> list[str]:
        found = await world.service.find_branches(**ids_of(session))
        return [each.session_id for each in found]

    async def check() -> None:
        assert await look() == [session.id]

    return look(), check


async def get_user_state(world: World) -> Prepared:
    session = await world.known()

    async def check() -> None:
        assert await world.service.get_user_state(**of_user(session)) == {"k": 1}

    return world.service.get_user_state(**of_user(session)), check


async def iterate(world: World) -> Prepared:
    """A history of two pages, read to its end."""
    return await _history(world, rewound=True)


async def iterate_live(world: World) -> Prepared:
    """What rewinds leave of a history, read to its end."""
    return await _history(world, rewound=False)


async def _history(world: World, *, rewound: bool) -> Prepared:
    asked = {**ids_of(await world.known()), "rewound": rewound}
    told: list[int] = []

    async def read() -> None:
        async for revision, _ in world.service.iter_events(**asked):
            told.append(revision)

    async def check() -> None:
        assert told == [1, 2, 3][: len(told)]
        told.clear()
        await read()
        assert told == [1, 2, 3]

    return read(), check


async def get_event(world: World) -> Prepared:
    session = await world.known()
    first = session.events[0]
    asked = {**ids_of(session), "event_id": first.id}

    async def check() -> None:
        assert await world.service.get_event(**asked) == first

    return world.service.get_event(**asked), check


async def iterate_user(world: World) -> Prepared:
    """The histories of two sessions, in two pages, read to their end."""
    user = {"app_name": "app", "user_id": world.new_id()}
    sessions = [await world.session(events, **user) for events in (1, 2)]
    told: list[tuple[str, int]] = []

    async def read() -> None:
        async for id_, revision, _ in world.service.iter_user_events(**user):
            told.append((id_, revision))

    async def check() -> None:
        whole = sorted(
            (each.id, revision)
            for each in sessions
            for revision in range(1, len(each.events) + 1)
        )
        assert told == whole[: len(told)]
        told.clear()
        await read()
        assert told == whole

    return read(), check


async def leave(world: World) -> Prepared:
    """A history that is left at each of its events, and so amid either page."""
    session = await world.known()
    return _left_everywhere(lambda: world.service.iter_events(**ids_of(session))), works


async def leave_user(world: World) -> Prepared:
    session = await world.session(events=3, user_id=world.new_id())
    of = of_user(session)
    return _left_everywhere(lambda: world.service.iter_user_events(**of)), works


async def _left_everywhere(begin: Any) -> None:
    for taken in range(4):
        events: AsyncGenerator[Any, None] = begin()
        for _ in range(taken):
            await anext(events)
        await events.aclose()


async def ping(world: World) -> Prepared:
    return world.service.ping(), works


async def count_expired(world: World) -> Prepared:
    return world.service.prune(dry_run=True), works


async def consumers(world: World) -> Prepared:
    for name in "abc":
        async with world.service.consumer(name, start="now"):
            pass

    async def check() -> None:
        assert [each.name for each in await world.service.consumers()] == [*"abc"]

    return world.service.consumers(), check


async def find_turns(world: World) -> Prepared:
    ids = ids_of(await world.known())
    async with world.service.turn(**ids):
        pass
    finding = world.service.find_turns(app_name=APP, user_id=USER)

    async def check() -> None:
        assert await world.service.find_turns() == []

    return finding, check


async def wait_for(world: World) -> Prepared:
    session = await world.known()

    async def wait() -> None:
        state = await world.service.wait_for(**ids_of(session), revision=1)
        assert state == STATE

    return wait(), wait
