"""Trims among appends, rewinds, forks and exports, against a model of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.sessions import Session
from support.function_calls import called, responded
from support.transfers import compared, exported, imported

from mongo_session_service import MongoSessionService, TrimmedError
from mongo_session_service.sessions import trim
from mongo_session_service.testing import Limits

USER = {"app_name": "weather", "user_id": "ada"}


@dataclass
class Modelled:
    """A session as it should be: all that was ever appended, and where it was cut."""

    session: Session
    initial: dict[str, Any]
    log: list[Event] = field(default_factory=list)
    cut: int = 0

    @property
    def key(self) -> dict[str, str]:
        return {**USER, "session_id": self.session.id}

    @property
    def kept(self) -> list[tuple[int, Event]]:
        """The events that are left, by revision."""
        return [*enumerate(self.log, 1)][self.cut :]

    def state(self, revision: int) -> dict[str, Any]:
        """Its own state after a revision."""
        state = {**self.initial}
        for event in self.log[:revision]:
            state |= event.actions.state_delta
        return state


@pytest.fixture
async def service(
    mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """A service that forks in steps of five events, and reads pages of four."""
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=Limits(fork_step=5, page_events=4)
    ) as service:
        yield service


class World:
    """A service, and the model of its sessions."""

    def __init__(self, service: MongoSessionService, chance: random.Random) -> None:
        self.service = service
        self.chance = chance
        self.sessions: list[Modelled] = []

    async def create(self) -> None:
        state = {"k": "initial", "other": "x" * self.chance.choice([1, 5000])}
        session = await self.service.create_session(**USER, state=state)
        self.sessions.append(Modelled(session, state))

    def event(self, modelled: Modelled) -> Event:
        """Any event that may come next."""
        turns = [event.invocation_id for _, event in modelled.kept]
        name = self.chance.choice("fgh")
        turn = self.chance.choice([*turns[-1:], f"turn {len(modelled.log)}"])
        back = self.chance.choice([*turns[-6:]] or [None])
        actions = EventActions(rewind_before_invocation_id=back)
        event = self.chance.choice(
            [
                Event(author="x"),
                Event(author="x"),
                called(name, long_running=name == "h"),
                responded(name),
                Event(author="user", actions=actions),
            ]
        )
        event.invocation_id = turn
        event.timestamp -= self.chance.choice([0, 0, trim.LONG_CALL_LASTS + 1])
        number = self.chance.randrange(5)
        event.actions.state_delta[f"k{number}"] = len(modelled.log)
        return event

    async def append(self, modelled: Modelled) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            event = self.event(modelled)
            await self.service.append_event(modelled.session, event)
            modelled.log.append(event)

    async def trim(self, modelled: Modelled) -> None:
        """Trim; how much went is up to the service, what it may be is not."""
        last = len(modelled.log)
        wanted = self.chance.randrange(modelled.cut, last + 1)
        criterion = {"before_revision": wanted + 1}
        if last - wanted:
            criterion = self.chance.choice([criterion, {"keep_last": last - wanted}])

        removed = await self.service.trim_session(**modelled.key, **criterion)

        live = [event.id for event in _apply_rewinds([it for _, it in modelled.kept])]
        modelled.cut += removed
        assert modelled.cut <= wanted
        ids = {event.id for _, event in modelled.kept}
        left = _apply_rewinds([event for _, event in modelled.kept])
        assert [event.id for event in left] == [it for it in live if it in ids]

    async def fork(self, modelled: Modelled) -> None:
        revision = self.chance.randrange(modelled.cut, len(modelled.log) + 1)
        fork = await self.service.fork_session(**modelled.key, at_revision=revision)
        log = modelled.log[:revision]
        self.sessions.append(Modelled(fork, modelled.initial, log, modelled.cut))

    async def check(self, modelled: Modelled) -> None:
        """Read it in every way there is."""
        key, kept, last = modelled.key, modelled.kept, len(modelled.log)
        stored = await self.service.get_session(**key)
        assert stored is not None
        assert stored.events == [event for _, event in kept]
        assert stored.state == modelled.state(last)
        assert [each async for each in self.service.iter_events(**key)] == kept
        live = [each.id for each in _apply_rewinds(stored.events)]
        reading = self.service.iter_events(**key, rewound=False, newest_first=True)
        assert [each.id async for _, each in reading] == live[::-1]
        revision = self.chance.randrange(modelled.cut, last + 1)
        past = await self.service.get_session_at(**key, revision=revision)
        assert past is not None
        assert past.state == modelled.state(revision)
        assert past.events == [event for it, event in kept if it <= revision]
        if modelled.cut:
            with pytest.raises(TrimmedError):
                await self.service.get_session_at(**key, revision=modelled.cut - 1)
            if kept:
                assert modelled.cut == kept[0][0] - 1


@pytest.mark.limits(removed_events=3)
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.release) for seed in range(1, 13))],
)
async def test_trimmed_sessions_equal_their_model(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    tmp_path: Path,
    seed: int,
) -> None:
    """Whatever is done in any order, and also once all is exported and imported."""
    world = World(service, random.Random(seed))  # noqa: S311  no secret
    await world.create()
    steps = [world.append, world.append, world.append, world.trim, world.trim]
    for _ in range(25):
        modelled = world.chance.choice(world.sessions)
        forks = [world.fork] if len(world.sessions) < 4 else []
        step = world.chance.choice([*steps, *forks])
        await step(modelled)
        await world.check(modelled)
    assert any(each.cut for each in world.sessions)
    for each in world.sessions:
        await world.check(each)

    path = tmp_path / "all.jsonl"
    await exported(service, path)
    async with MongoSessionService(
        mongodb_uri, database=database, collection_prefix="copy_"
    ) as copy:
        for expected in (len(world.sessions), 0):
            assert (await imported(path, copy)).new == expected
        assert await compared(service, copy) == []
        world.service = copy
        for each in world.sessions:
            await world.check(each)
