"""The target's side of an import: what it holds, and writing what is missing.

What fits goes as one transaction: whole sessions, each with its events and its state.
A session that does not fit is stored events first and its own document last, so that
it does not exist for anyone before it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pymongo import UpdateOne
from pymongo.errors import PyMongoError

from mongo_session_service import queries
from mongo_session_service.database import Connection, Txn
from mongo_session_service.errors import ConflictError
from mongo_session_service.records import SessionKey
from mongo_session_service.translation import is_duplicate_key

from .incoming import Document, Incoming, IncomingState
from .planning import Plan, Standing, plan_state

IMPORTS: Final = "imports"
"""The collection that tells at which revision shared state was imported, so that a
later import knows whether it changed in the target since. Not needed after the last."""


class StatePlan(NamedTuple):
    """State coming in, and what the target has of it."""

    state: IncomingState
    standing: Standing
    revision: int | None
    """The target's; None if it has none."""


class ChangedError(Exception):
    """What was planned for is not there any more; nothing was written."""


class Target:
    """A connection's database, for imports."""

    def __init__(self, connection: Connection) -> None:
        self._at = connection
        sessions = connection.sessions.name.removesuffix("sessions")
        self._imports = connection.database[f"{sessions}{IMPORTS}"]

    async def check(self) -> None:
        """Refuse collections that another service writes.

        Raises:
            ConflictError: they hold ADK's or another layout.
        """
        other = await self._at.sessions.find_one()
        is_own = other is None or (isinstance(other["_id"], dict) and "id" not in other)
        if not is_own:
            message = (
                f"Collection {self._at.sessions.name!r} of database"
                f" {self._at.database.name!r} holds another service's sessions. Import"
                " into another database, or give the collections a prefix."
            )
            raise ConflictError(message)

    async def sessions(self, keys: Iterable[SessionKey]) -> dict[SessionKey, Document]:
        """The session documents there are."""
        ids = [key.id for key in keys]
        found = await self._at.sessions.find({"_id": {"$in": ids}}).to_list(None)
        return {SessionKey(**each["_id"]): each for each in found}

    async def events(
        self, parts: Iterable[Incoming]
    ) -> dict[SessionKey, list[Document]]:
        """The events under these parts' revisions, and one more, in order."""
        found: dict[SessionKey, list[Document]] = {}
        ranges = [
            {
                "_id": {
                    "$gt": part.key.event_id(part.offset),
                    "$lte": part.key.event_id(part.revision + 1),
                }
            }
            for part in parts
        ]
        if ranges:
            cursor = self._at.events.find({"$or": ranges}).sort("_id")
            async for each in cursor:
                id_ = {**each["_id"]}
                del id_["revision"]
                found.setdefault(SessionKey(**id_), []).append(each)
        return found

    async def states(self, wanted: Iterable[IncomingState]) -> list[StatePlan]:
        """What each state that is wanted needs."""
        states = list(wanted)
        stored: dict[str, Document] = {}
        for collection, ids in (
            (self._at.app_states, [each.id for each in states]),
            (self._at.user_states, [each.id for each in states]),
            (self._imports, [{"of": each.id} for each in states]),
        ):
            cursor = collection.find({"_id": {"$in": ids}})
            stored |= {repr(each["_id"]): each for each in await cursor.to_list(None)}
        plans = []
        for each in states:
            there = stored.get(repr(each.id))
            standing = plan_state(each.state, there, stored.get(repr({"of": each.id})))
            plans.append(
                StatePlan(each, standing, there["revision"] if there else None)
            )
        return plans

    async def write(
        self,
        sessions: list[tuple[Incoming, Plan, Document | None]],
        states: list[StatePlan],
    ) -> None:
        """Store whole sessions and shared state as one transaction.

        Raises:
            ChangedError: the target is not as planned for; nothing was written.
        """

        async def work(txn: Txn) -> None:
            await self._write_states(states, txn)
            created: list[Document] = []
            events: list[Document] = []
            for incoming, plan, stored in sessions:
                if plan.standing is Standing.BEHIND and stored is not None:
                    await self._catch_up(incoming, stored, txn)
                else:
                    await self._clear(incoming, plan, stored, txn)
                    created.append(incoming.session_document())
                events += incoming.documents(after=_kept(incoming, plan))
            if created:
                await self._at.sessions.insert_many(created, session=txn)
            if events:
                await self._at.events.insert_many(events, session=txn)

        await self._run(work)

    async def _run(self, work: Any) -> None:
        try:
            await self._at.transaction(work)
        except PyMongoError as error:
            if is_duplicate_key(error):
                raise ChangedError from None
            raise

    async def _clear(
        self, incoming: Incoming, plan: Plan, stored: Document | None, txn: Txn
    ) -> None:
        """Make room: for what replaces a session, or after an import was broken off."""
        if stored is not None:
            gone = await self._at.sessions.delete_one(_as_read(stored), session=txn)
            if gone.deleted_count == 0:
                raise ChangedError
        if stored is not None or plan.matched < plan.found:
            where = queries.all_events(incoming.key)
            where["_id"]["$gt"] = incoming.key.event_id(_kept(incoming, plan))
            await self._at.events.delete_many(where, session=txn)

    async def _catch_up(self, incoming: Incoming, stored: Document, txn: Txn) -> None:
        change = {
            "state": incoming.state,
            "revision": incoming.revision,
            "update_time": incoming.update_time,
        }
        updated = await self._at.sessions.update_one(
            _as_read(stored), {"$set": change}, session=txn
        )
        if updated.matched_count == 0:
            raise ChangedError

    async def _write_states(self, states: list[StatePlan], txn: Txn) -> None:
        writes: dict[str, list[UpdateOne]] = {}
        for state, _, before in states:
            is_app = state.shared.user_id is None
            collection = self._at.app_states if is_app else self._at.user_states
            change = {"state": state.state, "revision": (before or 0) + 1}
            # Another revision than expected makes this insert, which then fails.
            write = UpdateOne(
                {"_id": state.id, "revision": before}, {"$set": change}, upsert=True
            )
            note = UpdateOne(
                {"_id": {"of": state.id}},
                {"$set": {"revision": change["revision"]}},
                upsert=True,
            )
            writes.setdefault(collection.name, []).append(write)
            writes.setdefault(self._imports.name, []).append(note)
        for name, updates in writes.items():
            await self._at.database[name].bulk_write(updates, session=txn)

    async def store_part(self, part: Incoming, after: int) -> None:
        """Store events of a session that does not exist yet, for nobody to see.

        Raises:
            ChangedError: it exists by now.
        """
        leftover = queries.all_events(part.key)
        leftover["_id"]["$gt"] = part.key.event_id(after)

        async def work(txn: Txn) -> None:
            if await self._at.sessions.find_one({"_id": part.key.id}, session=txn):
                raise ChangedError
            await self._at.events.delete_many(leftover, session=txn)
            events = list(part.documents(after=after))
            await self._at.events.insert_many(events, session=txn)

        await self._run(work)

    async def append_part(self, part: Incoming, stored: Document, after: int) -> None:
        """Store events of a session that exists, which is a longer one at once.

        Raises:
            ChangedError: it is another by now.
        """
        change = {
            "revision": part.revision,
            "update_time": part.appends[-1].timestamp,
        }

        async def work(txn: Txn) -> None:
            updated = await self._at.sessions.update_one(
                _as_read(stored), {"$set": change}, session=txn
            )
            if updated.matched_count == 0:
                raise ChangedError
            events = list(part.documents(after=after))
            await self._at.events.insert_many(events, session=txn)

        await self._run(work)

    async def forget(self, stored: Document) -> None:
        """Remove a session's document; its events are as of a broken-off import.

        Raises:
            ChangedError: it is another by now.
        """
        gone = await self._at.sessions.delete_one(_as_read(stored))
        if gone.deleted_count == 0:
            raise ChangedError


def _as_read(session: Document) -> Document:
    return {name: session[name] for name in ("_id", "revision", "create_time")}


def _kept(incoming: Incoming, plan: Plan) -> int:
    """The revision up to which stored events stay."""
    return 0 if plan.standing is Standing.CONFLICT else incoming.offset + plan.matched
