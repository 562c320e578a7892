"""Views: a session at one point in time, as a subscription begins or catches up."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

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
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.record import SessionRecord
from mongo_session_service.errors import StorageError
from mongo_session_service.feed.place import Place
from mongo_session_service.model.records import Document, Marker, SessionKey
from mongo_session_service.sessions import queries
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
    marker: Marker
    log_begins: int
    """The revision after which the session's log begins."""
    is_complete: bool = True
    """Whether nothing else was missed; else it is a page of the session's events."""
    missed: list[Change] = field(default_factory=list)
    past_epoch: int = 0
    """The epoch of the latest turn that is over."""
    partials: list[Change] = field(default_factory=list)
    """Of the running turn: what is not stored yet, and its status."""
    turn: Change | None = None
    """The turn that is over, or has run for long, unless it has ended as expected."""
    stored_ids: list[str] = field(default_factory=list)
    """The ids of the events that it has stored, or whose first partials are gone."""


async def load_view(
    storage: Storage,
    key: SessionKey,
    after: Place,
    not_before: Timestamp,
) -> View | None:
    """Load a session, not before a time, and what a subscriber has missed.

    None if it is not stored. What follows a revision from before the session's log, or
    the place in another session, begins with a snapshot. Partials are left out if the
    place has none.
    """
    sessions, *states = found = await storage.read(
        *queries.session_queries(key), not_before=not_before, patient=True
    )
    session, shared = (
        SessionRecord.find(sessions, storage.clock.now()),
        [*chain(*states)],
    )
    if session is None:
        return None
    view = View(found.as_of, session.marker, session.begins)
    if after.create_time not in {None, view.marker.create_time}:
        after = Place(None, after.partial and (0, 0))
    if after.revision is None:
        view.missed = [snapshot_record(session, shared, storage.hooks).change()]
    else:
        await _add_missed(view, storage, session, shared, after.revision)
    turn = session.turn
    if after.partial is not None and view.is_complete:
        if "holder" in turn:
            view.past_epoch = turn["epoch"] - 1
            await _add_partials(view, storage, key, turn, after.partial)
        else:
            view.past_epoch = turn.get("epoch", 0)
        view.turn = _last_turn(storage, session)
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
    view: View,
    storage: Storage,
    session: SessionRecord,
    shared: list[Document],
    after_revision: int,
) -> None:
    """Add what follows a revision: a page of events, and the rest if it is the last."""
    key, hooks = session.key, storage.hooks
    if after_revision < view.log_begins:
        after_revision = view.log_begins
        first = Query("events", {"_id": key.event_id(0)})
        (before,) = await storage.read(first, as_of=view.as_of, patient=True)
        trimmed = [decode_trimmed(each, shared, hooks) for each in before]
        view.missed += [each.change() for each in trimmed if each]
    size = storage.limits.page_events
    following = queries.events_after(key, after_revision)
    # Alone, since the first reply may hold no more than one event.
    (log,) = page = await storage.read(
        Query("events", following, order=1, limit=size),
        as_of=view.as_of,
        whole=False,
        patient=True,
    )
    view.missed += appended_changes(key, log, hooks)
    view.is_complete = page.is_whole and len(log) < size
    if not view.is_complete:
        return
    time = session.updated
    for each in shared:
        view.missed += _state_changes(each, hooks, time)
    if session.has_conversation:
        view.missed.append(updated_record(session, hooks, time).change())


def appended_changes(
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
        values = bson_values.decode_fields(stored["state"])
    except (AttributeError, KeyError, StorageError):
        message = "A subscriber does not receive the state of %s: it cannot be read."
        logger.warning(message, Owner(*owner))
        return
    change = state_record(owner, values, hooks, time).readable_change
    if change and change.state_delta:
        yield change


async def _add_partials(
    view: View,
    storage: Storage,
    key: SessionKey,
    turn: Document,
    after: tuple[int, int],
) -> None:
    """Add what the session's running turn has produced."""
    created = view.marker.create_time
    partials = queries.partials_of_turn(key, turn["epoch"], created)
    wanted = [Query("partials", partials, order=1)]
    if "first_revision" in turn:
        own = queries.events_after(key, turn["first_revision"] - 1)
        wanted.append(Query("events", own, fields=("event.id",)))
    found, *stored = await storage.read(*wanted, as_of=view.as_of, patient=True)
    view.stored_ids = [each["event"]["id"] for events in stored for each in events]
    view.stored_ids += _torn_ids(found, after)
    known = {*view.stored_ids}
    for each in found:
        record = decode_turn_progress(each, storage.hooks)
        change = record and record.readable_change
        if change and (change.event is None or change.event.id not in known):
            view.partials.append(change)


def _torn_ids(partials: list[Document], received: tuple[int, int]) -> set[str]:
    """The ids of events of which some partials have expired that were not received."""
    if not partials or "create_time" not in partials[0]:  # of an earlier release
        return set()
    oldest = partials[0]["_id"]
    if received >= (oldest["epoch"], oldest["n"] - 1):
        return set()
    events = [each for each in partials if "event" in each]
    whole = {each["event"]["id"] for each in events if each.get("first")}
    return {each["event"]["id"] for each in events} - whole
