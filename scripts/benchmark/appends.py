"""Workloads that append."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from typing_extensions import override

from benchmark.contestants import Contestant
from benchmark.measure import Turn, time_lanes
from benchmark.workload import Check, Workload, make_event, make_events

_MOST_PER_TURN = 2000
_READ_BACK = 20


class Append(Workload):
    """Appends to some sessions at once, each session's one after the other."""

    def __init__(
        self,
        name: str,
        unit: str = "ms",
        *,
        at_once: int = 1,
        events: int = 0,
        state_bytes: int = 0,
        heavy: bool = False,
    ) -> None:
        super().__init__(name, unit, heavy=heavy)
        self.at_once = at_once
        self._events = events
        self._state_bytes = state_bytes
        self._sessions: dict[Contestant, list[Session]] = {}
        self._appended: dict[Contestant, list[list[str]]] = {}  # ids
        self._per_second: dict[Contestant, float] = {}

    def user(self, index: int) -> str:
        """Whose session it is."""
        return f"user-{index}"

    def delta(self, index: int, turn: int) -> dict[str, Any]:  # noqa: ARG002
        """What an append to a session changes."""
        return {"turn": turn}

    @override
    async def prepare(self, contestant: Contestant) -> None:
        part = "x" * (self._state_bytes // 100)
        state = {f"part-{number}": part for number in range(100)} if part else {}
        sessions = [
            Session(
                app_name=self.app,
                user_id=self.user(index),
                id=f"{self.app}-{index}",
                state=state,
            )
            for index in range(self.at_once)
        ]
        await contestant.seed_sessions(sessions)
        seeded = make_events(self._events)
        if seeded:
            await contestant.seed_events(sessions[0], seeded)
        self._sessions[contestant] = [
            await contestant.service.get_session(
                app_name=each.app_name,
                user_id=each.user_id,
                session_id=each.id,
                config=GetSessionConfig(num_recent_events=1),
            )
            for each in sessions
        ]
        self._appended[contestant] = [[] for _ in sessions]
        self._appended[contestant][0] = [each.id for each in seeded]
        self._per_second[contestant] = 0

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        wanted = min(self._per_second[contestant] * budget, _MOST_PER_TURN)
        each = max(1, math.ceil(wanted / self.at_once))
        lanes = [self._lane(contestant, index, each) for index in range(self.at_once)]
        turn = await time_lanes(lanes, contestant.server_cpu)
        self._per_second[contestant] = len(turn.values) / turn.elapsed
        return turn

    def _lane(
        self, contestant: Contestant, index: int, count: int
    ) -> Sequence[Callable[[], Any]]:
        session = self._sessions[contestant][index]
        appended = self._appended[contestant][index]
        first = len(appended)
        events = [
            make_event(number, self.delta(index, number))
            for number in range(first, first + count)
        ]
        appended += [each.id for each in events]
        append = contestant.service.append_event
        return [partial(append, session, event) for event in events]

    @override
    async def check(self, contestant: Contestant) -> int:
        appended = self._appended[contestant]
        wanted = sum(map(len, appended))
        found = await contestant.count_events(self.app)
        if found != wanted:
            raise Check(f"{found} events are stored, {wanted} were appended")
        lost = 0
        for index in range(self.at_once):
            if index in {0, self.at_once - 1} or self.delta(0, 0).keys() - {"turn"}:
                lost += await self._read_back(contestant, index)
        return lost

    @override
    async def close(self) -> None:
        self._sessions.clear()
        self._appended.clear()

    async def _read_back(self, contestant: Contestant, index: int) -> int:
        session = await contestant.service.get_session(
            app_name=self.app,
            user_id=self.user(index),
            session_id=f"{self.app}-{index}",
            config=GetSessionConfig(num_recent_events=_READ_BACK),
        )
        appended = self._appended[contestant][index]
        wanted = appended[-_READ_BACK:]
        if [each.id for each in session.events] != wanted:
            raise Check(f"session {index} does not end with what was appended last")
        if len(session.state.get("part-0", "")) != self._state_bytes // 100:
            raise Check(f"session {index} has lost its state")
        state = await contestant.state_of(session)
        wanted_state = self.delta(index, len(appended) - 1)
        return sum(state.get(key) != value for key, value in wanted_state.items())


class SharedState(Append):
    """Appends that each set a key of their app's state and one of their user's."""

    @override
    def user(self, index: int) -> str:
        return f"user-{index % 4}"

    @override
    def delta(self, index: int, turn: int) -> dict[str, Any]:
        return {"turn": turn, f"app:key-{index}": turn, f"user:key-{index}": turn}
