"""Contents of a database as tools see them: apps, sessions, and logs as stored.

Nothing here creates a collection: a tool may be pointed at the wrong database. Hooks
are the service's own; without ``after_load``, what they have sealed stays sealed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from google.adk.events.event import Event

from mongo_session_service.codec import documents
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.record import STATES, SessionRecord
from mongo_session_service.errors import StorageError
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.results import Erased, Redactable, SessionSummary
from mongo_session_service.schema.setup import (
    NEEDED,
    existing,
    missing_indexes,
    recorded_version,
)
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import (
    deletion,
    queries,
    redaction,
    search,
)
from mongo_session_service.sessions.event_log import LogRange, read_log
from mongo_session_service.sessions.families import join_one
from mongo_session_service.sessions.reads import found_record
from mongo_session_service.sessions.search import AppCount
from mongo_session_service.storage.statements import Query


async def count_apps(
    service: MongoSessionService, user_id: str | None
) -> list[AppCount]:
    """Count the sessions and users of every app, or of those that know a user."""
    storage = await backends_of(service).storage()
    return await search.count_by_app(storage, user_id)


async def load_summary(service: MongoSessionService, key: SessionKey) -> SessionSummary:
    own = Query("sessions", {"_id": key.id}, without=STATES[1:])
    shared = queries.shared_state_queries(key.app_name, key.user_id)
    storage = await backends_of(service).storage()
    found, *states = await storage.read(own, *shared)
    record = await join_one(found_record(storage, key, found), storage)
    shown = documents.show_session(record, chain(*states), storage.hooks)
    return record.summary(storage.hooks, shown.state)


async def iter_stored_events(
    service: MongoSessionService, of: SessionSummary, after: int
) -> AsyncIterator[tuple[EventRecord, Event | None]]:
    """Read a session's log from a revision to that of its summary, in flat memory.

    Of each event comes the record, and what can be read here of it, if it can be: not
    what is sealed, or of another release of ADK.
    """
    key = SessionKey(of.app_name, of.user_id, of.id)
    wanted = LogRange(after, of.revision, created=of.create_time)
    storage = await backends_of(service).storage()
    async for page in read_log(storage, key, wanted):
        for each in page:
            event = None
            with suppress(StorageError):
                event = documents.decode_event(each, storage.hooks)
            yield each, event


async def preview_redaction(
    service: MongoSessionService,
    key: SessionKey,
    wanted: Sequence[str] | str,
    replacement: str,
    *,
    forks: bool,
) -> Redactable:
    storage = await backends_of(service).storage()
    part = await redaction.find_part(storage, key, wanted)
    return await redaction.preview(storage, part, replacement, forks=forks)


NOTHING: Final = Erased(0, 0, 0, 0, 0, 0)


async def count_erasable(
    service: MongoSessionService,
    app_name: str,
    user_id: str | None = None,
    session_id: str | None = None,
) -> Erased | None:
    """Count what erasing an app, a user of it or a session would remove now.

    How many events interrupted deletes have left is not known. None if nothing of this
    package is stored at all, or nothing of the session.
    """
    if user_id is not None and session_id is not None:
        key = session_key(app_name, user_id, session_id)
        return await _count_erasable_session(service, key)
    letters = {"_id.app_name": app_name}
    if user_id is not None:
        letters["_id.user_id"] = user_id
    erasable = {
        "user_states": queries.all_user_states(app_name, user_id),
        "dead_letters": letters,
    }
    if user_id is None:
        erasable["app_states"] = {"_id": app_name}
        erasable["checkpoints"] = {"app_name": app_name}
    logs = queries.all_sessions(app_name, user_id)
    storage = await backends_of(service).storage()
    found = await storage.read(
        Query("sessions", logs, then=(queries.COUNT_STAGE, {"$project": {"_id": 0}})),
        *(Query(it, erasable[it], then=({"$count": it},)) for it in erasable),
    )
    counts = NOTHING
    for each in chain(*found):
        counts = replace(counts, **each)
    if counts == NOTHING and await recorded_version(storage) is None:
        return None
    return counts


async def _count_erasable_session(
    service: MongoSessionService, key: SessionKey
) -> Erased | None:
    """Count a session, also one that has expired or is partly deleted."""
    storage = await backends_of(service).storage()
    wanted = {"_id": key.id, **deletion.deletable_filter(storage)}
    found = await storage.find_one(Query("sessions", wanted, without=STATES))
    if found is None:
        return None
    session = SessionRecord.read_removed(found)
    if session is None:
        return NOTHING
    return replace(NOTHING, sessions=1, events=session.most_stored)


async def erase(
    service: MongoSessionService,
    app_name: str,
    user_id: str | None = None,
    session_id: str | None = None,
) -> Erased | None:
    if user_id is None:
        return await service.delete_app(app_name=app_name)
    if session_id is None:
        return await service.delete_user(app_name=app_name, user_id=user_id)
    await service.delete_session(
        app_name=app_name, user_id=user_id, session_id=session_id
    )
    return None


@dataclass(frozen=True, slots=True)
class SchemaContents:
    missing_collections: frozenset[str]
    missing_indexes: frozenset[str]
    """By collection and name: ``sessions.by_user``."""
    schema_version: int | None


async def read_schema(service: MongoSessionService) -> SchemaContents:
    storage = await backends_of(service).storage()
    there = await existing(storage)
    missing = await missing_indexes(storage)
    version = await recorded_version(storage)
    prefix = storage.prefix
    lacking = {f"{prefix}{each.collection}.{each.name}" for each in missing}
    absent = {f"{prefix}{each}" for each in {*NEEDED} - there}
    return SchemaContents(frozenset(absent), frozenset(lacking), version)
