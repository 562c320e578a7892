"""Who is measured: session services, and what the bench needs to know of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from google.adk.events import Event
from google.adk.sessions import Session
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient
from typing_extensions import override

from mongo_session_service import MongoSessionService
from mongo_session_service.codec.documents import (
    encode_append,
    encode_new_session,
    event_document,
    session_document,
)
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.model.records import SessionKey


@dataclass(frozen=True)
class Place:
    """Where a run keeps its data; apt to be sent to another process."""

    uri: str
    run: str
    directory: str
    postgres: str | None = None


class Contestant:
    """A session service; long sessions are put into its storage in bulk."""

    name: ClassVar[str]
    is_ours: ClassVar[bool] = False
    is_reference: ClassVar[bool] = False  # left out of the heaviest quick workloads
    is_shared: ClassVar[bool] = True  # by several processes

    def __init__(self, place: Place) -> None:
        self.place = place
        self.service: Any = None

    async def open(self) -> None:
        """Make the service, and whatever it makes on first use."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the service."""
        if self.service is not None:
            await self.service.close()

    async def drop(self) -> None:
        """Remove what the run has stored; called last, by one process."""

    def forget(self, app: str) -> None:
        """Free the memory that an app's sessions take."""

    async def server_cpu(self) -> float | None:
        """Seconds of CPU that the server has used since it started, if it says so."""
        return None

    async def count_events(self, app: str) -> int:
        """How many events storage holds for an app."""
        raise NotImplementedError

    async def state_of(self, session: Session) -> dict[str, Any]:
        """The state of a session just read, all scopes merged."""
        return session.state

    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        """Put events into a new session."""
        raise NotImplementedError

    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        """Store new sessions."""
        for each in sessions:
            await self.service.create_session(
                app_name=each.app_name,
                user_id=each.user_id,
                session_id=each.id,
                state=each.state,
            )


class OnMongo(Contestant):
    """A contestant with a database of its own on the MongoDB server."""

    @override
    async def open(self) -> None:
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(self.place.uri)
        name = type(self).__name__.lower()
        self.database = self.client[f"adk_bench_{self.place.run}_{name}"]
        self.service = await self.make()

    async def make(self) -> Any:
        """Make the service."""
        raise NotImplementedError

    @override
    async def close(self) -> None:
        await super().close()
        await self.client.close()

    @override
    async def drop(self) -> None:
        await self.client.drop_database(self.database.name)

    @override
    async def server_cpu(self) -> float | None:
        status = await self.client.admin.command("serverStatus")
        used = status.get("extra_info", {})
        parts = used.get("user_time_us"), used.get("system_time_us")
        return None if None in parts else sum(parts) / 1e6


class Ours(OnMongo):
    """This package, given a URI."""

    name = "ours"
    is_ours = True

    @override
    async def make(self) -> Any:
        service = MongoSessionService(self.place.uri, database=self.database.name)
        await service.setup()
        return service

    @override
    async def count_events(self, app: str) -> int:
        return await self.database.events.count_documents({"_id.app_name": app})

    @override
    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        now = time.time()
        await self.database.sessions.insert_many(
            session_document(encode_new_session(key, each.state, now, NO_HOOKS))
            for each in sessions
            if (key := SessionKey(each.app_name, each.user_id, each.id))
        )

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        key = SessionKey(session.app_name, session.user_id, session.id)
        await self.database.events.insert_many(
            event_document(encode_append(key, event, NO_HOOKS), revision)
            for revision, event in enumerate(events, 1)
        )
        changed = {"revision": len(events), "update_time": events[-1].timestamp}
        await self.database.sessions.update_one({"_id": key.id}, {"$set": changed})


class OursOnMotor(Ours):
    """This package, given a Motor client."""

    name = "ours on Motor"
    is_reference = True

    @override
    async def make(self) -> Any:
        self._motor = AsyncIOMotorClient(self.place.uri)
        service = MongoSessionService(client=self._motor, database=self.database.name)
        await service.setup()
        return service

    @override
    async def close(self) -> None:
        await super().close()
        self._motor.close()
