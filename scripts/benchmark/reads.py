"""Workloads that read, create and delete."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from itertools import count

from google.adk.events import Event
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from typing_extensions import override

from benchmark.contestants import Contestant
from benchmark.measure import Turn, time_calls, time_lanes
from benchmark.workload import Check, Workload, make_events

_USER = "user"


class Conversations:
    """Long sessions that several workloads read: seeded once for each contestant."""

    def __init__(self) -> None:
        self._seeded: dict[tuple[Contestant, int], list[str]] = {}

    async def seed(self, contestant: Contestant, events: int) -> list[str]:
        """The ids of the events of the session `read_<events>-0`."""
        if (contestant, events) not in self._seeded:
            made = make_events(events)
            await _seed(contestant, f"read_{events}", f"read_{events}-0", made)
            self._seeded[contestant, events] = [each.id for each in made]
        return self._seeded[contestant, events]


async def _seed(
    contestant: Contestant, app: str, session_id: str, events: list[Event]
) -> None:
    session = Session(app_name=app, user_id=_USER, id=session_id, state={"turn": 0})
    await contestant.seed_sessions([session])
    stored = await contestant.service.get_session(
        app_name=app, user_id=_USER, session_id=session_id
    )
    await contestant.seed_events(stored, events)


class Get(Workload):
    """get_session with all events, the latest, or none."""

    def __init__(
        self,
        name: str,
        conversations: Conversations,
        events: int,
        recent: int | None = None,
        *,
        unit: str = "ms",
        heavy: bool = False,
    ) -> None:
        super().__init__(name, unit, heavy=heavy)
        self._conversations = conversations
        self._events = events
        self._config = GetSessionConfig(num_recent_events=recent)
        self._recent = recent
        self._wanted: dict[Contestant, list[str]] = {}

    @override
    async def prepare(self, contestant: Contestant) -> None:
        ids = await self._conversations.seed(contestant, self._events)
        first = 0 if self._recent is None else len(ids) - self._recent
        self._wanted[contestant] = ids[first:]

    async def get(self, contestant: Contestant) -> Session:
        """Do it once."""
        app = f"read_{self._events}"
        session: Session = await contestant.service.get_session(
            app_name=app, user_id=_USER, session_id=f"{app}-0", config=self._config
        )
        return session

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        return await time_calls(
            lambda: self.get(contestant), budget, contestant.server_cpu
        )

    @override
    async def check(self, contestant: Contestant) -> int:
        session = await self.get(contestant)
        wanted = self._wanted[contestant]
        if [each.id for each in session.events] != wanted:
            raise Check(
                f"{len(session.events)} events were read instead of {len(wanted)}, or"
                " in another order"
            )
        return 0


class Memory(Get):
    """What holding a session takes, in MB; measured once, for it does not vary."""

    def __init__(self, name: str, conversations: Conversations, events: int) -> None:
        super().__init__(name, conversations, events, unit="MB", heavy=True)
        self._held: dict[Contestant, float] = {}

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        if contestant not in self._held:
            self._held[contestant] = await self._measure(contestant)
        return Turn([self._held[contestant]])

    async def _measure(self, contestant: Contestant) -> float:
        tracemalloc.start()
        try:
            session = await self.get(contestant)
            app = f"read_{self._events}"
            await contestant.service.get_session(  # so that no buffer holds the above
                app_name=app,
                user_id=_USER,
                session_id=f"{app}-0",
                config=GetSessionConfig(num_recent_events=1),
            )
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            del session
        finally:
            tracemalloc.stop()
        return held / 1e6


class ListSessions(Workload):
    """list_sessions of a user."""

    def __init__(self, name: str, sessions: int, *, heavy: bool = False) -> None:
        super().__init__(name, "ms", heavy=heavy)
        self._sessions = sessions

    @override
    async def prepare(self, contestant: Contestant) -> None:
        state = {"topic": "weather", "city": "Lisbon", "turn": 7, "seen": ["sun"]}
        await contestant.seed_sessions(
            [
                Session(
                    app_name=self.app,
                    user_id=_USER,
                    id=f"{self.app}-{number}",
                    state=dict(state),
                )
                for number in range(self._sessions)
            ]
        )

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        return await time_calls(
            lambda: contestant.service.list_sessions(app_name=self.app, user_id=_USER),
            budget,
            contestant.server_cpu,
        )

    @override
    async def check(self, contestant: Contestant) -> int:
        listed = await contestant.service.list_sessions(
            app_name=self.app, user_id=_USER
        )
        found = {each.id for each in listed.sessions if each.state["turn"] == 7}  # noqa: PLR2004
        if len(found) != self._sessions or len(listed.sessions) != self._sessions:
            raise Check(f"{len(found)} sessions were listed, not {self._sessions}")
        return 0


class Create(Workload):
    """create_session, some at once."""

    def __init__(self, name: str, at_once: int = 1) -> None:
        super().__init__(name, "/s")
        self._at_once = at_once
        self._names = count()
        self._made: dict[Contestant, set[str]] = {}
        self._per_second: dict[Contestant, float] = {}

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        wanted = self._per_second.get(contestant, 0) * budget
        each = int(min(wanted, 2000) / self._at_once) + 1
        made = self._made.setdefault(contestant, set())

        def create() -> object:
            session_id = f"{self.app}-{next(self._names)}"
            made.add(session_id)
            return contestant.service.create_session(
                app_name=self.app,
                user_id=_USER,
                session_id=session_id,
                state={"topic": "weather", "turn": 7},
            )

        turn = await time_lanes(
            [[create] * each] * self._at_once, contestant.server_cpu
        )
        self._per_second[contestant] = len(turn.values) / turn.elapsed
        return turn

    @override
    async def check(self, contestant: Contestant) -> int:
        listed = await contestant.service.list_sessions(
            app_name=self.app, user_id=_USER
        )
        if {each.id for each in listed.sessions} != self._made[contestant]:
            raise Check(f"{len(listed.sessions)} sessions are stored, not those made")
        return 0


class Delete(Workload):
    """delete_session of a long one."""

    def __init__(self, name: str, events: int, *, heavy: bool = False) -> None:
        super().__init__(name, "ms", heavy=heavy)
        self._events = events
        self._names = count()

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        id_ = f"{self.app}-{next(self._names)}"
        await _seed(contestant, self.app, id_, make_events(self._events))
        if await contestant.count_events(self.app) != self._events:
            raise Check("not all events were stored")
        await asyncio.sleep(0.05)  # for what seeding left the server to do
        return await time_calls(
            lambda: contestant.service.delete_session(
                app_name=self.app, user_id=_USER, session_id=id_
            ),
            0,
            contestant.server_cpu,
        )

    @override
    async def check(self, contestant: Contestant) -> int:
        if left := await contestant.count_events(self.app):
            raise Check(f"{left} events are left")
        return 0
