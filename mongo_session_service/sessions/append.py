"""Append: what it expects, what it writes, and the verdict if that is not so.

From top to bottom: :class:`Appender` finds the version that a caller's session shows,
and encodes the event. With ``on_conflict="rebase"``, an event that comes late is stored
behind those of others, unless it would come between what belongs together. The writer
puts it into a batch, in one transaction with others. What that expects of a session is
in :func:`expectation`, with the verdicts of :func:`judge`; what it writes is in
:func:`session_updates`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.sessions.session import Session

from mongo_session_service import telemetry
from mongo_session_service.codec.adk_session import marker_of
from mongo_session_service.codec.documents import (
    StoredSession,
    encode_append,
    is_same_event,
)
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.record import (
    EVENT_TIME,
    STATE_PATH,
    SessionRecord,
    fields_update,
)
from mongo_session_service.errors import (
    quoted,
    session_exists_error,
    session_not_found_error,
    stale_session_error,
    turn_lost_error,
)
from mongo_session_service.model.metadata import NOT_GIVEN
from mongo_session_service.model.records import (
    Append,
    Document,
    Marker,
    NewSession,
    SessionKey,
    TurnFence,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.queries import (
    TURN_EPOCH,
    TURN_FIRST_REVISION,
    TURN_RENEWED,
)
from mongo_session_service.sessions.reads import (
    SessionReads,
    find_event,
    read_writable,
)
from mongo_session_service.sessions.writer import (
    AlreadyStored,
    Outdated,
    QueuedWrite,
    Verdict,
    Writer,
)
from mongo_session_service.storage.failures import reporting_stored_unread
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Update
from mongo_session_service.storage.transactions import Transaction

Result = TypeVar("Result")

OnConflict = Literal["raise", "rebase", "close"]
"""What an append does about events of others: ``close`` if it closes a turn."""

_LONGEST_PAUSE: Final = 0.05  # seconds

_UNANSWERED: Final = (
    "Another writer's function call has no response yet, and no event may come between"
    " the two. Nothing was stored. Append again in a moment, to the session as it is"
    " then; or let runs wait for each other with turn()."
)
_OUTRUN: Final = (
    "Another run of the same invocation has called functions, or has responded to the"
    " same call: only one run may continue. Reload the session with get_session(), and"
    " let runs wait for each other with turn(). Nothing was stored."
)


class Appended(NamedTuple):
    """Result of an append: its marker, and what others have appended around it."""

    marker: Marker | None
    """The session right after the event; None if the caller's shows it already."""
    missed: StoredSession | None = None
    """The session with the events of others before it."""
    later: StoredSession | None = None
    """The session with the events of others after it, if it was stored before."""


class Appender:
    def __init__(self, storage: Storage, reads: SessionReads, writer: Writer) -> None:
        self.storage, self.reads, self.writer = storage, reads, writer
        self.locks = WeakValueDictionary[SessionKey, asyncio.Lock]()
        """One per session: its late writers would keep overtaking each other."""

    async def append(
        self,
        key: SessionKey,
        session: Session,
        event: Event,
        fence: TurnFence | None,
        started: float,
        *,
        on_conflict: OnConflict,
    ) -> Appended:
        """Store an event that follows what a caller's session shows.

        If others have appended since, it raises ``StaleSessionError``. If it is to
        rebase, it stores the event after theirs, unless that cannot be: a function call
        of another writer has no response yet, a concurrent run of the same invocation
        was faster, other writers came first too often, the event is a rewind, or the
        stored session is a later one of the same id. An event that closes a turn is
        stored between a call and its response as well.
        """
        await self.writer.buffer.await_room()
        expected = marker_of(session)
        if expected is None:
            found = await self._find_marker(key, session, event)
            # Another append through the same object may have ended meanwhile.
            expected = marker_of(session) or found
        append = encode_append(key, event, self.storage.hooks, fence)
        if on_conflict == "raise":
            return Appended(await self.writer.write(append, expected, session, started))
        rebasing = _RebasingAppend(self, append, session, event, expected, started)
        return await rebasing.write(closes=on_conflict == "close")

    async def _find_marker(
        self, key: SessionKey, session: Session, event: Event
    ) -> Marker:
        """Find what a session without a marker has seen, as one built from JSON.

        Its last event shows it. Without events it is current if storage is no newer, or
        holds this event alone. Revision -1 is that of a stale session.
        """
        stored = await read_writable(self.storage, key)
        marker, begins = stored.marker, stored.begins
        last = session.events[-1] if session.events else event
        found = await find_event(self.storage, key, last.id)
        revision = found.revision if found else -1
        if not session.events:
            if not found and stored.updated <= session.last_update_time:
                return marker
            revision = begins if revision == begins + 1 else -1
        return marker._replace(revision=revision)


# --- Behind the events of others ---


@dataclass(slots=True)
class _RebasingAppend:
    """An append that may follow events which its caller's session does not show."""

    appender: Appender
    append: Append
    session: Session
    """The caller's, as it has been read."""
    event: Event
    expected: Marker
    started: float
    """When the call began."""

    @property
    def _marker(self) -> Marker:
        return marker_of(self.session) or self.expected

    async def write(self, *, closes: bool) -> Appended:
        """Store the event after all events that its session has missed."""
        appended = None
        if closes or not self._is_between([]):
            with suppress(StaleSessionError):
                appended = Appended(await self._write_after(self._marker, self.session))
        if appended is None:
            if self.event.actions.rewind_before_invocation_id:
                # It was computed from a log that has grown.
                raise stale_session_error(self.append.key.session_id)
            appended = await self._write_late(closes=closes)
        shown = (each.id for each in reversed(self.session.events))
        if appended.marker is None and self.event.id not in shown:
            return await self._find_earlier_attempt()
        return appended

    async def _write_late(self, *, closes: bool) -> Appended:
        appender, key = self.appender, self.append.key
        lock = appender.locks.setdefault(key, asyncio.Lock())
        async with AsyncExitStack() as held:
            await self._in_time(held.enter_async_context(lock))
            for _ in range(appender.storage.limits.rebase_attempts):
                missed = await self._in_time(self._read_missed())
                if missed is not None:
                    if is_overtaken(self.session.events, missed.events, self.event):
                        raise StaleSessionError(_OUTRUN)
                    if not closes and self._is_between(missed.events):
                        raise StaleSessionError(_UNANSWERED)
                    with suppress(StaleSessionError):  # others have appended again
                        return Appended(await self._write_after(missed.marker), missed)
                # Random, so that writers of other processes do not read with it.
                await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311
        raise stale_session_error(key.session_id)

    async def _write_after(
        self, expected: Marker, session: Session | None = None
    ) -> Marker | None:
        writer = self.appender.writer
        return await writer.write(self.append, expected, session, self.started)

    async def _in_time(self, waiting: Awaitable[Result]) -> Result:
        writer = self.appender.writer
        left = self.started + writer.write_timeout - time.monotonic()
        try:
            async with asyncio.timeout(left) as timer:
                return await waiting
        except TimeoutError:
            if not timer.expired():
                raise
            raise writer.late_error() from None

    async def _read_missed(self) -> StoredSession | None:
        """Read the session, with the events that the caller's has not seen.

        None if an append was half visible, which happens without transactions.
        """
        key, seen, reads = self.append.key, self._marker, self.appender.reads
        stored = await reads.read_session(key, after_revision=seen.revision)
        if stored is None:
            raise session_not_found_error(key.session_id)
        is_other = stored.marker.create_time != seen.create_time
        is_trimmed = seen.revision < stored.record.begins
        if is_other or is_trimmed:
            change = seen.describe_change(stored.marker)
            raise stale_session_error(key.session_id, change)
        is_whole = seen.revision + len(stored.events) == stored.marker.revision
        return stored if is_whole else None

    async def _find_earlier_attempt(self) -> Appended:
        """Find the place of an event that an earlier attempt has stored."""
        with (
            reporting_stored_unread(),
            suppress(StaleSessionError, SessionNotFoundError),
        ):
            missed = await self._in_time(self._read_missed())
            ids = [each.id for each in missed.events] if missed else []
            if missed is not None and self.event.id in ids:
                index = ids.index(self.event.id)
                revision = missed.marker.revision - len(ids) + index
                record, events = missed.record.at(revision), missed.events[:index]
                before = missed._replace(record=record, events=events)
                return Appended(before.marker.after_append(), before, missed)
        return Appended(None)

    def _is_between(self, missed: Sequence[Event]) -> bool:
        """True if the event would part a call of another writer from its response.

        Who has seen the call is refused only while it is recent: its writer may be
        dead.
        """
        seconds = self.appender.storage.limits.response_seconds
        seen = [
            each
            for each in self.session.events[-1:]
            if each.invocation_id != self.event.invocation_id
            and platform_time.get_time() - each.timestamp < seconds
        ]
        return bool(unanswered([*seen, *missed], self.event))


def is_overtaken(seen: Sequence[Event], missed: Sequence[Event], event: Event) -> bool:
    """True if a concurrent run of an event's invocation has overtaken it.

    Its writer has ``seen`` the log, but not what it has ``missed``.
    """
    long_running = _long_running_ids([*seen, *missed])
    if _answered_ids([event]) & _answered_ids(missed) - long_running:
        return True
    id_ = event.invocation_id
    others = [each for each in missed if id_ and each.invocation_id == id_]
    return bool(_call_ids([event]) and _call_ids(others))


def unanswered(events: Sequence[Event], event: Event) -> set[str | None]:
    """Find function calls whose responses must precede an event."""
    open_calls = _call_ids(events) - _answered_ids(events) - _long_running_ids(events)
    return open_calls - _answered_ids([event])


def _call_ids(events: Iterable[Event]) -> set[str | None]:
    """The ids of the function calls in events; names, where they have none."""
    calls = chain.from_iterable(each.get_function_calls() for each in events)
    return {each.id or each.name for each in calls}


def _answered_ids(events: Iterable[Event]) -> set[str | None]:
    responses = chain.from_iterable(each.get_function_responses() for each in events)
    return {each.id or each.name for each in responses}


def _long_running_ids(events: Iterable[Event]) -> set[str | None]:
    return {id_ for each in events for id_ in each.long_running_tool_ids or ()}


# --- Expected ---


def expectation(storage: Storage, append: Append, expected: Marker) -> Document:
    """The filter that finds the session of an append only if it is as expected.

    If it finds none, :func:`judge` finds out which of these does not hold.
    """
    revision, create_time, ttl, expires = expected
    return {
        "_id": append.key.id,  # else it is deleted: not found
        "revision": revision,  # else others have appended: stale
        "create_time": create_time,  # else it is another of this id: stale
        # Else it is tried again with the time to live that it has by now.
        "ttl": ttl,
        # Else it has expired: not found; or it is tried again, as it does by now.
        **(queries.alive_filter(storage) if expires else {"expire_time": None}),
        **queries.NEEDS_KNOWN,  # else this release may not write it
    }


def turn_expectation(fence: TurnFence) -> Document:
    """The filter for the session of an append within a turn: else the turn is lost."""
    epoch, create_time, _ = fence
    return {TURN_EPOCH: epoch, "create_time": create_time}


async def judge(storage: Storage, planned: QueuedWrite) -> Verdict:
    """Find out why a write was refused; most often the verdict is an error.

    Beside what is expected of a session, nothing else may be stored under the id of a
    new one, and no other event under the event's id.
    """
    write, expected = planned.write, planned.expected
    key = write.key
    if isinstance(write, NewSession):
        raise session_exists_error(key.session_id)

    async def find(tx: Transaction) -> tuple[SessionRecord, EventRecord | None]:
        session = await read_writable(storage, key, tx)  # or it is none to be written
        return session, await find_event(tx, key, write.event_id)

    # A primary may show what it has not replicated, and lose it when it is deposed.
    # What a transaction has read is on a majority once it is committed.
    time_limit = planned.deadline - time.monotonic()
    session, stored = await storage.run(find, time_limit=time_limit)
    found = session.marker
    if stored is not None:
        if is_same_event(write, stored.event, storage.hooks):
            return AlreadyStored(stored.revision)
        which = f"Another event with id {quoted(write.event_id)}"
        raise AlreadyExistsError(f"{which} already exists.")
    held = (session.turn.get("epoch"), found.create_time)
    if write.fence and write.fence[:2] != held:
        raise turn_lost_error(key.session_id)
    # It may have changed to what was expected since, so that all looks well.
    is_same = found[:2] == expected[:2]
    if is_same and planned.retries:
        return Outdated(found)
    telemetry.count(telemetry.STALE_APPENDS, storage.database.name)
    raise stale_session_error(key.session_id, expected.describe_change(found))


# --- Written ---


def session_updates(
    storage: Storage,
    planned: Iterable[QueuedWrite],
    waiting: Mapping[tuple[SessionKey, int], Document],
) -> list[Update]:
    """Build the updates of appends to their sessions: one for each session.

    Its expectation is that of the session's first append, and that nobody has taken the
    turn of one within a turn, which it renews. Given are the fields of what waits after
    an append, if it changes that, by its session and revision.
    """
    updates: dict[SessionKey, Update] = {}
    noted: dict[SessionKey, Document] = defaultdict(dict)
    for each in planned:
        append, expected = each.write, each.expected
        if not isinstance(append, Append):
            continue
        update = updates.get(append.key)
        if update is None:
            where = expectation(storage, append, expected)
            update = Update("sessions", where, {"$set": {}}, expected=1)
            updates[append.key] = update
        change: Document = update.change  # type: ignore[assignment]
        revision = expected.revision + 1
        if append.fence is not None:
            held = turn_expectation(append.fence)
            wanted = update.filter.setdefault("$and", [])
            wanted += [held] if held not in wanted else []
            change["$currentDate"] = {TURN_RENEWED: True}
            # The least is that of the turn's first event.
            change.setdefault("$min", {TURN_FIRST_REVISION: revision})
        changes = change["$set"]
        for name, value in append.delta.session.items():
            changes[STATE_PATH + name] = value
        changes["revision"] = revision
        changes["update_time"], changes[EVENT_TIME] = each.now, append.timestamp
        if expected.ttl is not None:
            # No clock that was set back shortens a life.
            change["$max"] = {"expire_time": each.now + expected.ttl}
        if append.title is not NOT_GIVEN:
            noted[append.key]["title"] = append.title
        noted[append.key] |= waiting.get((append.key, revision), {})
    for key, fields in noted.items():
        change = updates[key].change  # type: ignore[assignment]
        for operator, changes in fields_update(fields).items():
            change.setdefault(operator, {}).update(changes)
    return list(updates.values())


def shared_state_updates(writes: Iterable[Append | NewSession]) -> list[Update]:
    """Build the updates of users' and then apps' states; later deltas come last."""
    deltas: dict[tuple[str, ...], list[Document]] = {}
    for write in writes:
        if write.delta.user:
            deltas.setdefault(write.key[:2], []).append(write.delta.user)
        if write.delta.app:
            deltas.setdefault(write.key[:1], []).append(write.delta.app)
    updates = []
    for owner in sorted(deltas, key=len, reverse=True):
        several = deltas[owner]
        fields = {
            STATE_PATH + name: it for delta in several for name, it in delta.items()
        }
        change = {"$set": fields, "$inc": {"revision": len(several)}}
        is_app = len(owner) == 1
        id_: Any = owner[0] if is_app else queries.user_state_id(*owner)
        collection = "app_states" if is_app else "user_states"
        updates.append(Update(collection, {"_id": id_}, change, upsert=True))
    return updates
