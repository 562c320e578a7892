"""Whom this package is measured beside."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.adk.integrations.mongodb import MongoDbSessionService
from google.adk.sessions import (
    DatabaseSessionService,
    InMemorySessionService,
    Session,
)
from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
from pymongo import AsyncMongoClient
from sqlalchemy import func, select, text
from typing_extensions import override

from benchmark import handwritten
from benchmark.contestants import Contestant, OnMongo, Ours, OursOnMotor


class AdkMongo(OnMongo):
    """ADK's MongoDB service: the rival."""

    name = "adk mongo"

    @override
    async def make(self) -> Any:
        service = MongoDbSessionService(
            connection_string=self.place.uri,
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
    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        now = time.time()
        await self.database.sessions.insert_many(
            {
                "_id": {
                    "app_name": each.app_name,
                    "user_id": each.user_id,
                    "session_id": each.id,
                },
                "id": each.id,
                "app_name": each.app_name,
                "user_id": each.user_id,
                "state": json.dumps(each.state),
                "create_time": now,
                "update_time": now,
                "revision": 0,
            }
            for each in sessions
        )

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        key = {
            "app_name": session.app_name,
            "user_id": session.user_id,
            "session_id": session.id,
        }
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


class Sqlite(Contestant):
    """ADK's SQL service on a file."""

    name = "adk sqlite"
    is_reference = True

    @override
    async def open(self) -> None:
        file = Path(self.place.directory) / "adk.sqlite"
        await self._open(f"sqlite+aiosqlite:///{file}")

    async def _open(self, url: str, **options: Any) -> None:
        self.service = DatabaseSessionService(url, **options)
        await self.service.list_sessions(app_name="none", user_id="none")

    @override
    async def count_events(self, app: str) -> int:
        query = select(func.count()).select_from(StorageEvent)
        async with self.service.database_session_factory() as sql:
            found = await sql.execute(query.where(StorageEvent.app_name == app))
            return found.scalar_one()

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        async with self.service.database_session_factory() as sql:
            sql.add_all([StorageEvent.from_event(session, each) for each in events])
            key = (session.app_name, session.user_id, session.id)
            stored = await sql.get(StorageSession, key)
            stored.update_time = StorageEvent.from_event(session, events[-1]).timestamp
            await sql.commit()

    @override
    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        # The service itself makes the rows of the app and of each user.
        users = {each.user_id: each for each in sessions}
        firsts = [users[user] for user in users]
        for each in firsts:
            await self.service.create_session(
                app_name=each.app_name,
                user_id=each.user_id,
                session_id=each.id,
                state=each.state,
            )
        made = {each.id for each in firsts}
        async with self.service.database_session_factory() as sql:
            for each in sessions:
                if each.id in made:
                    continue
                key = {"app_name": each.app_name, "user_id": each.user_id}
                sql.add(StorageSession(**key, id=each.id, state=each.state))
            await sql.commit()


class Postgres(Sqlite):
    """ADK's SQL service on PostgreSQL, in a schema of its own."""

    name = "adk postgres"

    @override
    async def open(self) -> None:
        url = str(self.place.postgres)
        scheme, _, rest = url.partition("://")
        if scheme in {"postgres", "postgresql"}:
            url = f"postgresql+asyncpg://{rest}"
        self._schema = f"adk_bench_{self.place.run}"
        admin = DatabaseSessionService(url)
        await self._run(admin, f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        await admin.close()
        settings = {"server_settings": {"search_path": self._schema}}
        await self._open(url, connect_args=settings)

    @override
    async def drop(self) -> None:
        await self._run(self.service, f"DROP SCHEMA {self._schema} CASCADE")

    async def _run(self, service: DatabaseSessionService, statement: str) -> None:
        async with service.database_session_factory() as sql:
            await sql.execute(text(statement))
            await sql.commit()


class InMemory(Contestant):
    """ADK's service that keeps nothing."""

    name = "adk in-memory"
    is_reference = True
    is_shared = False

    @override
    async def open(self) -> None:
        self.service = InMemorySessionService()

    @override
    async def close(self) -> None:
        pass

    @override
    def forget(self, app: str) -> None:
        self.service.sessions.pop(app, None)

    @override
    async def count_events(self, app: str) -> int:
        users = self.service.sessions.get(app, {}).values()
        return sum(len(each.events) for user in users for each in user.values())

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        user = self.service.sessions[session.app_name][session.user_id]
        user[session.id].events.extend(events)


class ByHand(OnMongo):
    """A driver script: the limit."""

    name = "hand-written"

    @override
    async def make(self) -> Any:
        service = handwritten.HandWritten(
            AsyncMongoClient(self.place.uri), self.database.name
        )
        await service.setup()
        return service

    @override
    async def count_events(self, app: str) -> int:
        query = {"session": {"$gte": f"{app}-", "$lt": f"{app}."}}
        return await self.database.events.count_documents(query)

    @override
    async def seed_events(self, session: Session, events: Sequence[Event]) -> None:
        stored = [handwritten.event_document(session.id, event) for event in events]
        await self.service.events.insert_many(stored)

    @override
    async def state_of(self, session: Session) -> dict[str, Any]:
        state = dict(session.state)
        user = f"{session.app_name}/{session.user_id}"
        for prefix, collection, id_ in (
            ("app:", self.service.apps, session.app_name),
            ("user:", self.service.users, user),
        ):
            shared = await collection.find_one({"_id": id_}) or {"state": {}}
            state |= {prefix + key: each for key, each in shared["state"].items()}
        return state

    @override
    async def seed_sessions(self, sessions: Sequence[Session]) -> None:
        await self.service.sessions.insert_many(
            handwritten.session_document(each) for each in sessions
        )


CONTESTANTS: dict[str, type[Contestant]] = {
    each.name: each
    for each in (Ours, OursOnMotor, AdkMongo, ByHand, Sqlite, InMemory, Postgres)
}
