"""Appender: stores an event behind what its caller's session shows.

If it is to rebase, it stores a late event behind what others have appended as well.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.sessions.session import Session

from mongo_session_service.codec.adk_session import marker_of
from mongo_session_service.codec.documents import StoredSession, encode_append
from mongo_session_service.errors import (
    StorageUnavailableError,
    session_not_found_error,
    stale_session_error,
)
from mongo_session_service.model.records import Append, Marker, SessionKey, TurnFence
from mongo_session_service.sessions.reads import (
    SessionReads,
    find_event_document,
    find_session,
)
from mongo_session_service.sessions.writer import TOO_LATE, Writer
from mongo_session_service.storage.failures import reporting_stored_unread
from mongo_session_service.storage.kernel import Storage

Result = TypeVar("Result")

_LONGEST_PAUSE: Final = 0.05  # seconds

_UNANSWERED: Final = (
    "Another writer's function call still has no response after {:.0f} seconds, and no"
    " event may come between the two. To append anyway, reload the session with"
    " get_session(). Nothing was stored."
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
        is_rebasing: bool,
    ) -> Appended:
        """Store an event that follows what a caller's session shows.

        If others have appended since, it raises ``StaleSessionError``. If it is to
        rebase, it stores the event after theirs, unless that cannot be: a concurrent
        run of the same invocation was faster, function calls of other writers had no
        response for too long, other writers came first too often, the event is a
        rewind, or the stored session is a later one of the same id.
        """
        expected = marker_of(session) or await self._find_marker(key, session, event)
        # Late writers wait for responses, which must not wait for their room.
        if not (is_rebasing and event.get_function_responses()):
            await self.writer.buffer.await_room()
        append = encode_append(key, event, self.storage.hooks, fence)
        # What was appended through the same object meanwhile, it shows by now.
        expected = marker_of(session) or expected
        if not is_rebasing:
            return Appended(await self.writer.write(append, expected, session, started))
        # One deadline for all calls: with many writers there are always new ones.
        deadline = min(
            time.monotonic() + self.storage.limits.response_seconds,
            started + self.writer.write_timeout,
        )
        return await _RebasingAppend(
            self, append, session, event, expected, started, deadline
        ).write()

    async def _find_marker(
        self, key: SessionKey, session: Session, event: Event
    ) -> Marker:
        """Find what a session without a marker has seen, as one built from JSON.

        Its last event shows it. Without events it is current if storage is no newer, or
        holds this event alone. Revision -1 is that of a stale session.
        """
        stored = await find_session(self.storage, key)
        marker, begins = stored.marker, stored.begins
        last = session.events[-1] if session.events else event
        found = await find_event_document(self.storage, key, last.id)
        revision = found["_id"]["revision"] if found else -1
        if not session.events:
            if not found and stored.updated <= session.last_update_time:
                return marker
            revision = begins if revision == begins + 1 else -1
        return marker._replace(revision=revision)


@dataclass(slots=True)
class _RebasingAppend:
    """One append of a service that rebases: it may come after those of others."""

    appender: Appender
    append: Append
    session: Session
    """The caller's, as it has been read."""
    event: Event
    expected: Marker
    started: float
    """When the call began."""
    deadline: float
    """When it stops to wait for others."""

    async def write(self) -> Appended:
        """Store the event after all events that its session has missed."""
        await self._await_response()
        try:
            marker = await self.appender.writer.write(
                self.append, self._marker, self.session, self.started
            )
            appended = Appended(marker)
        except StaleSessionError:
            if self.event.actions.rewind_before_invocation_id:
                raise  # it was computed from a log that has grown
            appended = await self._write_late()
        shown = (each.id for each in reversed(self.session.events))
        if appended.marker is None and self.event.id not in shown:
            return await self._find_earlier_attempt()
        return appended

    @property
    def _marker(self) -> Marker:
        return marker_of(self.session) or self.expected

    async def _read_in_time(self, read: Awaitable[Result]) -> Result:
        limit = self.appender.writer.write_timeout
        try:
            async with asyncio.timeout(
                self.started + limit - time.monotonic()
            ) as timer:
                return await read
        except TimeoutError:
            if not timer.expired():
                raise
            raise StorageUnavailableError(TOO_LATE.format(limit)) from None

    async def _await_response(self) -> None:
        """Wait for the response to a function call that another writer has just made.

        The caller has seen the call, and so waits only while the call is recent.
        """
        key, event = self.append.key, self.event
        last = self.session.events[-1:]
        if not unanswered(last, event) or last[0].invocation_id == event.invocation_id:
            return
        age = max(platform_time.get_time() - last[0].timestamp, 0.0)
        while time.monotonic() < self.deadline - age:
            reading = find_session(self.appender.storage, key)
            stored = await self._read_in_time(reading)
            if stored.revision != self._marker.revision:
                return
            await _pause()

    async def _write_late(self) -> Appended:
        """Store the event behind those of others, once these leave it a place."""
        appender, append, event = self.appender, self.append, self.event
        lock = appender.locks.setdefault(append.key, asyncio.Lock())
        async with AsyncExitStack() as held:
            if not event.get_function_responses():  # the lock's holder may await one
                with suppress(TimeoutError):  # after the deadline it needs no lock
                    async with asyncio.timeout(self.deadline - time.monotonic()):
                        await held.enter_async_context(lock)
            attempts = 0
            while attempts < appender.storage.limits.rebase_attempts:
                missed = await self._read_in_time(self._load_missed())
                if missed and is_overtaken(self.session.events, missed.events, event):
                    raise StaleSessionError(_OUTRUN)
                if missed and unanswered(missed.events, event):
                    if time.monotonic() > self.deadline:
                        waited = time.monotonic() - self.started
                        raise StaleSessionError(_UNANSWERED.format(waited))
                else:
                    if missed:
                        with suppress(StaleSessionError):  # others have appended again
                            marker = await appender.writer.write(
                                append, missed.marker, started=self.started
                            )
                            return Appended(marker, missed)
                    attempts += 1
                await _pause()
            raise stale_session_error(append.key.session_id)

    async def _load_missed(self) -> StoredSession | None:
        """Load the session, with the events that the caller's has not seen.

        None if an append was half visible, which happens without transactions.
        """
        key, seen, reads = self.append.key, self._marker, self.appender.reads
        stored = await reads.load_session(key, after_revision=seen.revision)
        if stored is None:
            raise session_not_found_error(key.session_id)
        is_other = stored.marker.create_time != seen.create_time
        if (
            is_other or seen.revision < stored.record.begins
        ):  # what it missed was trimmed
            raise stale_session_error(
                key.session_id, seen.describe_change(stored.marker)
            )
        is_whole = seen.revision + len(stored.events) == stored.marker.revision
        return stored if is_whole else None

    async def _find_earlier_attempt(self) -> Appended:
        """Find the place of an event that an earlier attempt has stored."""
        with (
            reporting_stored_unread(),
            suppress(StaleSessionError, SessionNotFoundError),
        ):
            missed = await self._read_in_time(self._load_missed())
            ids = [each.id for each in missed.events] if missed else []
            if missed is not None and self.event.id in ids:
                index = ids.index(self.event.id)
                revision = missed.marker.revision - len(ids) + index
                record, events = missed.record.at(revision), missed.events[:index]
                before = missed._replace(record=record, events=events)
                return Appended(before.marker.after_append(), before, missed)
        return Appended(None)


async def _pause() -> None:
    # Random, so that writers that wait for the same do not read at the same time.
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  no secret


def is_overtaken(seen: Iterable[Event], missed: Iterable[Event], event: Event) -> bool:
    """True if a concurrent run of an event's invocation has overtaken it.

    Its writer has ``seen`` the log, but not what it has ``missed``.
    """
    missed = [*missed]
    if _answered_ids([event]) & _answered_ids(missed) - _long_running_ids(
        [*seen, *missed]
    ):
        return True
    id_ = event.invocation_id
    others = [each for each in missed if id_ and each.invocation_id == id_]
    return bool(_call_ids([event]) and _call_ids(others))


def unanswered(missed: Iterable[Event], event: Event) -> set[str | None]:
    """Find other writers' function calls whose responses must precede an event."""
    missed = [*missed]
    open_calls = _call_ids(missed) - _answered_ids(missed) - _long_running_ids(missed)
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
