"""Views: a session at one point in time, as a subscription begins or catches up."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bson.timestamp import Timestamp

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import (
    ChangeRecord,
    decode_turn_progress,
    state_record,
    updated_record,
)
from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.errors import StorageError
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, Marker, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.snapshots import Query, load_documents, read_snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """A session at one point in time, and what a subscriber to it has missed."""

    as_of: Timestamp
    marker: Marker
    missed: list[Change]
    is_complete: bool
    """Whether these are all; else they are a page of the session's events."""
    log_begins: int
    """The revision after which the session's log begins."""
    past_epoch: int = 0
    """The epoch of the latest turn that is over."""
    partials: Sequence[Change] = ()
    """Of the running turn: what is not stored yet, and its status."""
    stored_ids: Sequence[str] = ()
    """The ids of the events that it has stored."""


async def load_view(
    connection: Connection,
    key: SessionKey,
    after_revision: int | None,
    not_before: Timestamp,
    *,
    with_partials: bool,
) -> View | None:
    """Load a session and what a subscriber has missed; None if it is not stored.

    What follows a revision from before the session's log begins with a snapshot.
    """
    stored = {"_id": key.id, **queries.visible_filter(connection.clock.now())}
    shared = queries.shared_state_queries(key.app_name, key.user_id)
    found = await read_snapshot(
        connection, Query("sessions", stored), *shared, not_before=not_before
    )
    heads = await found.documents()
    session = next((it for it in heads if it["_id"] == key.id), None)
    if session is None:
        return None
    documents.checked_key(session)
    hooks, update_time = connection.hooks, session["update_time"]
    begins = documents.log_begins(session)
    if after_revision is None:
        content = {"document": session, "shared": heads}
        snapshot = ChangeRecord("snapshot", key, content, hooks=hooks)
        missed, is_complete = [snapshot.change()], True
    else:
        missed = []
        if after_revision < begins:
            missed = [await _snapshot_at_cut(connection, key, heads, found.as_of)]
            after_revision = begins
        limit = connection.limits.page_events
        following = queries.events_after(key, after_revision)
        query = Query("events", following, order=1, limit=limit)
        page = await connection.read(query, as_of=found.as_of, whole=False)
        (events,) = page
        missed += appended_changes(key, events, hooks)
        is_complete = page.is_whole and len(events) < limit
        if is_complete:
            missed += _state_changes(heads, hooks, update_time)
            details = Details.from_document(session)
            if "title" in session or details.labels:  # an empty title was removed
                updated = updated_record(key, session, hooks, update_time)
                missed.append(updated.change())
    view = View(found.as_of, Marker.of(session), missed, is_complete, begins)
    if with_partials and is_complete:
        return await _with_turn(connection, key, session, view)
    return view


def appended_changes(
    key: SessionKey, events: Iterable[Document], hooks: Hooks
) -> list[Change]:
    """Decode stored events to ``appended`` changes, as far as they can be read."""
    return [
        change
        for each in events
        if (
            change := ChangeRecord(
                "appended", key, {"document": each}, hooks=hooks
            ).readable_change
        )
    ]


async def _with_turn(
    connection: Connection, key: SessionKey, session: dict[str, Any], view: View
) -> View:
    """Add to a view what the turn of the session has produced."""
    turn = session.get("turn") or {}
    if "holder" not in turn:
        return replace(view, past_epoch=turn.get("epoch", 0))
    wanted = [Query("partials", queries.partials_of_turn(key, turn["epoch"]), order=1)]
    if "first_revision" in turn:
        own = queries.events_after(key, turn["first_revision"] - 1)
        wanted.append(Query("events", own, fields=("event.id",)))
    read = await load_documents(connection, *wanted, as_of=view.as_of)
    stored_ids = [each["event"]["id"] for each in read if "n" not in each["_id"]]
    stored = {*stored_ids}
    items = [decode_turn_progress(each, connection.hooks) for each in read]
    changes = [each.readable_change for each in items if each]
    partials = [
        each
        for each in changes
        if each and (each.event is None or each.event.id not in stored)
    ]
    past_epoch = turn["epoch"] - 1
    return replace(
        view, past_epoch=past_epoch, partials=partials, stored_ids=stored_ids
    )


async def _snapshot_at_cut(
    connection: Connection,
    key: SessionKey,
    heads: list[dict[str, Any]],
    as_of: Timestamp,
) -> Change:
    query = Query("events", {"_id": key.event_id(0)})
    ((beginning,),) = await connection.read(query, as_of=as_of)
    content = {"document": beginning, "shared": heads}
    return ChangeRecord("snapshot", key, content, hooks=connection.hooks).change()


def _state_changes(
    heads: list[dict[str, Any]], hooks: Hooks, time: float
) -> Iterator[Change]:
    """The state of the app and the user, as changes that may have been missed."""
    for each in heads:
        id_ = each["_id"]
        owner = (id_,) if isinstance(id_, str) else tuple(id_.values())
        if len(owner) == len(SessionKey._fields):
            continue
        try:
            values = bson_values.decode_fields(each["state"])
        except (AttributeError, KeyError, StorageError):
            logger.warning(
                "A subscriber does not receive the state of %s: it cannot be read.",
                Owner(*owner),
            )
            continue
        change = state_record(owner, values, hooks, time).readable_change
        if change and change.state_delta:
            yield change
