"""Workloads: what each contestant does, and how it is checked."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from typing_extensions import override

from benchmark.contestants import Contestant, Lane, key_of
from benchmark.figures import Sample, WrongError, sample_calls, sampled, time_call

READ_BACK = 20
LISTED = 10_000
ITEMS = [f"item-{number}" for number in range(2 * LISTED)]
TEXT = (
    "The forecast for tomorrow is rain in the morning and sun from noon on, with 19 to"
    " 24 degrees and a light wind from the west. Take a coat if you leave before ten,"
    " and leave the umbrella at home if you do not."
)


def make_event(number: int, delta: dict[str, Any] | None = None) -> Event:
    """An agent's ordinary answer."""
    return Event(
        author="weather_agent" if number % 2 else "user",
        invocation_id=f"invocation-{number // 2}",
        content=types.Content(role="model", parts=[types.Part(text=TEXT)]),
        actions=EventActions(state_delta=delta or {}),
    )


def make_events(count: int) -> list[Event]:
    """A conversation that ends now."""
    events = [make_event(number, {"turn": number}) for number in range(count)]
    now = time.time()
    for number, event in enumerate(events, 1):
        event.timestamp = now - (count - number) / 1000
    return events


@dataclass
class Workload:
    """One thing that contestants do; `unit` is "ms" or "/s"."""

    name: str
    unit: str = "ms"
    _: KW_ONLY
    is_heavy: bool = False
    """True if a quick run has one round of it."""

    @property
    def app(self) -> str:
        """The app that has its sessions."""
        return self.name.replace(" ", "_").replace(",", "").replace(":", "")

    async def prepare(self, contestant: Contestant) -> None:
        """Store what the rounds need."""
        self.contestant = contestant

    async def sample(self, seconds: float) -> Sample:
        """Do it for about so long."""
        raise NotImplementedError

    async def check(self) -> int:
        """Compare what is stored with what was done; how many state keys are wrong.

        Raises:
            WrongError: it is not the same.
        """
        return 0

    def user(self, index: int) -> str:  # noqa: ARG002
        """Whose session it is."""
        return "user"

    def make_session(self, index: int, state: dict[str, Any]) -> Session:
        """Make a session, which is not stored."""
        id_, user = f"{self.app}-{index}", self.user(index)
        return Session(app_name=self.app, user_id=user, id=id_, state=state)

    async def read(self, index: int, recent: int | None) -> Session:
        """Read a session with its latest events, or all."""
        session: Session = await self.contestant.service.get_session(
            **key_of(self.make_session(index, {})),
            config=GetSessionConfig(num_recent_events=recent),
        )
        return session

    async def list_sessions(self) -> list[Session]:
        """List the user's sessions."""
        service, user = self.contestant.service, self.user(0)
        listed = await service.list_sessions(app_name=self.app, user_id=user)
        return list(listed.sessions)


@dataclass(kw_only=True)
class Append(Workload):
    """Appends to some sessions at once, each session's one after the other."""

    at_once: int = 1
    events: int = 0
    state_bytes: int = 0
    most: ClassVar = 4000
    """In one round."""

    @override
    def user(self, index: int) -> str:
        return f"user-{index}"

    def delta(self, index: int, turn: int) -> dict[str, Any]:  # noqa: ARG002
        """State that an append to a session sets."""
        return {"turn": turn}

    @override
    async def prepare(self, contestant: Contestant) -> None:
        await super().prepare(contestant)
        part = "x" * (self.state_bytes // 100)
        state = {f"part-{number}": part for number in range(100)} if part else {}
        indexes = range(self.at_once)
        await contestant.seed_sessions([self.make_session(it, state) for it in indexes])
        seeded = make_events(self.events)
        if seeded:
            await contestant.seed_events(await self.read(0, 1), seeded)
        self._sessions = [await self.read(index, 1) for index in indexes]
        self._appended: list[list[str]] = [[] for _ in indexes]
        self._appended[0] = [each.id for each in seeded]
        self._per_second = 0.0

    @override
    async def sample(self, seconds: float) -> Sample:
        wanted = min(self._per_second * seconds, self.most)
        each = max(1, math.ceil(wanted / self.at_once))
        lanes = [self._lane(index, each) for index in range(self.at_once)]
        sample = await self.contestant.append(lanes)
        self._per_second = len(sample.calls) / sample.elapsed
        return sample

    def _lane(self, index: int, count: int) -> Lane:
        appended = self._appended[index]

        numbers = range(len(appended), len(appended) + count)
        made = [make_event(each, self.delta(index, each)) for each in numbers]
        appended += [each.id for each in made]
        return Lane(self._sessions[index], iter(made))

    @override
    async def check(self) -> int:
        wanted = sum(map(len, self._appended))
        found = await self.contestant.count_events(self.app)
        if found != wanted:
            raise WrongError(f"{found} events are stored, {wanted} were appended")
        return sum([await self._check_end(index) for index in range(self.at_once)])

    async def _check_end(self, index: int) -> int:
        session = await self.read(index, READ_BACK)
        appended = self._appended[index]
        if [each.id for each in session.events] != appended[-READ_BACK:]:
            raise WrongError(f"session {index} does not end with the last appends")
        if len(session.state.get("part-0", "")) != self.state_bytes // 100:
            raise WrongError(f"session {index} has lost its state")
        state = await self.contestant.state_of(session)
        wanted = self.delta(index, len(appended) - 1)
        return sum(state.get(key) != value for key, value in wanted.items())


class AppendSharedState(Append):
    """Appends that each set a key of their app's state and one of their user's."""

    @override
    def user(self, index: int) -> str:
        return f"user-{index % 4}"

    @override
    def delta(self, index: int, turn: int) -> dict[str, Any]:
        return {"turn": turn, f"app:key-{index}": turn, f"user:key-{index}": turn}


class AppendGrowingList(Append):
    """Appends that each add an item to a list in state, as a nested write does.

    ADK has seen that the list is another, and its delta is all of it.
    """

    most = 200  # events that are kept in memory, or read back, have all of it too

    @override
    def delta(self, index: int, turn: int) -> dict[str, Any]:
        return {"items": ITEMS[: LISTED + turn]}


@dataclass(kw_only=True)
class Get(Workload):
    """get_session with all events, the latest, or none."""

    events: int
    recent: int | None = None
    is_first: bool = False
    """True if each read is the first of a service."""

    @override
    async def prepare(self, contestant: Contestant) -> None:
        await super().prepare(contestant)
        await contestant.seed_sessions([self.make_session(0, {"turn": 0})])
        events = make_events(self.events)
        await contestant.seed_events(await self._get(), events)
        left_out = 0 if self.recent is None else len(events) - self.recent
        self._wanted = [each.id for each in events[left_out:]]

    async def _get(self) -> Session:
        return await self.read(0, self.recent)

    @override
    async def sample(self, seconds: float) -> Sample:
        clock = self.contestant.server_cpu
        if not self.is_first:
            return await sample_calls(self._get, seconds, clock)
        await self.contestant.restart()
        async with sampled(clock) as sample:
            sample.calls.append(await time_call(self._get()))
        return sample

    @override
    async def check(self) -> int:
        found = [each.id for each in (await self._get()).events]
        if found != self._wanted:
            wanted = len(self._wanted)
            message = (
                f"{len(found)} events were read, not {wanted}, or in another order"
            )
            raise WrongError(message)
        return 0


@dataclass(kw_only=True)
class GetInNewLoop(Get):
    """The same in an event loop that is made for the call, as web frameworks do it."""

    @override
    async def sample(self, seconds: float) -> Sample:
        async def run() -> Session:
            return await asyncio.to_thread(lambda: asyncio.run(self._get()))

        return await sample_calls(run, seconds, self.contestant.server_cpu)


@dataclass(kw_only=True)
class ListSessions(Workload):
    """list_sessions of a user."""

    sessions: int

    @override
    async def prepare(self, contestant: Contestant) -> None:
        await super().prepare(contestant)
        state = {"topic": "weather", "city": "Lisbon", "turn": 7, "seen": ["sun"]}
        numbers = range(self.sessions)
        await contestant.seed_sessions(
            [self.make_session(number, dict(state)) for number in numbers]
        )

    @override
    async def sample(self, seconds: float) -> Sample:
        clock = self.contestant.server_cpu
        return await sample_calls(self.list_sessions, seconds, clock)

    @override
    async def check(self) -> int:
        listed = await self.list_sessions()
        found = {each.id for each in listed if each.state["turn"] == 7}  # noqa: PLR2004
        if len(found) != self.sessions or len(listed) != self.sessions:
            raise WrongError(f"{len(found)} sessions are listed, not {self.sessions}")
        return 0


@dataclass(kw_only=True)
class Create(Workload):
    """create_session, some at once."""

    at_once: int = 1
    made: list[str] = field(default_factory=list)

    async def _create(self) -> None:
        state = {"topic": "weather", "turn": 7}
        session = self.make_session(len(self.made), state)
        self.made.append(session.id)
        await self.contestant.create(session)

    @override
    async def sample(self, seconds: float) -> Sample:
        async with sampled(self.contestant.server_cpu) as sample:
            end = time.perf_counter() + seconds

            async def create_lane() -> None:
                sample.calls.append(await time_call(self._create()))
                while time.perf_counter() < end:
                    sample.calls.append(await time_call(self._create()))

            await asyncio.gather(*(create_lane() for _ in range(self.at_once)))
        return sample

    @override
    async def check(self) -> int:
        found = [each.id for each in await self.list_sessions()]
        if sorted(found) != sorted(self.made):
            count = len(found)
            raise WrongError(f"{count} sessions are stored, not those that were made")
        return 0


def make_workloads() -> dict[str, Workload]:
    """All workloads, by their names."""
    shared = "append app: and user:, 16 at once"
    all_of_them = (
        Append("append alone"),
        Append("append, 32 at once", "/s", at_once=32),
        Append("append, 512 at once", "/s", at_once=512, is_heavy=True),
        AppendSharedState(shared, "/s", at_once=16),
        Append("append, 1 MB state", state_bytes=1_000_000),
        Append("append, 10,000 events", events=10_000, is_heavy=True),
        AppendGrowingList("append a list of 10,000"),
        Get("get none of 500", events=500, recent=0),
        GetInNewLoop("get none, in new loops", events=500, recent=0),
        Get("get last 20 of 500", events=500, recent=20),
        Get("get last 20 of 10,000", events=10_000, recent=20, is_heavy=True),
        Get("get all of 500", events=500),
        Get("get all of 2,000, first", events=2000, is_first=True, is_heavy=True),
        Get("get all of 2,000, again", events=2000, is_heavy=True),
        ListSessions("list 500", sessions=500),
        Create("create alone", "/s"),
        Create("create, 32 at once", "/s", at_once=32),
    )
    return {each.name: each for each in all_of_them}
