"""Calls that concern live subscriptions, of which there are so many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from google.adk.sessions import Session
from typing_extensions import override

from benchmark.contestants import Contestant, Ours, Place
from benchmark.feed import APP, Crowd, event
from benchmark.measure import Turn, time_calls
from benchmark.workload import Workload
from mongo_session_service import MongoSessionService

_USER: Final = "user"
_WRITTEN: Final = 20  # sessions, at most, to which events are appended


class Watched:
    """Subscriptions of one service, each to a session of its own.

    Another service of this process writes, so that the CPU of a call is all of it: the
    append, and what its subscribers take.
    """

    def __init__(self, place: Place, subscribers: int) -> None:
        run = f"{place.run}_{subscribers}"
        self.writing = Ours(Place(place.uri, run, place.directory))
        self.subscribers = subscribers
        self.sessions: Sequence[Session] = []
        self.crowd: Crowd | None = None

    async def open(self) -> Crowd:
        """Store the sessions, and subscribe; once."""
        if self.crowd is None:
            await self.writing.open()
            sessions = [
                Session(app_name=APP, user_id=_USER, id=f"s{number}")
                for number in range(self.subscribers)
            ]
            await self.writing.seed_sessions(sessions)
            self._reading = MongoSessionService(
                self.writing.place.uri, database=self.writing.database.name
            )
            self.crowd = Crowd(self._reading, sessions)
            await self.crowd.open(self.subscribers)
            step = -(-self.subscribers // _WRITTEN)
            self.sessions = [
                await self.writing.service.get_session(
                    app_name=APP, user_id=_USER, session_id=each.id
                )
                for each in sessions[::step]
            ]
        return self.crowd

    async def close(self) -> None:
        """End the subscriptions, and remove the sessions; once."""
        if self.crowd is not None:
            await self.crowd.close()
            self.crowd = None
            await self._reading.close()
            await self.writing.drop()
            await self.writing.close()


class Delivery(Workload):
    """An append, until the one subscriber whom it concerns has it."""

    def __init__(self, name: str, watched: Watched) -> None:
        super().__init__(name, "ms")
        self.watched = watched
        self.numbers = count(1)

    @override
    async def prepare(self, contestant: Contestant) -> None:
        await self.watched.open()

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        return await time_calls(self.call, budget, contestant.server_cpu)

    async def call(self) -> None:
        """Do it once; a delivery that is missing is an error."""
        number, crowd = next(self.numbers), await self.watched.open()
        crowd.expect(1)
        session = self.watched.sessions[number % len(self.watched.sessions)]
        await self.watched.writing.service.append_event(session, event(n=number))
        await crowd.told()

    @override
    async def close(self) -> None:
        await self.watched.close()


class Broadcast(Delivery):
    """An append that changes state of the app, until every subscriber has it."""

    @override
    async def call(self) -> None:
        number, crowd = next(self.numbers), await self.watched.open()
        crowd.expect(self.watched.subscribers, number)
        change = event(**{"app:beat": number})
        await self.watched.writing.service.append_event(
            self.watched.sessions[0], change
        )
        await crowd.told()
