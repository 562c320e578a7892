"""Many sessions, or long ones, stored in bulk; and the calls that work among them."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from google.adk.events import Event
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from typing_extensions import override

from benchmark.contestants import Contestant, Ours, Place
from benchmark.measure import Turn, time_calls, time_lanes
from benchmark.workload import Check, Workload, make_event
from mongo_session_service import MongoSessionService
from mongo_session_service.codec.documents import (
    encode_append,
    encode_new_session,
    event_document,
    session_document,
)
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.model.records import SessionKey

PER_USER: Final = 50
RECENT: Final = 20
_APP: Final = "app"
_NEW_USER: Final = "user-new"
_STATE: Final = {"topic": "weather", "turn": 0}
_BATCH: Final = 2500  # documents
_LANES: Final = 2  # while one is encoded, the server stores the other
_PER_SECOND: Final = 300  # appends, about


class Stored:
    """So many sessions with so many events each, in a database of their own.

    Their documents are as the package writes them. Ids are random, as UUIDs are, so
    those of one user lie anywhere in the collections.
    """

    def __init__(self, place: Place, sessions: int, events: int) -> None:
        run = f"{place.run}_{sessions}x{events}"
        self.ours = Ours(Place(place.uri, run, place.directory))
        self.sessions = sessions
        self.events = events
        self.appended: list[tuple[SessionKey, str]] = []
        """Whose, and the event's id, in the order of the appends."""
        self.created: set[str] = set()
        self._begin = time.time() - sessions - 1

    async def open(self) -> None:
        """Store all of it."""
        await self.ours.open()
        first = encode_append(self.key(0), make_event(1, {"turn": 1}), NO_HOOKS)
        self._event = event_document(first, 1)["event"]
        per_batch = max(1, _BATCH // self.events)
        starts = iter(range(0, self.sessions, per_batch))

        async def store() -> None:
            for start in starts:
                end = min(start + per_batch, self.sessions)
                await self._store(range(start, end))

        async with asyncio.TaskGroup() as lanes:
            for _ in range(_LANES):
                lanes.create_task(store())
        await self.settle()

    async def _store(self, numbers: range) -> None:
        database = self.ours.database
        await database.sessions.insert_many(
            map(self._session_document, numbers), ordered=False
        )
        documents = (
            self._event_document(number, revision)
            for number in numbers
            for revision in range(1, self.events + 1)
        )
        while batch := list(islice(documents, _BATCH)):
            await database.events.insert_many(batch, ordered=False)

    def _session_document(self, number: int) -> dict[str, Any]:
        new = encode_new_session(
            self.key(number), _STATE, self._begin + number, NO_HOOKS
        )
        document = session_document(new)
        return {
            **document,
            "state": {**_STATE, "turn": 1},
            "revision": self.events,
            "update_time": self.timestamp(number, self.events),
        }

    def _event_document(self, number: int, revision: int) -> dict[str, Any]:
        event = {
            **self._event,
            "invocation_id": f"invocation-{revision // 2}",
            "id": self.event_id(number, revision),
            "timestamp": self.timestamp(number, revision),
        }
        return {"_id": self.key(number).event_id(revision), "event": event}

    def key(self, number: int) -> SessionKey:
        """The name of a session."""
        return SessionKey(_APP, f"user-{number // PER_USER}", _id(number))

    def event_id(self, number: int, revision: int) -> str:
        """The id of an event that was stored in bulk."""
        return _id(f"{number}/{revision}")

    def timestamp(self, number: int, revision: int) -> float:
        """When that was."""
        return self._begin + number + revision / (self.events + 1)

    async def read(
        self,
        number: int,
        config: GetSessionConfig | None = None,
        service: MongoSessionService | None = None,
    ) -> Session:
        """A session, with all of its events or some, by this service or another."""
        session: Session | None = await (service or self.ours.service).get_session(
            **self.key(number).id, config=config
        )
        if session is None:
            raise Check(f"session {number} was not found")
        return session

    async def append(self, session: Session, event: Event) -> None:
        """Append an event."""
        await self.ours.service.append_event(session, event)
        key = SessionKey(session.app_name, session.user_id, session.id)
        self.appended.append((key, event.id))

    async def settle(self) -> None:
        """Wait until the server has written to disk what it holds."""
        await self.ours.client.admin.command("fsync")

    async def size(self) -> int:
        """Bytes of the documents and, as far as they are on disk, of the indexes."""
        stats = await self.ours.database.command("dbStats")
        return int(stats["dataSize"] + stats["indexSize"])

    async def pages_read(self, warm_up: int = 4000, calls: int = 400) -> float:
        """How many pages MongoDB reads from its files for a session, in the mean.

        That is after so many reads that its cache holds all that these need, if it can.
        """
        chance = random.Random(2)  # noqa: S311  the same in each run
        before = 0
        for number in range(warm_up + calls):
            if number == warm_up:
                before = await self._pages()
            await self.read(chance.randrange(self.sessions))
        return (await self._pages() - before) / calls

    async def _pages(self) -> int:
        status = await self.ours.client.admin.command("serverStatus")
        return int(status["wiredTiger"]["cache"]["pages read into cache"])

    async def close(self) -> None:
        """Remove it."""
        await self.ours.drop()
        await self.ours.close()


def logs(events: int) -> int:
    """How many sessions of so many events appends are spread over, and two more.

    So that short ones stay short.
    """
    return 2 + max(1, min(500, 10_000 // events))


def _id(of: object) -> str:
    digest = blake2b(str(of).encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest))


class Among(Workload):
    """A call that concerns one of some stored sessions, each time another."""

    def __init__(self, name: str, stored: Stored, numbers: Sequence[int]) -> None:
        super().__init__(name, "ms")
        self.stored = stored
        self.numbers = numbers
        self._chance = random.Random(1)  # noqa: S311  the same in each run

    def somebody(self) -> int:
        """The number of a session."""
        return self._chance.choice(self.numbers)

    async def call(self) -> None:
        """Do it once, and check the answer as far as that costs next to nothing."""
        raise NotImplementedError

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        return await time_calls(self.call, budget, contestant.server_cpu)


class Read(Among):
    """get_session with all events, or with the last."""

    def __init__(
        self,
        name: str,
        stored: Stored,
        numbers: Sequence[int],
        *,
        recent: int | None = None,
        is_cached: bool = True,
    ) -> None:
        super().__init__(name, stored, numbers)
        self._config = GetSessionConfig(num_recent_events=recent)
        self._count = min(stored.events, recent or stored.events)
        self._is_cached = is_cached
        self._service: MongoSessionService | None = None

    @override
    async def prepare(self, contestant: Contestant) -> None:
        if not self._is_cached:
            ours = self.stored.ours
            self._service = MongoSessionService(
                client=ours.client, database=ours.database.name, read_cache_bytes=0
            )
            await self._service.setup()

    @override
    async def call(self) -> None:
        number, last = self.somebody(), self.stored.events
        found = (await self.stored.read(number, self._config, self._service)).events
        wanted = [
            self.stored.event_id(number, revision)
            for revision in (last - self._count + 1, last)
        ]
        if len(found) != self._count or [found[0].id, found[-1].id] != wanted:
            raise Check(f"{len(found)} events of session {number} were read, or others")


class Append(Among):
    """append_event to a session that was just read, as in a turn of an agent."""

    @override
    async def turn(self, contestant: Contestant, budget: float) -> Turn:
        numbers = [self.somebody() for _ in range(round(budget * _PER_SECOND) + 1)]
        last = GetSessionConfig(num_recent_events=1)
        sessions = {each: await self.stored.read(each, last) for each in {*numbers}}
        calls = [
            partial(
                self.stored.append, sessions[each], make_event(turn, {"turn": turn})
            )
            for turn, each in enumerate(numbers)
        ]
        return await time_lanes([calls], contestant.server_cpu)

    @override
    async def check(self, contestant: Contestant) -> int:
        stored = self.stored
        found = await stored.ours.database.events.count_documents({})
        wanted = stored.sessions * stored.events + len(stored.appended)
        if found != wanted:
            raise Check(f"{found:,} events are stored, not {wanted:,}")
        for key, event_id in stored.appended[-RECENT:]:
            event = await stored.ours.service.get_event(**key.id, event_id=event_id)
            if event is None:
                raise Check(f"an event of {key.session_id} was not stored")
        return 0


class Create(Among):
    """create_session."""

    @override
    async def call(self) -> None:
        stored = self.stored
        stored.created.add(session_id := f"new-{len(stored.created)}")
        await stored.ours.service.create_session(
            app_name=_APP, user_id=_NEW_USER, session_id=session_id, state={**_STATE}
        )

    @override
    async def check(self, contestant: Contestant) -> int:
        listed = await self.stored.ours.service.list_sessions(
            app_name=_APP, user_id=_NEW_USER
        )
        if {each.id for each in listed.sessions} != self.stored.created:
            raise Check(f"{len(listed.sessions)} sessions are stored, not those made")
        return 0


class Page(Among):
    """find_sessions of one user, who has a page of them."""

    @override
    async def call(self) -> None:
        number = self.somebody()
        page = await self.stored.ours.service.find_sessions(
            app_name=_APP, user_id=self.stored.key(number).user_id, limit=PER_USER
        )
        first = number // PER_USER * PER_USER
        last = min(first + PER_USER, self.stored.sessions) - 1
        wanted = [self.stored.key(last).session_id, self.stored.key(first).session_id]
        ends = [page.sessions[0].id, page.sessions[-1].id]
        if len(page.sessions) != last - first + 1 or ends != wanted:
            raise Check(f"{len(page.sessions)} sessions are listed, or others")
