"""Waiting for a session to come as far as somebody else's write, or a state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from support.subscriptions import APP, ID, IDS, SESSION, new_event, stored_state, until

from mongo_session_service import (
    InvalidInputError,
    MongoSessionService,
    MongoSessionServiceError,
)


async def begun(
    service: MongoSessionService, revision: int
) -> asyncio.Task[dict[str, Any]]:
    """A wait that has seen the session as it is, and is told of what comes."""
    asked: list[Any] = []
    waiting = asyncio.create_task(
        service.wait_for(**SESSION, revision=revision, predicate=asked.append)
    )
    await until(lambda: asked or waiting.done())
    return waiting


async def test_a_revision_already_reached(service: MongoSessionService) -> None:
    """It returns the merged state at once."""
    session = await service.create_session(**SESSION, state={"app:a": 1})
    await service.append_event(session, new_event(own=2, user_u=3))

    for revision in (0, 1):
        state = await service.wait_for(**SESSION, revision=revision)
        assert state == {"app:a": 1, "own": 2, "user:u": 3}


async def test_a_revision_to_come(service: MongoSessionService) -> None:
    """It returns when another's append has come so far, and not before."""
    session = await service.create_session(**SESSION)
    waiting = await begun(service, 3)
    for number in (1, 2):
        await service.append_event(session, new_event(n=number, app_n=number))
    assert not waiting.done()
    await service.append_event(session, new_event(n=3))

    assert await waiting == await stored_state(service) == {"n": 3, "app:n": 2}


@pytest.mark.parametrize("scope", ["", "app_", "user_"])
async def test_a_predicate_sees_state_that_others_set(
    service: MongoSessionService, scope: str
) -> None:
    """A predicate is asked of every state in between, and those others set."""
    session = await service.create_session(**SESSION)
    other = await service.create_session(**IDS)
    asked: list[Any] = []
    key = scope.replace("_", ":") + "n"

    def holds(state: dict[str, Any]) -> bool:
        asked.append(state.get(key))
        return state.get(key) == 3

    waiting = asyncio.create_task(service.wait_for(**SESSION, predicate=holds))
    await until(lambda: asked)
    for number in range(1, 5):
        writer = session if scope == "" else other
        await service.append_event(writer, new_event(**{f"{scope}n": number}))

    assert (await waiting)[key] == 3
    assert asked == [None, 1, 2, 3]


async def test_either_a_revision_or_a_predicate(service: MongoSessionService) -> None:
    """With both it returns with whichever comes first."""
    session = await service.create_session(**SESSION)
    await service.append_event(session, new_event(n=1))

    assert await service.wait_for(**SESSION, revision=1, predicate=lambda _: False)
    assert await service.wait_for(
        **SESSION, revision=9, predicate=lambda state: state["n"] == 1
    )


async def test_time_runs_out(service: MongoSessionService) -> None:
    """TimeoutError, for a revision or a predicate, and nobody is left subscribed."""
    await service.create_session(**SESSION)
    for timeout in (0, 0.05):
        with pytest.raises(TimeoutError):
            await service.wait_for(**SESSION, revision=1, timeout=timeout)
        with pytest.raises(TimeoutError):
            await service.wait_for(
                **SESSION, predicate=lambda _: False, timeout=timeout
            )
    async with service.watch():
        await until(lambda: service.feed_stats().subscriptions == 1)


async def test_a_session_that_is_not_there(service: MongoSessionService) -> None:
    """Unknown, or deleted while waiting: SessionNotFoundError."""
    with pytest.raises(SessionNotFoundError):
        await service.wait_for(**SESSION, revision=0)
    await service.create_session(**SESSION)
    waiting = await begun(service, 1)
    await service.delete_session(**SESSION)
    with pytest.raises(SessionNotFoundError, match="deleted"):
        await waiting


async def test_closing_the_service_ends_a_wait(service: MongoSessionService) -> None:
    """Its error names the closed service, and not the session as missing."""
    await service.create_session(**SESSION)
    waiting = await begun(service, 1)
    await service.close()

    with pytest.raises(MongoSessionServiceError, match="closed"):
        await waiting


async def test_an_error_of_the_predicate(service: MongoSessionService) -> None:
    """It is the caller's to see, and ends the wait."""
    await service.create_session(**SESSION)

    with pytest.raises(KeyError, match="missing"):
        await service.wait_for(**SESSION, predicate=lambda state: state["missing"])


@pytest.mark.parametrize(
    "arguments", [{}, {"revision": -1}, {"revision": 1.0}, {"revision": True}]
)
async def test_a_wait_for_nothing_is_refused(
    service: MongoSessionService, arguments: dict[str, Any]
) -> None:
    """Neither a revision nor a predicate, or a revision that is none, is refused."""
    with pytest.raises(InvalidInputError, match="revision"):
        await service.wait_for(**SESSION, **arguments)
    with pytest.raises(InvalidInputError, match="user_id"):
        await service.wait_for(app_name=APP, user_id="", session_id=ID, revision=0)
