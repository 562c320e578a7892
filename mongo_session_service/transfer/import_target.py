"""Import target: reading what a database holds, and writing what it lacks.

A new session's events are stored first, under a reservation; the session's document
replaces the reservation at the end, so that no reader sees a part of the session.
Removing or pruning sessions removes what an interrupted import has left, too.

New sessions are stored without transactions: a transaction of an import that was killed
would block the same documents for the next import for a minute.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.errors import PyMongoError

from mongo_session_service.codec.documents import INITIAL
from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.model.metadata import ADK_METADATA, DETAILS
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.batch import DocumentUpdate, initial_updates
from mongo_session_service.sessions.deletion import (
    IMPORT,
    Reservations,
    is_session,
    remove_expired,
    remove_some,
    remove_tombstone,
)
from mongo_session_service.sessions.details import ANNOUNCED, announce_details
from mongo_session_service.sessions.history import recorded_initial_state
from mongo_session_service.sessions.queries import fields_update
from mongo_session_service.sessions.rewinds import LogAtRevision
from mongo_session_service.sessions.waiting_log import (
    waiting_after,
    waiting_fields_at,
)
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction
from mongo_session_service.storage.translation import is_duplicate_key
from mongo_session_service.transfer.comparison import (
    ComparisonResult,
    SessionPlan,
    StatePlan,
    compare_session,
    compare_state,
)
from mongo_session_service.transfer.import_batches import EncodedSession, EncodedState
from mongo_session_service.transfer.source_items import session_text

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

IMPORT_LIFETIME: Final = 3600.0
"""Seconds after which a reservation expires, unless an import resumes."""

WARN_AFTER: Final = 3.0
"""Seconds of waiting for another writer after which a warning is logged."""


class ChangedError(Exception):
    """The target has changed since the plan was made."""


class ImportTarget:
    """The database that an import compares with and writes to."""

    def __init__(self, connection: Connection, *, is_read_only: bool) -> None:
        self._connection = connection
        self.hooks = connection.hooks
        self._is_read_only = is_read_only
        self._reservations = Reservations(IMPORT, IMPORT_LIFETIME)
        self._held: set[SessionKey] = set()
        """The places that are reserved, and not taken yet."""
        self._in_clear: set[str] = set()
        """Apps whose events are known to be stored in clear."""

    async def refuse_other_layouts(self) -> None:
        """Refuse collections that another service writes."""
        other = await self._connection.sessions.find_one()
        is_own = other is None or (isinstance(other["_id"], dict) and "id" not in other)
        if not is_own:
            raise ConflictError(
                f"Collection {self._connection.sessions.name!r} of database"
                f" {self._connection.database.name!r} holds another service's sessions."
                " Import into another database, or give the collections a prefix."
            )

    async def plan_sessions(
        self, sessions: Sequence[EncodedSession]
    ) -> list[SessionPlan]:
        """Compare sessions, or parts of them, with those that are stored."""
        found = await self._load_sessions(each.key for each in sessions)
        events = await self._load_events(sessions)
        return [
            compare_session(
                each, found.get(each.key), events.get(each.key, []), self.hooks
            )
            for each in sessions
        ]

    async def _load_sessions(
        self, keys: Iterable[SessionKey]
    ) -> dict[SessionKey, Document]:
        """Load sessions, with initial states, and reservations; remove expired ones."""
        ids = [key.id for key in keys]
        now = self._connection.clock.now()
        found: dict[SessionKey, Document] = {}
        wanted = self._connection.routed({"_id": {"$in": ids}})
        for each in await self._connection.sessions.find(wanted).to_list(None):
            key = SessionKey(**each["_id"])
            expires = each.get("expire_time")
            is_over = isinstance(expires, float) and expires <= now
            if is_over and not self._is_read_only:
                is_over = await remove_expired(self._connection, key)
            if not is_over:
                found[key] = each
        lacking = [
            key.event_id(0)
            for key, each in found.items()
            if is_session(each) and INITIAL not in each
        ]
        if lacking:
            wanted = self._connection.routed({"_id": {"$in": lacking}})
            async for apart in self._connection.events.find(wanted):
                session = found[_key(apart)]
                if INITIAL in apart and isinstance(apart["_id"]["revision"], int):
                    session[INITIAL] = recorded_initial_state(session, apart)
        return found

    async def _load_events(
        self, parts: Sequence[EncodedSession]
    ) -> dict[SessionKey, list[Document]]:
        """Load the events at these parts' revisions, and one more, in order."""
        found: dict[SessionKey, list[Document]] = {}
        ranges = [
            queries.events_until(part.key, part.revision + 1, part.offset)
            for part in parts
        ]
        if ranges:
            wanted = queries.any_of([self._connection.routed(it) for it in ranges])
            async for each in self._connection.events.find(wanted).sort("_id"):
                found.setdefault(_key(each), []).append(each)
        return found

    async def plan_states(self, states: Sequence[EncodedState]) -> list[StatePlan]:
        """Compare shared states with those that are stored."""
        ids = [id_ for each in states for id_ in (each.id, {"of": each.id})]
        stored: dict[str, Document] = {}
        for collection in (
            self._connection.app_states,
            self._connection.user_states,
            self._connection.imports,
        ):
            async for each in collection.find({"_id": {"$in": ids}}):
                stored[repr(each["_id"])] = each
        return [
            compare_state(
                each,
                stored.get(repr(each.id)),
                stored.get(repr({"of": each.id})),
                self.hooks,
            )
            for each in states
        ]

    async def write(self, sessions: list[SessionPlan], states: list[StatePlan]) -> None:
        """Store sessions, or parts of them, and shared state, as planned.

        Raises ``ChangedError`` if the target has changed since: what was written by
        then is found by the next attempt.
        """
        apps = {each.incoming.key.app_name for each in sessions}
        apps |= {each.state.shared.app_name for each in states}
        await self._refuse_sealing_apps(apps)
        try:
            await self._write_states(states)
            entering = []
            for each in sessions:
                if each.found is None or each.comparison is ComparisonResult.NEW:
                    entering.append(each)
                elif each.comparison is ComparisonResult.BEHIND:
                    await self._catch_up(each.incoming, each.found, each.matched)
                else:
                    reservation = await self._reserve_instead(each.found)
                    entering.append(each._replace(found=reservation))
            await self._store_new_sessions(entering)
        except PyMongoError as error:
            if is_duplicate_key(error):  # of a document that the plan did not find
                raise ChangedError from None
            raise

    async def _refuse_sealing_apps(self, apps: set[str]) -> None:
        """Refuse to store in clear what an app seals, as one of its events shows."""
        if self.hooks.before_store is not None:
            return
        for app in apps - self._in_clear:
            wanted = self._connection.routed(queries.of_app(app, None))
            last = await self._connection.events.find_one(wanted, sort=[("_id", -1)])
            if last is not None and "hooked" in last:
                raise TransferError(
                    f"App {app!r} seals its events here, and an import would store"
                    " clear text. Give the service before_store and after_load, or the"
                    " command --before-store and --after-load MODULE:FUNCTION."
                )
        self._in_clear |= apps

    async def _store_new_sessions(self, entering: list[SessionPlan]) -> None:
        """Store new sessions; events that an interrupted import has stored stay."""
        await self._reserve(entering)
        events: list[Document] = []
        for each in entering:
            incoming = each.incoming
            after = incoming.offset + each.matched
            if (
                each.comparison is ComparisonResult.CONFLICT
                or each.matched < each.stored
            ):
                await self._remove_events(incoming.key, after)
            begins = incoming.header.log_begins
            if each.found is not None and incoming.is_first and begins:
                await self._remove_events(incoming.key, 0, begins)
            events += incoming.documents(after)
        if events:
            await self._connection.events.insert_many(events, ordered=False)
        whole = [each for each in entering if each.incoming.is_last]
        await self._store_initial_states(whole)
        await self._store_sessions([each.incoming for each in whole])

    async def _reserve(self, wanted: list[SessionPlan]) -> None:
        """Reserve the places of sessions."""
        writes: list[InsertOne[Document] | UpdateOne] = []
        renewed = 0
        self._held.update(each.incoming.key for each in wanted)
        for each in wanted:
            key = each.incoming.key
            holder = self._check_holder(each.incoming, each.found)
            if holder is None:
                reservation = self._reservations.new_document(self._connection, key.id)
                writes.append(InsertOne(reservation))
            else:
                held = self._reservations.held_filter(key, holder)
                writes.append(
                    UpdateOne(held, self._reservations.renewal_update(self._connection))
                )
                renewed += 1
        if writes:
            done = await self._connection.sessions.bulk_write(writes, ordered=False)
            if done.matched_count != renewed:
                raise ChangedError

    def _check_holder(
        self, incoming: EncodedSession, found: Document | None
    ) -> str | None:
        """Return the import that holds a session's place; None if it is free."""
        holder: str | None = found.get(IMPORT) if found else None
        what = session_text(incoming.key)
        if found is not None and holder is None:
            raise ConflictError(
                f"The target itself is forking or removing {what}. Run the import"
                " again."
            )
        if not incoming.is_first and holder != self._reservations.holder:
            raise ConflictError(
                f"The imported part of {what} was removed meanwhile, or another import"
                " has taken it over. Run the import again."
            )
        return holder

    async def _reserve_instead(self, session: Document) -> Document:
        """Replace a session with a reservation; its events stay for now."""
        reservation = self._reservations.new_document(self._connection, session["_id"])

        async def replace_session(txn: Txn) -> None:
            gone = await self._connection.sessions.delete_one(
                _unchanged_since_read_filter(session), session=txn
            )
            if gone.deleted_count == 0:
                raise ChangedError
            await self._connection.sessions.insert_one(reservation, session=txn)

        await self._transaction(SessionKey(**session["_id"]), replace_session)
        return reservation

    async def _remove_events(
        self, key: SessionKey, after: int, until: int | None = None
    ) -> None:
        """Remove events of a reserved session in steps: after a revision, up to one."""
        log = queries.events_after(key, after, until and until + 1)
        where = self._connection.routed(log)
        most = self._connection.limits.removed_events

        async def remove_step(txn: Txn) -> bool:
            held = await self._connection.sessions.update_one(
                self._reservations.held_filter(key), {"$inc": {"steps": 1}}, session=txn
            )
            if held.matched_count == 0:
                raise ChangedError
            rest = self._connection.events.find(where, {"_id": 1}, session=txn).sort(
                "_id", 1
            )
            ids = [each["_id"] for each in await rest.limit(most).to_list(None)]
            if ids:
                some = {**where, "_id": {"$gte": ids[0], "$lte": ids[-1]}}
                await self._connection.events.delete_many(some, session=txn)
            return len(ids) == most

        while await self._transaction(key, remove_step):
            pass

    async def _store_initial_states(self, whole: list[SessionPlan]) -> None:
        """Store large initial states; remove one that the document found has left."""
        writes: list[UpdateOne | DeleteOne] = []
        for each in whole:
            apart = initial_updates([each.incoming.as_new_session()])
            writes += [UpdateOne(*update, upsert=True) for update in apart]
            if each.found is not None and not apart:
                writes.append(DeleteOne({"_id": each.incoming.key.event_id(0)}))
        if writes:
            await self._connection.events.bulk_write(writes, ordered=False)

    async def _store_sessions(self, whole: list[EncodedSession]) -> None:
        """Replace reservations with their sessions, all of whose events are stored."""
        writes = []
        for each in whole:
            document = each.session_document()
            if each.has_asked:  # its events, which tell what waits, are stored
                log = LogAtRevision(each.key, each.header.log_begins, each.revision)
                document |= await waiting_fields_at(self._connection, log, each.key)
            writes.append(
                ReplaceOne(self._reservations.held_filter(each.key), document)
            )
        if writes:
            done = await self._connection.sessions.bulk_write(writes, ordered=False)
            if done.matched_count != len(writes):
                raise ChangedError
            self._held.difference_update(each.key for each in whole)

    async def release_places(self) -> None:
        """Free the places of sessions that cannot be finished; remove their events."""
        for key in self._held:
            step = await remove_some(
                self._connection, self._reservations.held_filter(key)
            )
            if not step.is_last:
                await remove_tombstone(self._connection, key)

    async def _catch_up(
        self, incoming: EncodedSession, stored: Document, matched: int
    ) -> None:
        """Append the events after the matched ones to a session, in one transaction."""
        matched += incoming.offset
        appends = enumerate(incoming.appends, incoming.offset + 1)
        missing = [each for each in appends if each[0] > matched]
        waiting = await waiting_after(self._connection, stored, missing)
        events = list(incoming.documents(matched, waiting))
        initial: list[DocumentUpdate] | None = None
        if incoming.is_last:
            fields, initial = self._changed_fields(incoming, stored)
        elif events:
            last = incoming.appends[-1].timestamp
            fields = {"revision": incoming.revision, "update_time": last}
        else:
            return
        fields |= waiting.get(max(waiting, default=0), {})

        async def append_missing(txn: Txn) -> None:
            # Details may be others by now: to set them makes no new revision.
            before = await self._connection.sessions.find_one_and_update(
                _unchanged_since_read_filter(stored),
                fields_update(fields),
                dict.fromkeys(ANNOUNCED, 1),
                session=txn,
            )
            if before is None:
                raise ChangedError
            if initial is not None:
                await self._connection.events.delete_one(
                    {"_id": incoming.key.event_id(0)}, session=txn
                )
            for each in initial or ():
                await self._connection.events.update_one(
                    *each, upsert=True, session=txn
                )
            if events:
                await self._connection.events.insert_many(events, session=txn)
            now = {k: it for k, it in {**before, **fields}.items() if it is not None}
            if txn and any(now.get(name) != before.get(name) for name in DETAILS):
                await announce_details(self._connection, now, txn)

        await self._transaction(incoming.key, append_missing)

    def _changed_fields(
        self, incoming: EncodedSession, stored: Document
    ) -> tuple[Document, list[DocumentUpdate] | None]:
        """Return the fields that an existing session gets, None for those it loses.

        And the updates that store a large initial state; None to leave it as it is.
        """
        told = {*DETAILS} if incoming.details else set()
        if incoming.details is None and self.hooks.is_missing:
            states = (incoming.state, stored["state"])
            here, there = (each.get(ADK_METADATA) for each in states)
            told |= {"title"} if here != there else set()
        document = incoming.session_document()
        kept = document.keys() - ({"_id", "create_time", *DETAILS} - told)
        fields = dict.fromkeys(told) | {name: document[name] for name in kept}
        # What is known is taken if it differs; what is inferred was better known when
        # there was less of a log.
        if incoming.initial in (None, stored.get(INITIAL)):
            fields.pop(INITIAL, None)
            return fields, None
        began = replace(incoming.as_new_session(), create_time=stored["create_time"])
        if initial := initial_updates([began]):
            fields[INITIAL] = None
        return fields, initial

    async def _transaction(
        self, key: SessionKey, work: Callable[[Txn], Awaitable[Result]]
    ) -> Result:
        """Run a transaction; log a warning if it has to wait."""
        started = time.monotonic()
        is_logged = False

        async def logged(txn: Txn) -> Result:
            nonlocal is_logged
            if not is_logged and time.monotonic() - started > WARN_AFTER:
                is_logged = True
                logger.warning(
                    "Waiting for another writer of %s. If that was an import that was"
                    " killed, MongoDB ends its transaction within a minute.",
                    session_text(key),
                )
            return await work(txn)

        return await uninterrupted(run_transaction(self._connection, logged))

    async def _write_states(self, states: list[StatePlan]) -> None:
        writes: dict[str, list[UpdateOne]] = defaultdict(list)
        notes = []
        for each in states:
            owner, before = each.state, each.revision
            revision = before
            if not each.lacks_note:
                # That of the source, if it counts, so that verification finds no other.
                revision = max((before or 0) + 1, owner.shared.revision or 0)
            note = {"$set": {"revision": revision, "digest": owner.digest}}
            notes.append(UpdateOne({"_id": {"of": owner.id}}, note, upsert=True))
            if each.lacks_note:
                continue
            is_app = owner.shared.user_id is None
            collection = (
                self._connection.app_states if is_app else self._connection.user_states
            )
            change = {"state": owner.state, "revision": revision}
            # Another revision than expected makes this insert, which then fails.
            where = {"_id": owner.id, "revision": before}
            write = UpdateOne(where, {"$set": change}, upsert=True)
            writes[collection.name].append(write)
        for name, updates in writes.items():
            await self._connection.database[name].bulk_write(updates, ordered=False)
        # Last: without its note, state counts as changed in the target.
        if notes:
            await self._connection.imports.bulk_write(notes, ordered=False)


def _key(event: Document) -> SessionKey:
    """Return the key of an event's session."""
    return SessionKey(*(event["_id"][name] for name in SessionKey._fields))


def _unchanged_since_read_filter(session: Document) -> Document:
    """Return the filter for a session that has not changed since it was read."""
    return {name: session[name] for name in ("_id", "revision", "create_time")}
