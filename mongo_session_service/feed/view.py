"""Views: a session at one point in time, as a subscription begins or catches up."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from bson.timestamp import Timestamp

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import (
    ChangeRecord,
    decode_trimmed,
    decode_turn_progress,
    snapshot_record,
    state_record,
    updated_record,
)
from mongo_session_service.codec import bson_values
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.partials import partial_event_id
from mongo_session_service.codec.record import SessionRecord, state_fields
from mongo_session_service.errors import StorageError
from mongo_session_service.feed.place import Place
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.families import join
from mongo_session_service.sessions.reads import head_query
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import lease_has_expired
from mongo_session_service.storage.statements import Query

logger = logging.getLogger(__name__)

_LONG: Final = 600.0
"""Seconds after which the status of a turn may be gone, as its first partials are."""


@dataclass(slots=True)
class View:
    """A session at one point in time, and what a subscriber to it has missed."""

    as_of: Timestamp
    session: SessionRecord
    is_complete: bool = True
    """Whether nothing else was missed; else it is a page of the session's events."""
    missed: list[Change] = field(default_factory=list)
    past_epoch: int = 0
    """The epoch of the latest turn that is over."""
    partials: list[Change] = field(default_factory=list)
    """Of the running turn: what is not stored yet, and its status."""
    turn: Change | None = None
    """The turn that is over, or has run for long, unless it has ended as expected."""
    stored_ids: list[Any] = field(default_factory=list)
    """The ids of the events that it has stored, or whose first partials are gone."""


async def load_view(
    storage: Storage, key: SessionKey, after: Place, not_before: Timestamp
) -> View | None:
    """Load a session, not before a time, and what a subscriber has missed.

    None if it is not stored. What follows a revision from before the session's log, or
    the place in another session, begins with a snapshot: nothing else reads its state.
    Partials are left out if the place has none.
    """
    view = None
    if after.revision is not None:
        log = Query("events", queries.events_after(key, after.revision))
        scan = storage.scan(log, beside=[head_query(key)], not_before=not_before)
        async with aclosing(scan):
            page = await anext(scan)
        (sessions,) = page.beside
        session = SessionRecord.find(sessions, storage.clock.now())
        if session is None:
            return None
        (session,) = await join(storage, [session], page.as_of)
        if after.create_time in {None, session.created}:
            view = View(page.as_of, session, page.is_last)
            await _add_missed(view, storage, page.documents, after.revision)
        else:
            after = Place(None, after.partial and (0, 0))
    if view is None:
        found = await storage.read(
            *queries.session_queries(key), not_before=not_before, patient=True
        )
        sessions, *states = found
        session = SessionRecord.find(sessions, storage.clock.now())
        if session is None:
            return None
        (session,) = await join(storage, [session], found.as_of)
        snapshot = snapshot_record(session, [*chain(*states)], storage.hooks)
        view = View(found.as_of, session, missed=[snapshot.change()])
    turn = view.session.turn
    if after.partial is not None and view.is_complete:
        if "holder" in turn:
            view.past_epoch = turn["epoch"] - 1
            await _add_partials(view, storage, after.partial)
        else:
            view.past_epoch = turn.get("epoch", 0)
        view.turn = _last_turn(storage, view.session)
    return view


def _last_turn(storage: Storage, session: SessionRecord) -> Change | None:
    """The session's last turn, unless it has ended well or its partials show it."""
    now = storage.clock.now()
    turn = session.turn_info(is_free=lease_has_expired(storage, session.turn, now))
    if turn is None or turn.status == "ended":
        return None
    is_running = turn.status in {"running", "stopping"}
    if is_running and now - turn.since.timestamp() < _LONG:
        return None
    return Change(kind="turn", **SessionKey(*turn[:3])._asdict(), turn=turn, time=now)


async def _add_missed(
    view: View, storage: Storage, log: list[Document], after_revision: int
) -> None:
    """Add the events that follow a revision, and all else if these are the last."""
    session, hooks = view.session, storage.hooks
    key, is_cut = session.key, after_revision < session.begins
    if is_cut or view.is_complete:
        start = [Query("events", {"_id": key.event_id(0)})] if is_cut else []
        states = queries.shared_state_queries(*key[:2])
        *before, app, user = await storage.read(
            *start, *states, as_of=view.as_of, patient=True
        )
        shared = [*app, *user]
        trimmed = [decode_trimmed(it, shared, hooks) for it in chain(*before)]
        view.missed += [each.change() for each in trimmed if each]
    view.missed += _appended_changes(key, session.trimmed(log), hooks)
    if view.is_complete:
        for each in shared:
            view.missed += _state_changes(each, hooks, session.updated)
        if session.has_conversation:
            record = updated_record(session, hooks, session.updated)
            view.missed.append(record.change())


def _appended_changes(
    key: SessionKey, events: Iterable[Document], hooks: Hooks
) -> Iterator[Change]:
    """Decode stored events to ``appended`` changes, as far as they can be read."""
    for each in events:
        record = ChangeRecord("appended", key, {"document": each}, hooks=hooks)
        if record.readable_change:
            yield record.readable_change


def _state_changes(stored: Document, hooks: Hooks, time: float) -> Iterator[Change]:
    """The state of an app or a user, as a change that may have been missed."""
    id_ = stored["_id"]
    owner = (id_,) if isinstance(id_, str) else tuple(id_.values())
    try:
        values = bson_values.decode_fields(state_fields(stored))
    except (AttributeError, StorageError):
        message = "A subscriber does not receive the state of %s: it cannot be read."
        logger.warning(message, Owner(*owner))
        return
    change = state_record(owner, values, hooks, time).readable_change
    if change and change.state_delta:
        yield change


async def _add_partials(view: View, storage: Storage, after: tuple[int, int]) -> None:
    """Add what the session's running turn has produced."""
    key, turn = view.session.key, view.session.turn
    partials = queries.partials_of_turn(key, turn["epoch"], view.session.created)
    wanted = [Query("partials", partials, order=1)]
    if "first_revision" in turn:
        own = queries.events_after(key, turn["first_revision"] - 1)
        wanted.append(Query("events", own, fields=("event.id",)))
    found, *stored = await storage.read(*wanted, as_of=view.as_of, patient=True)
    view.stored_ids = [EventRecord(each).id for events in stored for each in events]
    view.stored_ids += _torn_ids(found, after)
    known = {*view.stored_ids}
    for each in found:
        record = decode_turn_progress(each, storage.hooks)
        change = record and record.readable_change
        if change and (change.event is None or change.event.id not in known):
            view.partials.append(change)


def _torn_ids(partials: list[Document], received: tuple[int, int]) -> set[Any]:
    """The ids of events of which some partials have expired that were not received."""
    if not partials or "create_time" not in partials[0]:  # of an earlier release
        return set()
    oldest = partials[0]["_id"]
    if received >= (oldest["epoch"], oldest["n"] - 1):
        return set()
    whole = {partial_event_id(each) for each in partials if each.get("first")}
    return {*map(partial_event_id, partials)} - whole - {None}
