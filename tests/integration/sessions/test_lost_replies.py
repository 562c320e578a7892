"""When MongoDB has done what it was asked, and its answer never comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.tcp_proxy import Proxy

from mongo_session_service import (
    MongoSessionService,
    StorageUnavailableError,
    UnknownOutcomeError,
)

STATE = {"k": 1, "app:k": 1, "user:k": 1}

Error = StorageUnavailableError | None
Check = Callable[[Error], Awaitable[None]]


class World:
    """A service whose answers are lost, one whose are not, and an app of its own."""

    def __init__(
        self, lossy: MongoSessionService, calm: MongoSessionService, name: str
    ) -> None:
        self.lossy = lossy
        self.calm = calm
        self.of_user = {"app_name": name, "user_id": name}
        self.ids = {**self.of_user, "session_id": "s"}

    async def session(self) -> Session:
        """The session, made now, with an event."""
        session = await self.calm.create_session(**self.ids, state=dict(STATE))
        await self.calm.append_event(session, new_event())
        return session

    async def check_log(self, session: Session) -> None:
        """What is stored is what a session shows, and its log is dense."""
        ids = {**self.ids, "session_id": session.id}
        stored = await self.calm.get_session(**ids)
        assert stored is not None
        shown = session.state.items()
        assert (stored.events, shown <= stored.state.items()) == (session.events, True)
        log = [each async for each in self.calm.iter_events(**ids)]
        assert log == list(enumerate(session.events, 1))
        assert session.state["k"] == len(session.events)


def new_event(k: int = 1) -> Event:
    delta = {"k": k, "app:k": k, "user:k": k}
    return Event(author="x", actions=EventActions(state_delta=delta))


async def append(world: World) -> tuple[Awaitable[object], Check]:
    session, event = await world.session(), new_event(2)

    async def check(error: Error) -> None:
        stored = await world.calm.get_session(**world.ids)
        assert stored is not None
        was_stored = len(stored.events) == 2
        if error is None:
            assert was_stored
        elif not isinstance(error, UnknownOutcomeError):
            assert not was_stored
        await world.lossy.append_event(session, event)
        assert [each.id for each in session.events].count(event.id) == 1
        await world.check_log(session)
        await world.lossy.append_event(session, new_event(3))
        await world.check_log(session)

    return world.lossy.append_event(session, event), check


async def create(world: World) -> tuple[Awaitable[object], Check]:
    return _created(world, STATE)


async def create_plain(world: World) -> tuple[Awaitable[object], Check]:
    return _created(world, {})


def _created(world: World, state: dict[str, int]) -> tuple[Awaitable[object], Check]:
    async def check(error: Error) -> None:
        stored = await world.calm.get_session(**world.ids)
        if error is None:
            assert stored is not None
        elif not isinstance(error, UnknownOutcomeError):
            assert stored is None
        if stored is None:
            await world.lossy.create_session(**world.ids, state=dict(state))
        else:
            with pytest.raises(AlreadyExistsError):
                await world.lossy.create_session(**world.ids)
        stored = await world.calm.get_session(**world.ids)
        assert stored is not None
        assert stored.state == state
        assert stored.events == []

    return world.lossy.create_session(**world.ids, state=dict(state)), check


async def delete(world: World) -> tuple[Awaitable[object], Check]:
    session = await world.session()

    async def check(error: Error) -> None:
        stored = await world.calm.get_session(**world.ids)
        if error is None:
            assert stored is None
        assert stored is None or stored == session
        await world.lossy.delete_session(**world.ids)
        assert await world.calm.get_session(**world.ids) is None
        again = await world.lossy.create_session(**world.ids, state={"k": 0})
        assert again.events == []

    return world.lossy.delete_session(**world.ids), check


async def erase(world: World) -> tuple[Awaitable[object], Check]:
    session, name = await world.session(), world.of_user["app_name"]

    async def check(error: Error) -> None:
        stored = await world.calm.get_session(**world.ids)
        state = await world.calm.get_user_state(**world.of_user)
        if error is None:
            assert (stored, state) == (None, {})
        elif not isinstance(error, UnknownOutcomeError):
            assert (stored, state) == (session, {"k": 2})
        await world.lossy.delete_app(app_name=name)
        assert await world.calm.get_session(**world.ids) is None
        assert await world.calm.get_user_state(**world.of_user) == {}

    return world.lossy.delete_app(app_name=name), check


async def update(world: World) -> tuple[Awaitable[object], Check]:
    session = await world.session()

    async def title() -> str | None:
        (found,) = (await world.calm.find_sessions(**world.of_user)).sessions
        return found.title

    async def check(error: Error) -> None:
        if error is None:
            assert await title() == "new"
        elif not isinstance(error, UnknownOutcomeError):
            assert await title() is None
        await world.lossy.update_session(**world.ids, title="new")
        assert await title() == "new"
        await world.check_log(session)

    return world.lossy.update_session(**world.ids, title="new", ttl=3600), check


async def fork(world: World) -> tuple[Awaitable[object], Check]:
    session = await world.session()
    ids = {**world.of_user, "session_id": "fork"}

    async def check(error: Error) -> None:
        forked = await world.calm.get_session(**ids)
        if error is None:
            assert forked is not None
        elif not isinstance(error, UnknownOutcomeError):
            assert forked is None
        if forked is None:
            forked = await world.lossy.fork_session(**world.ids)
        await world.check_log(forked)
        assert forked.events == session.events
        await world.check_log(session)

    return world.lossy.fork_session(**world.ids, new_session_id="fork"), check


@pytest.mark.long
@pytest.mark.parametrize("lost", [pytest.param(1, marks=pytest.mark.release), 2])
async def test_each_answer_is_lost(
    mongodb_uri: str, database: str, admin: MongoClient, lost: int
) -> None:
    """What raised was not done, or says so, and may be done again, whatever is lost.

    One answer that is lost is noticed by nobody, since the driver asks again, except in
    the copying of a fork and in erasing.
    """
    async with MongoSessionService(mongodb_uri, database=database) as calm:
        errors: set[type[Exception]] = set()
        names = (f"n{number}" for number in itertools.count())

        async def call(
            case: Callable[[World], Awaitable[tuple[Awaitable[object], Check]]],
            *numbers: int,
        ) -> int:
            """Make a call whose answers are lost; how many commands it has sent."""
            async with AsyncExitStack() as stack:
                proxy = await stack.enter_async_context(Proxy(*admin.address))
                lossy = MongoSessionService(proxy.uri, database=database)
                await stack.enter_async_context(lossy)
                made, check = await case(World(lossy, calm, next(names)))
                proxy.lose(*numbers)
                error: Error = None
                try:
                    await made
                except StorageUnavailableError as failure:
                    error = failure
                    if case is not erase:  # any answer may be of one of its parts
                        errors.add(type(failure))
                sent = len(proxy.commands)
                assert proxy.has_lost == bool(numbers)
                # The driver does not repeat a copy, nor a delete of many documents.
                assert error is None or len(numbers) > 1 or case in {fork, erase}
                proxy.lose()
                await check(error)
                return sent

        cases = (append, create, create_plain, delete, erase, update, fork)
        counts = await asyncio.gather(*map(call, cases))
        # At the same time, since a driver that was cut off pauses for half a second.
        async with asyncio.TaskGroup() as group:
            for case, count in zip(cases, counts, strict=True):
                for number in range(1, count + 1):
                    group.create_task(call(case, *range(number, number + lost)))
        assert sum(counts) > 20
        assert (UnknownOutcomeError in errors) == (lost > 1)
