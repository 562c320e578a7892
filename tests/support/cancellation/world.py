"""A service to call, and what a call's end has to look like."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService

APP, USER = "app", "user"
STATE = {"k": 1, "app:k": 1, "user:k": 1}


@dataclass
class World:
    """A service, one that lets second writers in, and what they are asked for."""

    service: MongoSessionService
    rebasing: MongoSessionService
    client: AsyncMongoClient[Any]
    """Theirs."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    _template: dict[str, Any] = field(default_factory=dict)
    _known: Session | None = None

    @property
    def database(self) -> str:
        """The name of what they write to."""
        return self.service.database_name

    def new_id(self) -> str:
        return f"n{next(self.numbers)}"

    def ids(self) -> dict[str, str]:
        """Of a session that is not there yet."""
        return {"app_name": APP, "user_id": USER, "session_id": self.new_id()}

    async def session(self, events: int = 1, **ids: str) -> Session:
        """One that is there, with up to three events.

        Its documents are copied from those of one that the service has stored.
        """
        if not self._template:
            await self._store_template()
        session, log = self._template["session"], self._template["log"][:events]
        new = {"_id": {**self.ids(), **ids}}
        database = self.client[self.database]
        if log:
            await database["events"].insert_many(
                {**each, "_id": {**new["_id"], "revision": number}}
                for number, each in enumerate(log, 1)
            )
        await database["sessions"].insert_one({**session, **new, "revision": events})
        found = await self.service.get_session(**new["_id"])
        assert found is not None
        return found

    async def _store_template(self) -> None:
        ids = self.ids()
        session = await self.service.create_session(**ids, state=dict(STATE))
        for _ in range(3):
            await self.service.append_event(session, new_event())
        database = self.client[self.database]
        where = {f"_id.{name}": value for name, value in ids.items()}
        self._template = {
            "session": await database["sessions"].find_one(where),
            "log": await database["events"].find(where).sort("_id", 1).to_list(),
        }

    async def known(self) -> Session:
        """One for all who only read, with three events."""
        if self._known is None:
            self._known = await self.session(events=3)
        return self._known

    async def stored(self, session: Session) -> Session | None:
        return await self.service.get_session(**ids_of(session))


def new_event() -> Event:
    actions = EventActions(state_delta={**STATE, "temp:k": 1})
    return Event(author="x", invocation_id="i", actions=actions)


def ids_of(session: Session) -> dict[str, str]:
    return {
        "app_name": session.app_name,
        "user_id": session.user_id,
        "session_id": session.id,
    }


def of_user(session: Session) -> dict[str, str]:
    return {"app_name": session.app_name, "user_id": session.user_id}


Check = Callable[[], Awaitable[None]]
Prepared = tuple[Coroutine[Any, Any, Any], Check]


class Case(NamedTuple):
    """A call of a method; prepared anew for every point it is cancelled at."""

    what: str
    """One method of a class, or two that belong together."""
    prepare: Callable[[World], Awaitable[Prepared]]
    least: int = 0
    """More points than these there have to be."""

    @property
    def methods(self) -> set[str]:
        """Their names, each with its class."""
        owner, _, names = self.what.partition(".")
        return {f"{owner}.{name}" for name in names.split(" and ")}


async def works() -> None:
    """Whatever was to be checked is checked by the call that comes next."""
