"""The target's side of an import: what it holds, and writing what is missing.

New sessions are stored events first and their own documents last, so that none exists
for anyone before it is whole. That takes no transaction: one of an import that was
killed would keep the next from the same documents for a minute. Only what exists
already is changed in transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

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
    """What was planned for is not there any more."""


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
        """Store sessions, or the last parts of them, and shared state.

        Raises:
            ChangedError: the target is not as planned for; what was written is found
                by the next attempt.
        """
        with _changes_told():
            await self._write_states(states)
            new: list[tuple[Incoming, int]] = []
            for incoming, plan, stored in sessions:
                after = incoming.offset + plan.matched
                if stored is None:
                    if plan.matched < plan.found:
                        await self._clear(incoming.key, after)
                    new.append((incoming, after))
                elif plan.standing is Standing.BEHIND:
                    await self._catch_up(incoming, stored, after)
                else:
                    await self._replace(incoming, stored)
            await self._create(new)

    async def _create(self, new: list[tuple[Incoming, int]]) -> None:
        events = [each for session, after in new for each in session.documents(after)]
        created = [session.session_document() for session, _ in new]
        try:
            if events:
                await self._at.events.insert_many(events, ordered=False)
            if created:
                await self._at.sessions.insert_many(created, ordered=False)
        except PyMongoError:
            for session, _ in new:
                await self._withdraw(session.key)
            raise

    async def _withdraw(self, key: SessionKey) -> None:
        """Take events back from a session that someone else has just created."""

        async def work(txn: Txn) -> None:
            other = await self._at.sessions.find_one({"_id": key.id}, session=txn)
            if other is not None:
                where = _events_after(key, other["revision"])
                await self._at.events.delete_many(where, session=txn)

        await self._at.transaction(work)

    async def _clear(self, key: SessionKey, after: int) -> None:
        """Remove what a broken-off import left of a session that does not exist."""
        where = _events_after(key, after)

        async def work(txn: Txn) -> None:
            if await self._at.sessions.find_one({"_id": key.id}, session=txn):
                raise ChangedError
            await self._at.events.delete_many(where, session=txn)

        if await self._at.events.find_one(where, {"_id": 1}):
            await self._at.transaction(work)

    async def _catch_up(self, incoming: Incoming, stored: Document, after: int) -> None:
        change = {
            "state": incoming.state,
            "revision": incoming.revision,
            "update_time": incoming.update_time,
        }
        await self._append(incoming, stored, after, change)

    async def _replace(self, incoming: Incoming, stored: Document) -> None:
        async def work(txn: Txn) -> None:
            where = queries.all_events(incoming.key)
            await self._at.events.delete_many(where, session=txn)
            document = incoming.session_document()
            replaced = await self._at.sessions.replace_one(
                _as_read(stored), document, session=txn
            )
            if replaced.matched_count == 0:
                raise ChangedError
            if incoming.appends:
                await self._at.events.insert_many(incoming.documents(), session=txn)

        await self._at.transaction(work)

    async def _append(
        self, part: Incoming, stored: Document, after: int, change: Document
    ) -> None:
        async def work(txn: Txn) -> None:
            updated = await self._at.sessions.update_one(
                _as_read(stored), {"$set": change}, session=txn
            )
            if updated.matched_count == 0:
                raise ChangedError
            if events := list(part.documents(after)):
                await self._at.events.insert_many(events, session=txn)

        await self._at.transaction(work)

    async def _write_states(self, states: list[StatePlan]) -> None:
        writes: dict[str, list[UpdateOne]] = {}
        notes = []
        for state, _, before in states:
            is_app = state.shared.user_id is None
            collection = self._at.app_states if is_app else self._at.user_states
            change = {"state": state.state, "revision": (before or 0) + 1}
            # Another revision than expected makes this insert, which then fails.
            where = {"_id": state.id, "revision": before}
            write = UpdateOne(where, {"$set": change}, upsert=True)
            writes.setdefault(collection.name, []).append(write)
            note = {"$set": {"revision": change["revision"]}}
            notes.append(UpdateOne({"_id": {"of": state.id}}, note, upsert=True))
        for name, updates in writes.items():
            await self._at.database[name].bulk_write(updates, ordered=False)
        # Last: without its note, state counts as changed in the target.
        if notes:
            await self._imports.bulk_write(notes, ordered=False)

    async def store_part(self, part: Incoming, after: int, *, is_clear: bool) -> None:
        """Store events of a session that does not exist yet, for nobody to see.

        Raises:
            ChangedError: the target is not as planned for.
        """
        with _changes_told():
            if not is_clear:
                await self._clear(part.key, after)
            events = list(part.documents(after))
            try:
                await self._at.events.insert_many(events, ordered=False)
            except PyMongoError:
                await self._withdraw(part.key)
                raise

    async def append_part(self, part: Incoming, stored: Document, after: int) -> None:
        """Store events of a session that exists, which is a longer one at once.

        Raises:
            ChangedError: it is another by now.
        """
        change = {"revision": part.revision, "update_time": part.appends[-1].timestamp}
        with _changes_told():
            await self._append(part, stored, after, change)

    async def forget(self, stored: Document) -> None:
        """Remove a session's document; its events are as of a broken-off import.

        Raises:
            ChangedError: it is another by now.
        """
        gone = await self._at.sessions.delete_one(_as_read(stored))
        if gone.deleted_count == 0:
            raise ChangedError


@contextmanager
def _changes_told() -> Iterator[None]:
    """What is there against the plan was put there since."""
    try:
        yield
    except PyMongoError as error:
        if is_duplicate_key(error):
            raise ChangedError from None
        raise


def _events_after(key: SessionKey, revision: int) -> Document:
    where = queries.all_events(key)
    where["_id"]["$gt"] = key.event_id(revision)
    return where


def _as_read(session: Document) -> Document:
    return {name: session[name] for name in ("_id", "revision", "create_time")}
