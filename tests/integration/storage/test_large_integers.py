"""Integers of more than 32 bits, which the driver has a type of its own for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from support.consumers import take
from support.one_session import IDS, read

from mongo_session_service import Change, MongoSessionService, Subscription

LARGE = 2**40
Reading = Callable[[MongoSessionService], Awaitable[Session | Change | Event]]


async def first(changes: Subscription) -> Change:
    """What a subscription is told first."""
    async with changes:
        return await anext(changes)


async def listed(service: MongoSessionService) -> Session:
    return (await service.list_sessions(app_name="app")).sessions[0]


async def found(service: MongoSessionService) -> Any:
    return (await service.find_sessions(app_name="app")).sessions[0]


async def past(service: MongoSessionService) -> Any:
    return await service.get_session_at(**IDS, revision=1)


async def forked(service: MongoSessionService) -> Session:
    return await service.fork_session(**IDS)


async def paged(service: MongoSessionService) -> Event:
    pages: AsyncIterator[tuple[int, Event]] = service.iter_events(**IDS)
    return (await anext(pages))[1]


async def replayed(service: MongoSessionService) -> Change:
    async with service.consumer("c") as consumer:
        return (await take(consumer, 1))[0]


async def caught_up(service: MongoSessionService) -> Change:
    return await first(service.watch(**IDS, after_revision=0))


async def watched(service: MongoSessionService) -> Change:
    return await first(service.watch(**IDS))


async def live(service: MongoSessionService) -> Change:
    session = await read(service)
    async with service.watch("app") as changes:
        await service.append_event(session, large())
        return await anext(changes)


def large() -> Event:
    """An event that holds some, at several depths."""
    delta = {"n": LARGE, "deep": {"list": [LARGE]}}
    return Event(
        author="x",
        custom_metadata={"n": LARGE},
        actions=EventActions(state_delta=delta),
    )


def integers(value: Any) -> list[int]:
    """Those of this size within a value."""
    if isinstance(value, dict):
        return [each for item in value.values() for each in integers(item)]
    if isinstance(value, list):
        return [each for item in value for each in integers(item)]
    return [value] if isinstance(value, int) and value >= LARGE else []


@pytest.mark.parametrize(
    "reading",
    [read, listed, found, past, forked, paged, replayed, caught_up, watched, live],
)
async def test_large_integers_are_plain_integers(
    service: MongoSessionService, reading: Reading
) -> None:
    """Whichever way they are read."""
    session = await service.create_session(**IDS, state={"a": LARGE, "app:a": [LARGE]})
    await service.append_event(session, large())

    types = [type(each) for each in integers((await reading(service)).model_dump())]
    assert len(types) >= 3
    assert set(types) == {int}
