"""Any calls in any order: what is stored is what ADK's in-memory service keeps."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from pydantic import BaseModel
from support.fake_clock import Clock
from support.patience import PATIENCE
from support.strategies import identical, json_values

from mongo_session_service import MongoSessionService

Result = TypeVar("Result")
Call = Callable[[BaseSessionService], Coroutine[Any, Any, Result]]


USERS, NAMES = ["u", "v"], ["s", "t"]
ALL = list(itertools.product(USERS, NAMES))
users, names = st.sampled_from(USERS), st.sampled_from(NAMES)
deltas = st.dictionaries(
    st.builds(
        str.__add__,
        st.sampled_from(["", "app:", "user:", "temp:"]),
        st.sampled_from(["a", "a.b", "$set", ""]),
    ),
    json_values(max_leaves=4),
    max_size=4,
)

configs = st.fixed_dictionaries(
    {
        "recent": st.none() | st.integers(0, 3),
        "age": st.none() | st.sampled_from([0.5, 1.0, 3600.5]),
    }
)


@dataclass(eq=False)
class Copy:
    """A session as a caller has it from both services, and what it is a copy of."""

    ours: Session
    theirs: Session
    version: tuple[int, int]


def assert_same(ours: Session | None, theirs: Session | None) -> None:
    """A session is the same in both services, type for type."""
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert identical(ours.model_dump(), theirs.model_dump())


async def set_clock() -> Clock:
    return Clock.set()


class Services(RuleBasedStateMachine):
    """Both services, and the copies of sessions that callers have."""

    service: ClassVar[MongoSessionService]
    loop: ClassVar[asyncio.Runner]
    numbers: ClassVar[itertools.count[int]]

    copies = Bundle("copies")

    def __init__(self) -> None:
        super().__init__()
        self.app = f"app{next(self.numbers)}"  # each run has one of its own
        self.model = InMemorySessionService()
        self.clock = self.run(set_clock())
        self.stored: dict[tuple[str, str], tuple[int, int]] = {}
        """Of each session its creation, and how many events were appended since."""

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Wait for a call, in the loop and the context of all of them."""

        async def bounded() -> Result:
            async with asyncio.timeout(PATIENCE):
                return await call

        return self.loop.run(bounded())

    def both(self, call: Call[Result]) -> tuple[Result, Result]:
        async def ask() -> tuple[Result, Result]:
            return await call(self.service), await call(self.model)

        return self.run(ask())

    def refused(
        self, error: type[Exception], call: Call[Any], *services: BaseSessionService
    ) -> None:
        """A call is refused by these services."""
        for service in services:
            with pytest.raises(error):
                self.run(call(service))

    def ids(self, user: str, name: str) -> dict[str, str]:
        return {"app_name": self.app, "user_id": user, "session_id": name}

    @rule(seconds=st.sampled_from([0.5, 3600.0]))
    def time_passes(self, seconds: float) -> None:
        """What follows is later."""
        self.clock.now += seconds

    @rule(target=copies, user=users, name=names, state=st.none() | deltas)
    def create(self, user: str, name: str, state: dict[str, Any] | None) -> Any:
        """A session is created, if there is none."""

        async def call(service: BaseSessionService) -> Session:
            ids = self.ids(user, name)
            return await service.create_session(**ids, state=deepcopy(state))

        if (user, name) in self.stored:
            self.refused(AlreadyExistsError, call, self.service, self.model)
            return multiple()
        version = self.stored[user, name] = (next(self.numbers), 0)
        copy = Copy(*self.both(call), version)
        assert_same(copy.ours, copy.theirs)
        return copy

    @rule(target=copies, user=users, name=names, config=configs)
    def get(self, user: str, name: str, config: dict[str, float | None]) -> Any:
        """A session is read, whole or in part."""
        after = config["age"] and self.clock.now - config["age"]

        async def call(service: BaseSessionService) -> Session | None:
            how = GetSessionConfig(
                num_recent_events=config["recent"], after_timestamp=after
            )
            return await service.get_session(**self.ids(user, name), config=how)

        ours, theirs = self.both(call)
        assert_same(ours, theirs)
        if ours is None or theirs is None:
            assert (user, name) not in self.stored
            return multiple()
        return Copy(ours, theirs, self.stored[user, name])

    @rule(copy=copies, delta=deltas)
    def append(self, copy: Copy, delta: dict[str, Any]) -> None:
        """Who is up to date appends; others are refused, and keep what they had."""
        id_ = f"e{next(self.numbers)}"

        def new_event() -> Event:
            actions = EventActions(state_delta=deepcopy(delta))
            return Event(id=id_, author="x", actions=actions, timestamp=self.clock.now)

        async def call(service: BaseSessionService) -> Event:
            session = copy.ours if service is self.service else copy.theirs
            return await service.append_event(session, new_event())

        key = copy.ours.user_id, copy.ours.id
        if key not in self.stored:
            self.refused(SessionNotFoundError, call, self.service, self.model)
        elif self.stored[key] != copy.version:
            self.refused(StaleSessionError, call, self.service)
        else:
            ours, theirs = self.both(call)
            assert identical(ours.model_dump(), theirs.model_dump())
            creation, revision = copy.version
            copy.version = self.stored[key] = (creation, revision + 1)
        assert_same(copy.ours, copy.theirs)

    @rule(copy=copies)
    def append_again(self, copy: Copy) -> None:
        """An event that is stored is recognised, by whomever it is brought again."""
        key = copy.ours.user_id, copy.ours.id
        if not copy.ours.events or self.stored.get(key, (0, 0))[0] != copy.version[0]:
            return

        async def call(service: BaseSessionService) -> Event:
            session = copy.ours if service is self.service else copy.theirs
            return await service.append_event(session, session.events[-1])

        self.both(call)
        assert_same(copy.ours, copy.theirs)

    @rule(copy=copies, delta=deltas)
    def append_partial(self, copy: Copy, delta: dict[str, Any]) -> None:
        """Nothing comes of a partial event, whatever its session."""

        async def call(service: BaseSessionService) -> Event:
            session = copy.ours if service is self.service else copy.theirs
            actions = EventActions(state_delta=deepcopy(delta))
            event = Event(author="x", partial=True, actions=actions)
            return await service.append_event(session, event)

        self.both(call)
        assert_same(copy.ours, copy.theirs)

    @rule(user=users, name=names)
    def delete(self, user: str, name: str) -> None:
        """A session is deleted, if there is one."""

        async def call(service: BaseSessionService) -> None:
            await service.delete_session(**self.ids(user, name))

        self.both(call)
        self.stored.pop((user, name), None)

    @invariant()
    def same_is_stored(self) -> None:
        """All that can be read is the same."""

        async def everything(service: BaseSessionService) -> list[Any]:
            return await asyncio.gather(
                *(service.get_session(**self.ids(*each)) for each in ALL),
                service.list_sessions(app_name=self.app),
                *(
                    service.list_sessions(app_name=self.app, user_id=user)
                    for user in USERS
                ),
                *(
                    service.get_user_state(app_name=self.app, user_id=user)
                    for user in USERS
                ),
            )

        for ours, theirs in zip(*self.both(everything), strict=True):
            assert identical(plain(ours), plain(theirs))


def plain(answer: Any) -> Any:
    """An answer of a service, as plain objects."""
    return answer.model_dump() if isinstance(answer, BaseModel) else answer


@pytest.mark.long
def test_any_calls_in_any_order(mongodb_uri: str, database: str) -> None:
    """Answers, errors and what is stored are the same as ADK's after every call."""
    with asyncio.Runner() as loop:
        service = MongoSessionService(mongodb_uri, database=database)
        Services.service, Services.loop = service, loop
        Services.numbers = itertools.count()
        try:
            run_state_machine_as_test(
                Services,
                settings=settings(
                    derandomize=True,
                    database=None,
                    max_examples=20,
                    stateful_step_count=15,
                ),
            )
        finally:
            loop.run(service.close())
