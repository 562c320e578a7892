"""Code written by hand against the driver: a service, and the limit of appends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from google.adk.events import Event
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import (
    GetSessionConfig,
    ListSessionsResponse,
)
from pymongo import AsyncMongoClient, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import CollectionInvalid

AT_ONCE = 32
"""Appends in one transaction of the limit."""


class HandWritten:
    """The methods of a session service, without its promises.

    Each append is a transaction of its own. It checks nothing, merges no scopes on
    reading and knows one event loop.
    """

    def __init__(self, client: AsyncMongoClient[Any], database: str) -> None:
        self._client = client
        at = client.get_database(database, write_concern=WriteConcern("majority"))
        self.sessions, self.events = at.sessions, at.events
        self.apps, self.users = at.apps, at.users

    async def setup(self) -> None:
        """Create what a transaction should not have to."""
        await self.sessions.create_index([("app", 1), ("user", 1)])
        await self.events.create_index([("session", 1), ("at", 1)])
        for shared in (self.apps, self.users):
            with suppress(CollectionInvalid):  # another process was faster
                await shared.database.create_collection(shared.name)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any], session_id: str
    ) -> Session:
        """Insert a session."""
        session = Session(
            app_name=app_name, user_id=user_id, id=session_id, state=state
        )
        document = {
            "_id": session_id,
            "app": app_name,
            "user": user_id,
            "state": state,
            "revision": 0,
            "update_time": session.last_update_time,
        }
        await self.sessions.insert_one(document)
        return session

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and its delta as one transaction."""
        deltas: dict[str, dict[str, Any]] = {"app": {}, "user": {}, "": {}}
        for key, value in event.actions.state_delta.items():
            scope, colon, name = key.partition(":")
            deltas[scope if colon else ""][f"state.{name if colon else key}"] = value
        stored = event_document(session.id, event)
        change = {
            "$set": {**deltas[""], "update_time": event.timestamp},
            "$inc": {"revision": 1},
        }
        user = f"{session.app_name}/{session.user_id}"

        async def write(txn: Any) -> None:
            await self.sessions.update_one({"_id": session.id}, change, session=txn)
            await self.events.insert_one(stored, session=txn)
            for where, id_, delta in (
                (self.users, user, deltas["user"]),
                (self.apps, session.app_name, deltas["app"]),
            ):
                if delta:
                    await where.update_one(
                        {"_id": id_}, {"$set": delta}, upsert=True, session=txn
                    )

        async with self._client.start_session() as txn:
            await txn.with_transaction(write)
        session.events.append(event)
        session.state.update(event.actions.state_delta)
        return event

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session:
        """Read a session and its events at the same time."""
        recent = config.num_recent_events if config else None
        finding = self.sessions.find_one({"_id": session_id})
        if recent == 0:
            session, events = await finding, []
        else:
            cursor = self.events.find({"session": session_id}).sort("at", -1)
            latest = cursor.limit(recent or 0).to_list()
            session, events = await asyncio.gather(finding, latest)
        return Session(
            app_name=app_name,
            user_id=user_id,
            id=session_id,
            state=session["state"],
            events=[Event.model_validate(each["event"]) for each in reversed(events)],
        )

    async def list_sessions(
        self, *, app_name: str, user_id: str
    ) -> ListSessionsResponse:
        """Read all sessions of a user."""
        found = await self.sessions.find({"app": app_name, "user": user_id}).to_list()
        return ListSessionsResponse(
            sessions=[
                Session(
                    app_name=app_name,
                    user_id=user_id,
                    id=each["_id"],
                    state=each["state"],
                    last_update_time=each["update_time"],
                )
                for each in found
            ]
        )

    async def merged_state(self, session: Session) -> dict[str, Any]:
        """The state of a session, with that of its app and its user."""
        state = dict(session.state)
        user = f"{session.app_name}/{session.user_id}"
        for prefix, collection, id_ in (
            ("app:", self.apps, session.app_name),
            ("user:", self.users, user),
        ):
            shared = await collection.find_one({"_id": id_}) or {"state": {}}
            state |= {prefix + key: each for key, each in shared["state"].items()}
        return state

    async def close(self) -> None:
        """Do nothing: the client is the caller's."""


def event_document(session_id: str, event: Event) -> dict[str, Any]:
    """An event as it is stored."""
    return {
        "_id": {"session": session_id, "event": event.id},
        "session": session_id,
        "at": event.timestamp,
        "event": event.model_dump(mode="json", exclude_none=True),
    }


def key_of(session: Session) -> dict[str, str]:
    """The arguments by which a session is read."""
    return {
        "app_name": session.app_name,
        "user_id": session.user_id,
        "session_id": session.id,
    }


async def append_bare(
    database: AsyncDatabase[Any],
    stored: dict[str, dict[str, Any]],
    appends: Sequence[tuple[Session, Event]],
) -> None:
    """Append to different sessions as one transaction, with nothing around: the limit.

    `stored` has this package's documents of the sessions, by id; those of the appends,
    and their filter, are this package's too. The only work for an append is one
    `model_dump` of its event.
    """
    now, updates, documents = time.time(), [], []
    for session, event in appends:
        before = stored[session.id]
        revision = before["revision"]
        before["revision"] += 1
        wanted = {
            "_id": before["_id"],
            "expire_time": {"$not": {"$lte": now}},
            "revision": revision,
            "create_time": before["create_time"],
            "ttl": None,
        }
        changes = {f"state.{k}": v for k, v in event.actions.state_delta.items()}
        changes |= {"revision": revision + 1, "update_time": event.timestamp}
        updates.append({"q": wanted, "u": {"$set": changes}})
        dumped = event.model_dump(mode="json", exclude_none=True)
        documents.append(
            {"_id": {**before["_id"], "revision": revision + 1}, "event": dumped}
        )
    async with (
        database.client.start_session() as txn,
        await txn.start_transaction(write_concern=WriteConcern("majority")),
    ):
        run = database.command
        await run({"update": "sessions", "updates": updates}, session=txn)
        await run({"insert": "events", "documents": documents}, session=txn)
