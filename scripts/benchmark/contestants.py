"""Session services that are measured, and what the benchmark needs to know of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from google.adk.events import Event
from google.adk.integrations.mongodb import MongoDbSessionService
from google.adk.sessions import (
    DatabaseSessionService,
    InMemorySessionService,
    Session,
)
from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
from pymongo import AsyncMongoClient
from sqlalchemy import func, select
from typing_extensions import override

from benchmark.figures import Sample, chunks, sampled, time_call
from benchmark.handwritten import (
    AT_ONCE,
    HandWritten,
    append_bare,
    event_document,
    key_of,
)
from mongo_session_service import MongoSessionService

SEEDED_AT_ONCE = 500


@dataclass(frozen=True)
class Servers:
    """Where a run keeps its data."""

    uri: str
    run: str
    """Part of the name of each database of the run."""
    directory: str


@dataclass
class Lane:
    """The events that are appended to one session, one after another."""

    session: Session
    events: Iterator[Event]
    """They are made before the time that is measured."""


class Contestant:
    """A session service; long sessions are put into its storage in bulk."""

    name: ClassVar[str]
    only: ClassVar[tuple[str, ...] | None] = None
    """The workloads that make sense for it; None for all."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.service: Any = None

    async def open(self) -> None:
        """Make the service, and whatever it makes on first use."""
        raise NotImplementedError

    async def close(self) -> None:
        """Remove what was stored, and close the service."""
        await self.service.close()

    async def restart(self) -> None:
        """Make a service that has read nothing yet, if services remember."""

    async def server_cpu(self) -> float | None:
        """Seconds of CPU that the server has used since it started, if it says so."""
        return None

    async def append(self, lanes: Sequence[Lane]) -> Sample:
        """Append what all lanes hold, to all sessions at once."""
        async with sampled(self.server_cpu) as sample:

            async def append_lane(lane: Lane) -> None:
                for event in lane.events:
                    call = self.service.append_event(lane.session, event)
                    sample.calls.append(await time_call(call))

            async with asyncio.TaskGroup() as group:
                for lane in lanes:
                    group.create_task(append_lane(lane))
        return sample

    async def count_events(self, app: str) -> int:
        """How many events storage holds for an app."""
        raise NotImplementedError

    async def state_of(self, session: Session) -> dict[str, Any]:
        """The state of a session just read, all scopes merged."""
        return session.state

    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        """Put events into a new session."""
        raise NotImplementedError

    async def create(self, session: Session) -> None:
        """Store a new session."""
        await self.service.create_session(**key_of(session), state=session.state)

    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        """Store new sessions."""
        for session in sessions:
            await self.create(session)


class MongoContestant(Contestant):
    """A contestant with a database of its own on the MongoDB server."""

    @override
    async def open(self) -> None:
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(self.servers.uri)
        name = self.name.replace(" ", "_").replace("-", "_")
        self.database = self.client[f"adk_bench_{self.servers.run}_{name}"]
        self.service = await self.make()

    async def make(self) -> Any:
        """Make the service."""
        raise NotImplementedError

    @override
    async def close(self) -> None:
        await super().close()
        await self.client.drop_database(self.database.name)
        await self.client.close()

    @override
    async def server_cpu(self) -> float | None:
        status = await self.client.admin.command("serverStatus")
        used = status.get("extra_info", {})
        parts = used.get("user_time_us"), used.get("system_time_us")
        return None if None in parts else sum(parts) / 1e6


class Ours(MongoContestant):
    """This package, given a URI; only its public names are used."""

    name = "ours"

    @override
    async def make(self) -> Any:
        service = MongoSessionService(self.servers.uri, database=self.database.name)
        await service.setup()
        return service

    @override
    async def restart(self) -> None:
        await self.service.close()
        self.service = await self.make()

    @override
    async def count_events(self, app: str) -> int:
        query = {"_id.app_name": app, "event": {"$exists": True}}
        return await self.database.events.count_documents(query)

    @override
    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        await asyncio.gather(*map(self.create, sessions))

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        for some in chunks(events, SEEDED_AT_ONCE):
            append = self.service.append_event
            await asyncio.gather(*(append(session, each) for each in some))


class Before(Ours):
    """This package as another checkout has it; its process imports that one."""

    name = "before"


class AdkMongo(MongoContestant):
    """ADK's MongoDB service."""

    name = "adk mongo"

    @override
    async def make(self) -> Any:
        service = MongoDbSessionService(
            connection_string=self.servers.uri,
            database_name=self.database.name,
            app_state_collection="app_states",
            user_state_collection="user_states",
        )
        await service.list_sessions(app_name="none", user_id="none")
        collections = set(await self.database.list_collection_names())
        for name in {"app_states", "user_states"} - collections:
            await self.database.create_collection(name)
        return service

    @override
    async def count_events(self, app: str) -> int:
        return await self.database.events.count_documents({"app_name": app})

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        key = key_of(session)
        await self.database.events.insert_many(
            {
                "_id": {**key, "event_id": event.id},
                **key,
                "timestamp": event.timestamp,
                "revision": revision,
                "event_data": event.model_dump_json(exclude_none=True),
            }
            for revision, event in enumerate(events, 1)
        )
        changed = {"revision": len(events), "update_time": events[-1].timestamp}
        await self.database.sessions.update_one({"_id": key}, {"$set": changed})


class ByHand(MongoContestant):
    """A driver script: one transaction for each append."""

    name = "hand-written"

    @override
    async def make(self) -> Any:
        service = HandWritten(self.client, self.database.name)
        await service.setup()
        return service

    @override
    async def count_events(self, app: str) -> int:
        query = {"session": {"$gte": f"{app}-", "$lt": f"{app}."}}
        return await self.database.events.count_documents(query)

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        stored = [event_document(session.id, event) for event in events]
        await self.service.events.insert_many(stored)

    @override
    async def state_of(self, session: Session) -> dict[str, Any]:
        return await self.service.merged_state(session)


class ByBareLoop(Ours):
    """The limit: transactions of 32 appends, again and again, and no other work.

    This package makes the sessions, with their indexes, and reads back what was stored.
    """

    name = "bare loop"
    only = ("append, 32 at once", "append, 512 at once")

    @override
    async def append(self, lanes: Sequence[Lane]) -> Sample:
        sessions = [lane.session for lane in lanes]
        query = {"_id.app_name": sessions[0].app_name}
        found = await self.database.sessions.find(query).to_list()
        stored = {each["_id"]["session_id"]: each for each in found}
        async with sampled(self.server_cpu) as sample:
            for events in zip(*(lane.events for lane in lanes), strict=True):
                appends = zip(sessions, events, strict=True)
                for some in chunks(appends, AT_ONCE):
                    took = await time_call(append_bare(self.database, stored, some))
                    sample.calls += [took] * len(some)
        return sample


class Sqlite(Contestant):
    """ADK's SQL service on a file."""

    name = "adk sqlite"

    @override
    async def open(self) -> None:
        file = Path(self.servers.directory) / "adk.sqlite"
        self.service = DatabaseSessionService(f"sqlite+aiosqlite:///{file}")
        await self.service.list_sessions(app_name="none", user_id="none")

    @override
    async def count_events(self, app: str) -> int:
        query = select(func.count()).select_from(StorageEvent)
        async with self.service.database_session_factory() as sql:
            found = await sql.execute(query.where(StorageEvent.app_name == app))
            return int(found.scalar_one())

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        async with self.service.database_session_factory() as sql:
            sql.add_all([StorageEvent.from_event(session, each) for each in events])
            key = (session.app_name, session.user_id, session.id)
            stored = await sql.get(StorageSession, key)
            stored.update_time = StorageEvent.from_event(session, events[-1]).timestamp
            await sql.commit()


class InMemory(Contestant):
    """ADK's service that keeps nothing."""

    name = "adk in-memory"

    @override
    async def open(self) -> None:
        self.service = InMemorySessionService()

    @override
    async def close(self) -> None:
        pass

    @override
    async def count_events(self, app: str) -> int:
        users = self.service.sessions.get(app, {}).values()
        return sum(len(each.events) for user in users for each in user.values())

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        user = self.service.sessions[session.app_name][session.user_id]
        user[session.id].events.extend(events)


CONTESTANTS: dict[str, type[Contestant]] = {
    each.name: each
    for each in (
        *(Ours, Before, AdkMongo, ByHand, ByBareLoop),
        *(Sqlite, InMemory),
    )
}
