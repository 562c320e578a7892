"""A command that fails once, for a reason that passes, is not noticed by anyone."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.failpoints import failing, open_transactions

from mongo_session_service import MongoSessionService, UnknownOutcomeError

STATE = {"k": 1, "app:k": 1, "user:k": 1}


def new_event() -> Event:
    return Event(author="x", actions=EventActions(state_delta=dict(STATE)))


@dataclass
class World:
    """A service, and a user who is nobody else's."""

    service: MongoSessionService
    user_id: str

    @property
    def of_user(self) -> dict[str, str]:
        """What names the user."""
        return {"app_name": "app", "user_id": self.user_id}

    @property
    def ids(self) -> dict[str, str]:
        """What names the session."""
        return {**self.of_user, "session_id": "s"}

    async def stored(self) -> Session | None:
        """The session."""
        return await self.service.get_session(**self.ids)


Fault = AbstractContextManager[None]
Case = Callable[[World, Fault], Awaitable[None]]


async def create(world: World, fault: Fault) -> None:
    with fault:
        session = await world.service.create_session(**world.ids, state=dict(STATE))
    assert session.state == STATE
    assert await world.stored() == session


async def create_plain(world: World, fault: Fault) -> None:
    with fault:
        session = await world.service.create_session(**world.ids)
    assert await world.stored() == session


async def append(world: World, fault: Fault) -> None:
    session = await world.service.create_session(**world.ids)
    with fault:
        await world.service.append_event(session, new_event())
    assert session.state == STATE
    assert await world.stored() == session


async def append_without_marker(world: World, fault: Fault) -> None:
    session = await world.service.create_session(**world.ids)
    await world.service.append_event(session, new_event())
    copy = Session.model_validate_json(session.model_dump_json())
    with fault:
        await world.service.append_event(copy, new_event())
    assert await world.stored() == copy


async def append_again(world: World, fault: Fault) -> None:
    session, event = await world.service.create_session(**world.ids), new_event()
    copy = session.model_copy(deep=True)
    await world.service.append_event(session, event.model_copy(deep=True))
    with fault:
        await world.service.append_event(copy, event)
    assert copy == session
    assert await world.stored() == session


async def append_to_stale(world: World, fault: Fault) -> None:
    session = await world.service.create_session(**world.ids)
    stale = session.model_copy(deep=True)
    await world.service.append_event(session, new_event())
    with fault, pytest.raises(StaleSessionError):
        await world.service.append_event(stale, new_event())
    assert stale.events == []
    assert await world.stored() == session


async def update(world: World, fault: Fault) -> None:
    await world.service.create_session(**world.ids, title="old")
    with fault:
        await world.service.update_session(**world.ids, title="new")
    (found,) = (await world.service.find_sessions(**world.of_user)).sessions
    assert found.title == "new"


async def delete(world: World, fault: Fault) -> None:
    session = await world.service.create_session(**world.ids, state=dict(STATE))
    await world.service.append_event(session, new_event())
    with fault:
        await world.service.delete_session(**world.ids)
    assert await world.stored() is None
    assert (await world.service.create_session(**world.ids)).events == []
    assert (await world.stored()) is not None


async def list_(world: World, fault: Fault) -> None:
    session = await world.service.create_session(**world.ids, state=dict(STATE))
    with fault:
        listed = await world.service.list_sessions(**world.of_user)
    assert listed.sessions == [session]


async def get_user_state(world: World, fault: Fault) -> None:
    await world.service.create_session(**world.ids, state=dict(STATE))
    with fault:
        assert await world.service.get_user_state(**world.of_user) == {"k": 1}


FAULTS: dict[str, dict[str, Any]] = {
    "stepped-down": {"errorCode": 189},
    "network": {"closeConnection": True},
}
UNKNOWN = ["UnknownTransactionCommitResult"]
COMMITS: dict[str, dict[str, Any]] = {
    "unknown": {"errorCode": 262, "errorLabels": UNKNOWN},
    "unreplicated": {"writeConcernError": {"code": 64, "errmsg": "timed out"}},
}

SENT: dict[Case, list[str]] = {
    create: ["insert", "update", "commitTransaction", "aggregate"],
    create_plain: ["insert"],
    append: ["commitTransaction"],
    append_without_marker: ["aggregate"],
    append_again: ["abortTransaction", "find"],
    append_to_stale: ["abortTransaction", "find", "commitTransaction"],
    update: ["update", "commitTransaction"],
    delete: ["find", "commitTransaction"],
    list_: ["aggregate"],
    get_user_state: ["aggregate"],
}
"""Which commands calls send; of ``append`` and ``get_session`` more is tested in
``test_append_is_atomic`` and ``test_snapshots``."""


async def works(world: World) -> None:
    """The service can do all that it could."""
    session = await world.service.create_session(**world.of_user, state=dict(STATE))
    await world.service.append_event(session, new_event())
    ids = {**world.ids, "session_id": session.id}
    assert await world.service.get_session(**ids) == session


@contextlib.contextmanager
def once(admin: MongoClient, command: str, how: dict[str, Any]) -> Iterator[None]:
    """Fail the next such command, of which there has to be one."""
    with failing(admin, command, times=1, **how) as wait_until_hit:
        yield
        wait_until_hit()


@pytest.mark.parametrize(
    ("case", "commands"),
    SENT.items(),
    ids=[case.__name__.rstrip("_") for case in SENT],
)
async def test_a_command_that_fails_once(
    victim: MongoSessionService,
    admin: MongoClient,
    subtests: pytest.Subtests,
    case: Case,
    commands: list[str],
) -> None:
    """The call does what it is to, storage agrees, nothing is open, and on it goes."""
    await victim.setup()
    for command in commands:
        faults = FAULTS | COMMITS if command == "commitTransaction" else FAULTS
        for name, how in faults.items():
            with subtests.test(command=command, fault=name):
                world = World(victim, f"{command} {name}")

                await case(world, once(admin, command, how))

                assert open_transactions(admin) == 0
                await works(world)


@pytest.mark.parametrize("case", [create, append, update, delete])
async def test_a_commit_that_is_not_tried_again(
    victim: MongoSessionService, admin: MongoClient, case: Case
) -> None:
    """A commit that the server had no time for may have been done, and says so."""
    world = World(victim, "u")
    out_of_time = once(
        admin, "commitTransaction", {"errorCode": 50, "errorLabels": UNKNOWN}
    )

    with pytest.raises(UnknownOutcomeError):
        await case(world, out_of_time)

    assert open_transactions(admin) == 0
    await works(world)
