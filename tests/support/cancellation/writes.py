"""Calls that write: what was cancelled is done or not done, and never half."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import Context
from functools import partial
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types

from mongo_session_service import MongoSessionService, SessionKey
from mongo_session_service.service import backends_of
from mongo_session_service.sessions.branches import bear
from mongo_session_service.sessions.fork import new_branch
from support.cancellation.world import (
    STATE,
    Prepared,
    World,
    ids_of,
    new_event,
    of_user,
    works,
)
from support.waiters import in_line


async def create(world: World) -> Prepared:
    ids = world.ids()

    async def check() -> None:
        found = await world.service.get_session(**ids)
        assert found is None or found.state == STATE

    return world.service.create_session(**ids, state=dict(STATE)), check


async def append(world: World) -> Prepared:
    session = await world.session()

    async def check() -> None:
        session.state.pop("temp:k", None)
        assert await world.stored(session) == session
        await world.service.append_event(session, new_event())
        found = await world.stored(session)
        assert found is not None
        assert found.events == session.events

    return world.service.append_event(session, new_event()), check


async def append_alone(world: World) -> Prepared:
    """An append without a session: stored whole, or not; repeated, it is stored."""
    session = await world.session()
    before, event = [each.id for each in session.events], new_event()

    async def check() -> None:
        found = await world.stored(session)
        assert found is not None
        assert [each.id for each in found.events] in (before, [*before, event.id])
        await world.service.append(**ids_of(session), event=event)
        found = await world.stored(session)
        assert found is not None
        assert [each.id for each in found.events] == [*before, event.id]

    return world.service.append(**ids_of(session), event=event), check


async def rebase(world: World) -> Prepared:
    """An append that comes late: it is shown what it missed, and is stored, or not."""
    session = await world.session()
    late = session.model_copy(deep=True)
    await world.service.append_event(session, new_event())
    event = new_event()

    async def check() -> None:
        assert len(late.events) in {1, 3}
        found = await world.stored(session)
        assert found is not None
        is_stored = event.id in [each.id for each in found.events]
        assert is_stored == (len(late.events) == 3)
        await world.rebasing.append_event(late, event)
        again = await world.stored(session)
        assert again is not None
        assert [each.id for each in again.events] == [
            *(each.id for each in session.events),
            event.id,
        ]
        assert again.events == late.events

    return world.rebasing.append_event(late, event), check


async def rewind(world: World) -> Prepared:
    """A rewind reads the log first; the initial state comes back with it, or not."""
    session = await world.session()
    delta = {"k": None}
    event = Event(author="user", actions=EventActions(state_delta=delta))
    event.actions.rewind_before_invocation_id = session.events[0].invocation_id

    async def check() -> None:
        session.state.pop("temp:k", None)
        found = await world.stored(session)
        assert found == session
        assert len(found.events) in {1, 2}
        assert found.state == STATE

    return world.service.append_event(session, event), check


async def update(world: World) -> Prepared:
    session = await world.session(user_id=world.new_id())

    async def check() -> None:
        page = await world.service.find_sessions(**of_user(session))
        assert [each.id for each in page.sessions] == [session.id]
        (found,) = page.sessions
        assert (found.title, found.ttl) in {(None, None), ("title", 3600.0)}
        await world.service.append_event(session, new_event())
        assert await world.stored(session) is not None

    ids = ids_of(session)
    return world.service.update_session(**ids, title="title", ttl=3600), check


async def fork(world: World) -> Prepared:
    """The copy is whole, with its source's past, or its id is free."""
    session = await world.session(events=3)
    new_id = world.new_id()

    async def check() -> None:
        ids = {**of_user(session), "session_id": new_id}
        forked = await world.service.get_session(**ids)
        if forked is None:
            forked = await world.service.fork_session(
                **ids_of(session), at_revision=2, new_session_id=new_id
            )
        assert [each.id for each in forked.events] == [
            each.id for each in session.events[:2]
        ]
        assert forked.state == STATE
        await world.service.append_event(forked, new_event())

    call = world.service.fork_session(
        **ids_of(session), at_revision=2, new_session_id=new_id
    )
    return call, check


async def trim(world: World) -> Prepared:
    """The log is cut or not; the state stays, and a repeated trim finishes it."""
    session = await world.session(events=3)
    ids = [each.id for each in session.events]

    async def check() -> None:
        found = await world.stored(session)
        assert found is not None
        assert [each.id for each in found.events] in (ids, ids[2:])
        assert found.state == session.state
        await world.service.trim_session(**ids_of(session), keep_last=1)
        found = await world.stored(session)
        assert found is not None
        assert [each.id for each in found.events] == ids[2:]
        past = await world.service.get_session_at(**ids_of(session), revision=2)
        assert past is not None
        assert past.state == STATE

    return world.service.trim_session(**ids_of(session), keep_last=1), check


async def redact(world: World) -> Prepared:
    """All events are redacted or none; a repeated call finishes it."""
    session = await world.session(events=3)
    wanted = {"event_ids": [each.id for each in session.events], "state": True}

    async def check() -> None:
        await world.service.redact_events(**ids_of(session), **wanted)
        found = await world.stored(session)
        assert found is not None
        assert [each.id for each in found.events] == wanted["event_ids"]
        assert all(each.custom_metadata for each in found.events)
        assert await world.service.redact_events(**ids_of(session), **wanted) == 0

    return world.service.redact_events(**ids_of(session), **wanted), check


async def delete(world: World) -> Prepared:
    session = await world.session()

    async def check() -> None:
        found = await world.stored(session)
        assert found is None or len(found.events) == 1
        await world.service.delete_session(**ids_of(session))
        assert await world.stored(session) is None

    return world.service.delete_session(**ids_of(session)), check


async def delete_long(world: World) -> Prepared:
    """A session that is removed in steps is gone from the first one on."""
    session = await world.session(events=2)

    async def check() -> None:
        found = await world.stored(session)
        assert found is None or len(found.events) == 2
        await world.service.delete_session(**ids_of(session))
        assert await world.stored(session) is None

    return world.service.delete_session(**ids_of(session)), check


async def delete_user(world: World) -> Prepared:
    session = await world.session(user_id=world.new_id())

    async def check() -> None:
        found = await world.stored(session)
        assert found is None or len(found.events) == 1
        await world.service.delete_user(**of_user(session))
        assert await world.stored(session) is None
        assert await world.service.get_user_state(**of_user(session)) == {}

    return world.service.delete_user(**of_user(session)), check


async def delete_app(world: World) -> Prepared:
    session = await world.session(app_name=world.new_id())
    name, app_name = world.new_id(), session.app_name
    async with world.service.consumer(name, app_name=app_name, start="now"):
        pass

    async def check() -> None:
        found = await world.stored(session)
        assert found is None or len(found.events) == 1
        await world.service.delete_app(app_name=app_name)
        assert (await world.service.list_sessions(app_name=app_name)).sessions == []
        assert name not in {each.name for each in await world.service.consumers()}

    return world.service.delete_app(app_name=app_name), check


async def prune(world: World) -> Prepared:
    """What has expired is gone for everybody before, and after."""
    session = await world.session()
    sessions = world.client[world.database]["sessions"]
    where = {"_id": ids_of(session)}
    await sessions.update_one(where, {"$set": {"expire_time": 1.0}})

    async def check() -> None:
        assert await world.stored(session) is None
        await world.service.prune()
        assert (await world.service.prune(dry_run=True)).sessions == 0

    return world.service.prune(), check


async def turn(world: World) -> Prepared:
    return _turn(world, ids_of(await world.session(events=0)))


async def turn_in_line(world: World) -> Prepared:
    """A turn that another caller has until this one is in line."""
    ids = ids_of(await world.session(events=0))
    respond, is_free = _turn(world, ids)
    held, gave_up = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with world.service.turn(**ids):
            held.set()
            ends = [in_line(world.service, 1), gave_up.wait()]
            ending = [asyncio.ensure_future(each) for each in ends]
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
            for each in ending:
                each.cancel()

    async def check() -> None:
        gave_up.set()
        await holding
        await is_free()

    holding = asyncio.create_task(hold(), context=Context())
    await held.wait()
    return respond, check


class _Runner:
    """Answers once, in the session that it is to answer in."""

    def __init__(self, service: MongoSessionService, app_name: str) -> None:
        self._service = service
        self.app_name = app_name

    async def run_async(
        self, *, user_id: str, session_id: str, **_: object
    ) -> AsyncGenerator[Event, None]:
        where = {"user_id": user_id, "session_id": session_id}
        event = new_event()
        yield await self._service.append(app_name=self.app_name, **where, event=event)


async def run_turn(world: World) -> Prepared:
    session = await world.session(events=0)
    ids = ids_of(session)

    async def respond() -> None:
        of_user = {"user_id": session.user_id, "session_id": session.id}
        runner: Any = _Runner(world.service, session.app_name)
        async with aclosing(world.service.run_turn(runner, **of_user)) as events:
            assert len([each async for each in events]) == 1

    return respond(), partial(_is_free, world, ids)


async def start_turn(world: World) -> Prepared:
    session = await world.session(events=0)
    ids = ids_of(session)

    async def respond() -> None:
        of_user = {"user_id": session.user_id, "session_id": session.id}
        runner: Any = _Runner(world.service, session.app_name)
        running = await world.service.start_turn(runner, **of_user)
        assert len(await running.result()) == 1

    async def check() -> None:
        async with world.service.turn(**ids):  # whatever has begun ends
            pass
        await _is_free(world, ids)

    return respond(), check


async def _asked(world: World) -> Session:
    """A session with a question, of a user who has no other."""
    session = await world.session(events=0, user_id=world.new_id())
    asked = Event(author="user", invocation_id="i", content=types.UserContent("one"))
    await world.service.append_event(session, asked)
    return session


async def edit(world: World) -> Prepared:
    """There is a branch that is shown, or none; what was edited stays."""
    session = await _asked(world)

    async def respond() -> None:
        runner: Any = _Runner(world.service, session.app_name)
        running = await world.service.start_turn(
            runner,
            user_id=session.user_id,
            session_id=session.id,
            new_message=types.UserContent("eins"),
            instead_of="i",
        )
        assert len(await running.result()) == 1

    async def check() -> None:
        branches = await world.service.find_branches(**ids_of(session))
        assert branches[-1].is_shown
        for each in branches:
            ids = {**ids_of(session), "session_id": each.session_id}
            async with world.service.turn(**ids):  # whatever has begun ends
                pass
            await _is_free(world, ids)
        page = await world.service.find_sessions(**of_user(session), families=True)
        assert [it.id for it in page.sessions] == [branches[-1].session_id]
        found = await world.stored(session)
        assert found is not None
        assert [each.id for each in found.events] == [session.events[0].id]

    return respond(), check


async def show_branch(world: World) -> Prepared:
    """One of both is shown, and it can be changed."""
    session = await _asked(world)
    ids = ids_of(session)
    key = SessionKey(**ids)
    new = key._replace(session_id=world.new_id())
    backend = await backends_of(world.service).backend()
    branch, _ = await new_branch(backend.storage, key, new, "i", asks_again=True)
    copied = await branch.copy()
    await backend.storage.run(lambda tx: bear(backend.storage, copied, tx))

    async def check() -> None:
        found = await world.service.find_branches(**ids)
        shown = [each.session_id for each in found if each.is_shown]
        assert shown in ([key.session_id], [new.session_id])
        await world.service.show_branch(**new.id)
        page = await world.service.find_sessions(**of_user(session), families=True)
        assert [each.id for each in page.sessions] == [new.session_id]

    return world.service.show_branch(**ids), check


async def stop_turn(world: World) -> Prepared:
    ids = ids_of(await world.session(events=0))

    async def stop() -> None:
        assert not await world.service.stop_turn(**ids)

    return stop(), partial(_is_free, world, ids)


def _turn(world: World, ids: dict[str, str]) -> Prepared:
    async def respond() -> None:
        async with world.service.turn(**ids) as fresh:
            await world.service.append_event(fresh, new_event())

    return respond(), partial(_is_free, world, ids)


async def _is_free(world: World, ids: dict[str, str]) -> None:
    """Check that nothing is left of a turn."""
    database = world.client[world.database]
    assert await database["leases"].count_documents({}) == 0
    found = await database["sessions"].find_one({"_id": ids})
    assert found is not None
    assert "holder" not in found.get("turn", {})
    async with world.service.turn(**ids, wait=0) as fresh:
        assert len(fresh.events) <= 1


async def open_(world: World) -> Prepared:
    """A service that is entered, called, and left."""
    service = MongoSessionService(client=world.client, database=world.database)

    async def enter() -> None:
        async with service:
            await service.flush()

    async def check() -> None:
        await enter()
        await world.session()

    return enter(), check


async def setup(world: World) -> Prepared:
    return world.service.setup(), works


async def flush(world: World) -> Prepared:
    return world.service.flush(), works


async def close(world: World) -> Prepared:
    return world.service.close(), works
