"""Deletion: removing sessions in steps of bounded size, and reserving their ids.

One transaction cannot delete 200,000 events. So a transaction replaces a long session
with a *tombstone*, further ones remove its events, and the last one removes the
tombstone: a document with the session's ``_id``, but without revision and state. No
read returns it, and no session can be created beside it. A removal that is interrupted
is resumed by the next delete of the session, by the sweep, by pruning, or by creating a
session with its id.

Each step updates the tombstone in the transaction that removes the events: a step that
comes late finds no tombstone, and cannot remove events of a new session with the same
id.

A *reservation* holds the id of a session that a fork or an import is storing. It is
such a document too, but names its holder, who renews its ``expire_time``. The session's
own document replaces it at the end, so that no reader sees a part of the session.
Removing it makes it a tombstone first: its holder cannot store the session any more.

An *erasure* removes everything of an app, or of a user, whatever has stored it.
*Pruning* removes sessions that have expired, or are old or idle. An idle session has
had no sign of life for some time. Its ``update_time`` alone does not show that: it is
that of its last event, by the caller's clock, and an event may be dated back. So its
creation, all its events and a turn that somebody has count as well. Between that look
and the removal, an append may come. So a session is removed only as it was seen: at the
same revision.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, chain
from typing import Final, Literal, NamedTuple

from google.adk.errors.already_exists_error import AlreadyExistsError

from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.record import (
    STATES,
    SessionRecord,
    key_of,
    removal_announcement,
)
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model import metadata
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import Erased
from mongo_session_service.model.validation import check_id
from mongo_session_service.sessions import branches, queries
from mongo_session_service.sessions.details import announced
from mongo_session_service.sessions.search import PagePlace, Search, list_apps
from mongo_session_service.storage.failures import reporting_partial_removal
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    Delete,
    DuplicateError,
    Insert,
    Query,
    RefusedError,
    Statement,
    Update,
)
from mongo_session_service.storage.transactions import Transaction

FORK: Final = "held_by"
"""The field of a reservation that names the fork that holds it."""

IMPORT: Final = "claimed_by"
"""The field of a reservation that names the import that holds it."""

TOMBSTONE_TIME: Final = 0.0
"""The ``expire_time`` of a tombstone; a reservation that is held has a later one."""

SESSIONS_AT_ONCE: Final = 50
"""Short sessions removed in one transaction."""

MAKE_TOMBSTONE: Final = {"$set": {"expire_time": TOMBSTONE_TIME}, "$inc": {"steps": 1}}
"""The update that makes a reservation a tombstone, and counts a step of its removal.

It changes the document each time, so that concurrent transactions conflict.
"""

_FORK_PAUSE: Final = 0.1
"""Seconds between two looks whether a fork is still being made."""

_ERASING_PASSES: Final = 10
"""How often an erasure looks for sessions that are created meanwhile."""

PLACE_ATTEMPTS: Final = 10
"""How often an id that was found free may turn out to be taken."""


@dataclass(frozen=True, slots=True)
class Reservations:
    holder_field: Literal["held_by", "claimed_by"]
    lifetime: float
    """Seconds until a reservation expires, unless it is renewed."""
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    def new_fields(self, storage: Storage) -> Document:
        """The fields of a reservation that is made, renewed or taken over now."""
        expire_time = storage.clock.now() + self.lifetime
        return {"expire_time": expire_time, "steps": 0, self.holder_field: self.holder}

    def held_filter(self, key: SessionKey, holder: str | None = None) -> Document:
        """The filter for a session's reservation, as long as its holder has it.

        The holder is another import's, if it is to be taken over.
        """
        own = {"_id": key.id, self.holder_field: holder or self.holder}
        return {**own, "expire_time": {"$gt": TOMBSTONE_TIME}}


class Removal(NamedTuple):
    sessions: int
    events: int
    is_last: bool = False
    """Whether no session is left that matches."""


def deletable_filter(storage: Storage) -> Document:
    """The filter for what a delete may remove.

    That is all but a fork that has not expired: the server may be copying events.
    """
    return {
        "$or": [
            {FORK: {"$exists": False}},
            {"turn.holder": {"$exists": True}},  # all are copied for a branch
            queries.expired_on_server_filter(storage),
        ]
    }


def _tombstone(id_: Document) -> Document:
    return {"_id": id_, "expire_time": TOMBSTONE_TIME, "steps": 0}


def _placeholder_filter(id_: Document) -> Document:
    return {"_id": id_, "revision": {"$exists": False}}


async def remove_session(storage: Storage, key: SessionKey) -> None:
    """Remove a session and its events; do nothing if it is not stored.

    No reader sees it after the first step. If this is cancelled, the next removal of
    the session, or pruning, resumes it.
    """
    # Once: by now there may be a new session with the same id.
    async for _ in remove_some(storage, {"_id": key.id, **deletable_filter(storage)}):
        pass


async def remove_tombstone(storage: Storage, id_: Document) -> int:
    """Remove a session's tombstone, if there is one; return how many events with it."""
    tombstone = {"_id": id_, **queries.expired_filter(TOMBSTONE_TIME)}
    steps = removals(storage, tombstone)
    return sum([each.events async for each in steps])


async def remove_reserved(storage: Storage, reservation: Document) -> None:
    """Remove a reservation, by its filter, and what its holder has stored."""
    with suppress(DuplicateError):  # something else is stored under the id
        # A tombstone even if the reservation was lost: events were stored since.
        update = Update("sessions", reservation, MAKE_TOMBSTONE, upsert=True)
        await storage.commit(update)
    await remove_tombstone(storage, reservation["_id"])


async def remove_expired(storage: Storage, key: SessionKey) -> bool:
    """Remove a session if it has expired or is being removed; True if its id is free.

    The id is free as well if another process removed the session meanwhile.
    """
    expired = queries.expired_on_server_filter(storage)
    async for _ in removals(storage, {"_id": key.id, **expired}):
        pass
    query = Query("sessions", {"_id": key.id}, fields=("_id",))
    return await storage.find_one(query) is None


async def store_in_place(
    storage: Storage, key: SessionKey, store: Callable[[], Awaitable[object]]
) -> None:
    """Store something under an id, also in the place of what has expired."""
    for left in reversed(range(PLACE_ATTEMPTS)):
        try:
            await store()
        except AlreadyExistsError:
            is_free = await remove_expired(storage, key)
            if not is_free or not left:
                raise
        else:
            return


async def removals(
    storage: Storage, wanted: Document, *, time_limit: float | None = None
) -> AsyncIterator[Removal]:
    """Remove sessions that match, and yield each step, until none is left.

    A step is given up after ``time_limit`` seconds, as if a session is locked.
    """
    is_last = False
    while not is_last:
        async for removal in remove_some(storage, wanted, time_limit=time_limit):
            is_last = removal.is_last
            yield removal


async def remove_some(
    storage: Storage, wanted: Document, *, time_limit: float | None = None
) -> AsyncGenerator[Removal]:
    """Remove some of the sessions that match, one of them at least; yield each step.

    Other processes may remove the same sessions at the same time.
    """
    step = partial(_remove_short, storage, wanted)
    removal, placeholders, partials = await storage.run(step, time_limit=time_limit)
    if partials:  # turns may have written some that the transaction does not see
        with reporting_partial_removal():
            await storage.commit(*partials)
    yield removal
    for each in placeholders:
        async for events in _remove_placeholder(storage, each, time_limit):
            yield removal._replace(sessions=0, events=events)


async def _remove_short(
    storage: Storage, wanted: Document, tx: Transaction
) -> tuple[Removal, list[Document], list[Statement]]:
    """Remove short sessions, or make a tombstone of a long one, in one transaction.

    Returns the tombstones and reservations that are to be removed then, and statements
    that remove the partials of the sessions, which are to be repeated.
    """
    query = Query("sessions", wanted, limit=SESSIONS_AT_ONCE, without=STATES)
    found = await tx.find(query)
    read = [*map(SessionRecord.read_removed, found)]
    sessions = [each for each in read if each]
    placeholders = [it for it, each in zip(found, read, strict=True) if not each]
    totals = accumulate(each.most_stored for each in sessions)
    # Without transactions, a crash in between would leave events without a session.
    most = storage.limits.removed_events if storage.has_transactions else -1
    short = [it for it, events in zip(sessions, totals, strict=True) if events <= most]
    count = len(short)
    partials = _partials_removal(short or sessions[:1])
    if short:
        logs = [queries.all_events(each.key) for each in short]
        ids = {"_id": {"$in": [each.key.id for each in short]}}
        await tx.write(
            Delete("sessions", ids, many=True),
            Delete("events", queries.any_of(logs), many=True),
            *partials,
        )
    elif sessions:
        count = await _replace_with_tombstone(storage, sessions[0], wanted, tx)
        placeholders += [_tombstone(each.key.id) for each in sessions[:count]]
    await branches.leave_families(storage, short or sessions[:count], tx)
    is_last = len(found) < SESSIONS_AT_ONCE and count == len(sessions)
    events = sum(each.most_stored for each in short)
    return Removal(count, events, is_last), placeholders, partials


def _partials_removal(sessions: Sequence[SessionRecord]) -> list[Statement]:
    keys = [each.key for each in sessions if each.turn]
    partials = [queries.partials_of_session(key) for key in keys]
    return [Delete("partials", queries.any_of(partials), many=True)] if keys else []


async def _replace_with_tombstone(
    storage: Storage, session: SessionRecord, wanted: Document, tx: Transaction
) -> int:
    id_ = session.key.id
    if not storage.has_transactions:
        still = {"$and": [{"_id": id_}, wanted]}
        (count,) = await tx.write(Update("sessions", still, _tombstone(id_)))
        return count
    await tx.write(
        # A delete rather than a replace: the change feed reports deletes.
        Delete("sessions", {"_id": id_}),
        Insert("sessions", [_tombstone(id_)]),
        *_partials_removal([session]),
    )
    return 1


async def _remove_placeholder(
    storage: Storage, document: Document, time_limit: float | None
) -> AsyncIterator[int]:
    """Remove the events of a tombstone or a reservation; with the last ones, itself.

    Yields how many events each step removed.
    """
    key = SessionKey(**document["_id"])
    # Another has a holder of its own: the id may be free, and taken, by now.
    same = {name: document.get(name) for name in (FORK, IMPORT)}
    fence = Update("sessions", {**_placeholder_filter(key.id), **same}, MAKE_TOMBSTONE)
    end = placeholder_removal_statements(storage, key)
    is_reservation = FORK in document or IMPORT in document
    # A large initial state is kept beside the events.
    initial = Query("events", {"_id": key.event_id(0)}, fields=("_id",))
    log = Query("events", queries.events_after(key, 0), limit=1, fields=("_id",))
    with reporting_partial_removal():
        if is_reservation:
            await storage.commit(fence)  # from now on its holder stores no more
        apart, events = await storage.read(initial, log)
    if events and is_reservation:
        # Subscribers received these events, so they receive a "deleted" too.
        end = [Delete("sessions", _placeholder_filter(key.id))]
    surplus = len(apart)
    with suppress(RefusedError):  # somebody else has removed the rest
        async for count in storage.remove(
            "events", queries.all_events(key), fence, end, time_limit=time_limit
        ):
            yield count - surplus
            surplus = 0


def placeholder_removal_statements(
    storage: Storage, key: SessionKey
) -> list[Statement]:
    """Return the statements that remove a tombstone or reservation.

    All that a change stream contains of a delete is the ``_id``: what is announced
    before it keeps the feed from reporting a session that was deleted.
    """
    gone = Delete("sessions", _placeholder_filter(key.id))
    return announced(storage, [removal_announcement(key)], gone)


# --- Erasure ---

ERASING_SERIAL: Final = 1 << 32
"""By how much an erasure raises the number of a checkpoint's latest save.

Its reader has not counted as far, and so its next save is refused.
"""

_AFTER_EVERY_EVENT: Final = SessionKey("\U0010ffff", "", "").event_id(0)
"""After every event, as MongoDB compares strings: by their bytes."""


async def erase_owner(storage: Storage, app_name: str, user_id: str | None) -> Erased:
    """Remove an app, or a user of it: sessions, states, and progress of all kinds."""
    wanted = queries.all_sessions(app_name, user_id)
    steps = _session_removals(storage, wanted)
    first = await anext(steps)
    sessions, events = first.sessions, first.events
    owner = {"app_name": app_name} | ({} if user_id is None else {"user_id": user_id})
    of_owner = {f"_id.{name}": id_ for name, id_ in owner.items()}
    states = queries.all_user_states(app_name, user_id)
    notes: Document = {"_id": {"of": owner}}
    if user_id is None:
        notes = {"$or": [{"_id": {"of": app_name}}, {"_id.of.app_name": app_name}]}

    async def remove_all(collection: str, which: Document) -> int:
        (count,) = await storage.commit(Delete(collection, which, many=True))
        return count

    with reporting_partial_removal():
        async for step in steps:
            sessions, events = sessions + step.sessions, events + step.events
        for orphan in await _find_orphans(storage, wanted):
            with suppress(DuplicateError):  # a session has this id
                await storage.commit(Insert("sessions", [_tombstone(orphan)]))
            events += await remove_tombstone(storage, orphan)
        users = await remove_all("user_states", states)
        await remove_all("imports", notes)
        await remove_all("partials", wanted)
        await remove_all("families", of_owner)
        letters = await remove_all("dead_letters", of_owner)
        apps = consumers = 0
        if user_id is None:
            apps = await remove_all("app_states", {"_id": app_name})
            of_app = Query("checkpoints", {"app_name": app_name}, fields=("_id",))
            (found,) = await storage.read(of_app)
            names, consumers = [each["_id"] for each in found], len(found)
            await remove_all("dead_letters", {"_id.consumer": {"$in": names}})
            for collection in ("checkpoints", "leases"):
                await remove_all(collection, {"_id": {"$in": names}})
        places = await _erase_from_checkpoints(storage, owner)
    return Erased(
        sessions=sessions,
        events=events,
        user_states=users,
        app_states=apps,
        dead_letters=letters,
        checkpoints=consumers + places,
    )


async def _session_removals(
    storage: Storage, wanted: Document
) -> AsyncIterator[Removal]:
    """Remove all sessions, and yield each step; wait for forks that are being made.

    The server may be copying events for them. Without their source they fail, or
    expire. One may be stored while its source is removed: so there is a pass after the
    last that removed something, unless somebody goes on to create sessions.
    """
    forks = Query("sessions", {**wanted, FORK: {"$exists": True}}, fields=("_id",))
    passes, is_forking, removed = 0, False, 1
    while is_forking or (removed and passes < _ERASING_PASSES):
        if is_forking:
            await asyncio.sleep(_FORK_PAUSE)
        passes, removed = passes + 1, 0
        is_forking = await storage.find_one(forks) is not None
        async for step in removals(storage, {**wanted, **deletable_filter(storage)}):
            removed += step.sessions
            yield step


async def _erase_from_checkpoints(storage: Storage, owner: Document) -> int:
    """Remove ids of an app, or of a user, from checkpoints; count those that had some.

    No consumer misses anything that is not erased. One that replays the log may have
    read of it: its next save is refused, and it reads again from the place stored here,
    but no longer as of a time before.
    """
    late: Document = {
        "$inc": {"serial": ERASING_SERIAL},
        "$currentDate": {"position.reached": {"$type": "timestamp"}},
        "$unset": {"begun": ""},
    }
    replaying = {"position.is_replaying": True}
    await storage.commit(Update("checkpoints", replaying, late, many=True))
    within = {f"position.replayed.{name}": id_ for name, id_ in owner.items()}
    query = Query("checkpoints", within, fields=("position",))
    moved = 0
    while found := [*chain(*await storage.read(query))]:
        behind = {"position.replayed": await _place_behind(storage, owner)}
        change = {"$set": behind, **late}
        for as_read in found:
            moved += sum(await storage.commit(Update("checkpoints", as_read, change)))
    return moved


async def _place_behind(storage: Storage, owner: Document) -> Document:
    """The place right before the first event after all of an owner's."""
    # A document is greater than any text.
    upper = owner | {SessionKey._fields[len(owner)]: {}}
    after = Query("events", {"_id": {"$gt": upper}}, order=1, fields=("_id",))
    if (following := await storage.find_one(after)) is None:
        return _AFTER_EVERY_EVENT
    event = EventRecord(following)
    return event.key.event_id(event.revision - 1)


async def _find_orphans(storage: Storage, wanted: Document) -> list[Document]:
    """Find ids of events without a session, as a crash may leave them.

    They may be those of new sessions, since no others are left.
    """
    # The _id of an event begins with that of its session.
    query = Query("events", wanted, then=(queries.BY_SESSION,))
    (found,) = await storage.read(query)
    return [each["_id"] for each in found if key_of(each["_id"]) is not None]


# --- Pruning ---


@dataclass(frozen=True, slots=True)
class PruneCriteria:
    app_name: str | None
    wanted: Document | None
    """The filter for idle or old sessions; None for those that have expired."""
    idle_since: float | None = None
    """The time after which such a session has no event; None if events do not count."""


def prune_criteria(
    app_name: object, idle_for: object, created_before: object, now: float
) -> PruneCriteria:
    app = None if app_name is None else check_id("app_name", app_name)
    if idle_for is None and created_before is None:
        return PruneCriteria(app, None)
    created: Document = {}
    wanted: Document = {"expire_time": {"$exists": False}, "create_time": created}
    idle_since = None
    if created_before is not None:
        seconds = metadata.check_moment("created_before", created_before)
        if not 0 < seconds <= now:
            message = "created_before must be after 1970, and not in the future."
            raise InvalidInputError(message)
        created["$lt"] = seconds
    if idle_for is not None:
        idle_since = now - metadata.check_duration("idle_for", idle_for)
        moment = datetime.fromtimestamp(max(0.0, idle_since), UTC)
        created["$lte"] = idle_since
        wanted["update_time"] = {"$lte": idle_since}
        wanted[queries.TURN_RENEWED] = {"$not": {"$gt": moment}}
    return PruneCriteria(app, wanted, idle_since)


async def prune_sessions(
    storage: Storage, criteria: PruneCriteria, *, is_dry_run: bool
) -> AsyncIterator[Removal]:
    """Remove sessions step by step, or only count them, and yield each step."""
    if criteria.wanted is None:
        expired = queries.expired_on_server_filter(storage)
        if criteria.app_name is not None:
            expired["_id.app_name"] = criteria.app_name
        if is_dry_run:
            query = Query("sessions", expired, then=(queries.COUNT_STAGE,))
            (counts,) = await storage.read(query)
            for each in counts:
                yield Removal(each["sessions"], each["events"])
            return
        async for step in removals(storage, expired):
            yield step
        return
    async for found in _unwanted_sessions(storage, criteria, criteria.wanted):
        if is_dry_run:
            yield Removal(len(found), sum(each.event_count for each in found))
        elif found:
            as_found = [{"_id": it.key.id, "revision": it.revision} for it in found]
            still = {**queries.any_of(as_found), **criteria.wanted}
            async for step in removals(storage, still):
                yield step


async def _unwanted_sessions(
    storage: Storage, criteria: PruneCriteria, wanted: Document
) -> AsyncIterator[list[SessionRecord]]:
    """Find idle or old sessions, and yield them in lists that can be removed at once.

    The index of creation is walked once, one app after the other.
    """
    limits, app_name = storage.limits, criteria.app_name
    apps = await list_apps(storage) if app_name is None else [app_name]
    for app in apps:
        search = Search({"_id.app_name": app, **wanted}, newest_first=False)
        after: PagePlace | None = None
        is_last = False
        while not is_last:
            query = search.page_query(after, limits.prune_page, storage.clock.now())
            (page,) = await storage.read(replace(query, without=STATES))
            is_last = len(page) < limits.prune_page
            after = None if is_last else search.place_of(page[-1])
            for some in cut_by_size(page, limits.prune_batch):
                known = [*SessionRecord.read_all(some)]
                yield await _select_idle(storage, criteria.idle_since, known)


async def _select_idle(
    storage: Storage, idle_since: float | None, found: Sequence[SessionRecord]
) -> list[SessionRecord]:
    """Select the sessions none of whose events is of a later time."""
    if idle_since is None or not found:
        return list(found)
    later = {"event.timestamp": {"$gt": idle_since}}
    logs = [queries.all_events(each.key) for each in found]
    wanted = queries.any_of([{**log, **later} for log in logs])
    query = Query("events", wanted, then=(queries.BY_SESSION,))
    (alive,) = await storage.read(query)
    keys = {SessionKey(**each["_id"]) for each in alive}
    return [each for each in found if each.key not in keys]
