"""Rebase: a late writer's append, repeated on top of what others have appended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack, suppress
from itertools import chain
from typing import Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time
from google.adk.sessions.session import Session

from mongo_session_service.codec.adk_session import marker_of
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.translation import reporting_stored_unread
from mongo_session_service.errors import (
    StorageUnavailableError,
    session_not_found_error,
    stale_session_error,
)
from mongo_session_service.model import records
from mongo_session_service.sessions import store as storage
from mongo_session_service.sessions.writer import TOO_LATE, Writer

Result = TypeVar("Result")


def is_outrun(seen: Iterable[Event], missed: Iterable[Event], event: Event) -> bool:
    """Whether a concurrent run of an event's turn has overtaken it.

    Its writer has ``seen`` the log, but not what it has ``missed``.
    """
    missed = [*missed]
    if _answered_ids([event]) & _answered_ids(missed) - _long_running_ids(
        [*seen, *missed]
    ):
        return True
    turn = event.invocation_id
    others = [each for each in missed if turn and each.invocation_id == turn]
    return bool(_call_ids([event]) and _call_ids(others))


def unanswered(missed: Iterable[Event], event: Event) -> set[str | None]:
    """The function calls of other writers whose responses must precede an event."""
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


_LONGEST_PAUSE: Final = 0.05  # seconds

_UNANSWERED: Final = (
    "Another writer's function call still has no response after {:.0f} seconds, and no"
    " event may come between the two. To append anyway, reload the session with"
    " get_session(). Nothing was stored."
)
_OUTRUN: Final = (
    "Another run of the same turn has called functions, or has responded to the same"
    " call: only one run may continue. Reload the session with get_session(), and let"
    " runs wait for each other with turn(). Nothing was stored."
)


class LateAppend(NamedTuple):
    """A caller's append, which may come after those of others."""

    append: records.Append
    session: Session
    """The caller's, as it has been read."""
    event: Event
    expected: records.Marker
    started: float
    """When the call began."""

    def marker(self) -> records.Marker:
        """Return the marker of what the caller's session shows."""
        return marker_of(self.session) or self.expected


class Rebased(NamedTuple):
    """A stored event's place among those of other writers."""

    marker: records.Marker | None
    """The session right after the event; None if the caller's shows it already."""
    missed: records.StoredSession | None = None
    """The session with the events of others before it."""
    later: records.StoredSession | None = None
    """The session with the events of others after it, if it was stored before."""


class Rebaser:
    """Repeats the stale appends of one event loop."""

    def __init__(
        self, connection: Connection, store: storage.SessionStore, writer: Writer
    ) -> None:
        self._connection = connection
        self._limits = connection.limits
        self._store = store
        self._writer = writer
        self._locks: WeakValueDictionary[records.SessionKey, asyncio.Lock]
        self._locks = WeakValueDictionary()
        """One per session: its late writers would keep overtaking each other."""

    async def write_rebased(self, late: LateAppend) -> Rebased:
        """Store an event after all events that its session has missed.

        If that cannot be, it raises ``StaleSessionError``: a concurrent run of the same
        invocation was faster, function calls of other writers had no response for too
        long, other writers came first too often, the event is a rewind, or the stored
        session is a later one of the same id.
        """
        append, session, event, _, started = late
        # One deadline for all calls: with many writers there are always new ones.
        deadline = time.monotonic() + min(
            self._limits.response_seconds, self._seconds_left(late)
        )
        await self._await_response(late, deadline)
        try:
            written = Rebased(
                await self._writer.write(append, late.marker(), session, started)
            )
        except StaleSessionError:
            if event.actions.rewind_before_invocation_id:
                raise  # it was computed from a log that has grown
            written = await self._write_late(late, deadline)
        is_shown = any(each.id == event.id for each in reversed(session.events))
        if written.marker is None and not is_shown:
            return await self._load_stored(late)
        return written

    def _seconds_left(self, late: LateAppend) -> float:
        return late.started + self._writer.write_timeout - time.monotonic()

    async def _read_in_time(self, late: LateAppend, read: Awaitable[Result]) -> Result:
        """Return what a read returns, within the time of the call."""
        try:
            async with asyncio.timeout(self._seconds_left(late)) as timer:
                return await read
        except TimeoutError:
            if not timer.expired():
                raise
            message = TOO_LATE.format(self._writer.write_timeout)
            raise StorageUnavailableError(message) from None

    async def _await_response(self, late: LateAppend, deadline: float) -> None:
        """Wait for the response to a function call that another turn has just made.

        The caller has seen the call, and so waits only while the call is recent.
        """
        last, event = late.session.events[-1:], late.event
        if not unanswered(last, event) or last[0].invocation_id == event.invocation_id:
            return
        age = max(platform_time.get_time() - last[0].timestamp, 0.0)
        while time.monotonic() < deadline - age:
            head = await self._read_in_time(
                late, self._store.load_head(late.append.key)
            )
            if head.marker.revision != late.marker().revision:
                return
            await _pause()

    async def _write_late(self, late: LateAppend, deadline: float) -> Rebased:
        append, session, event, _, started = late
        lock = self._locks.setdefault(append.key, asyncio.Lock())
        async with AsyncExitStack() as held:
            if not event.get_function_responses():  # the lock's holder may await one
                with suppress(TimeoutError):  # after the deadline it needs no lock
                    async with asyncio.timeout(deadline - time.monotonic()):
                        await held.enter_async_context(lock)
            attempts = 0
            while attempts < self._limits.rebase_attempts:
                missed = await self._read_in_time(late, self._load_missed(late))
                if missed and is_outrun(session.events, missed.events, event):
                    raise StaleSessionError(_OUTRUN)
                if missed and unanswered(missed.events, event):
                    if time.monotonic() > deadline:
                        waited = time.monotonic() - started
                        raise StaleSessionError(_UNANSWERED.format(waited))
                else:
                    if missed:
                        with suppress(StaleSessionError):  # others have appended again
                            marker = await self._writer.write(
                                append, missed.marker, started=started
                            )
                            return Rebased(marker, missed)
                    attempts += 1
                await _pause()
            raise stale_session_error(append.key.session_id)

    async def _load_missed(self, late: LateAppend) -> records.StoredSession | None:
        """Load the session, with the events that the caller's has not seen.

        None if an append was half visible, which happens without transactions.
        """
        key, base = late.append.key, await self._load_base(late)
        stored = await self._store.load_session(key, after_revision=base.revision)
        if stored is None:
            raise session_not_found_error(key.session_id)
        is_other = stored.marker.create_time != base.create_time
        if is_other or base.revision < stored.log_begins:  # what it missed was trimmed
            raise stale_session_error(
                key.session_id, base.describe_change(stored.marker)
            )
        is_whole = base.revision + len(stored.events) == stored.marker.revision
        return stored if is_whole else None

    async def _load_base(self, late: LateAppend) -> records.Marker:
        """Find the marker of what the caller's session has seen."""
        session, key = late.session, late.append.key
        if marker_of(session) is not None:
            return late.marker()
        # Perhaps rebuilt from JSON: only its last event tells what it has seen.
        last = session.events[-1].id if session.events else ""
        found = await storage.find_event_document(self._connection, key, last)
        if found is None:
            raise stale_session_error(key.session_id)
        return late.marker()._replace(revision=found["_id"]["revision"])

    async def _load_stored(self, late: LateAppend) -> Rebased:
        """Find the place of an event that an earlier attempt has stored."""
        with (
            reporting_stored_unread(),
            suppress(StaleSessionError, SessionNotFoundError),
        ):
            missed = await self._read_in_time(late, self._load_missed(late))
            ids = [each.id for each in missed.events] if missed else []
            if missed is not None and late.event.id in ids:
                index = ids.index(late.event.id)
                revision = missed.marker.revision - len(ids) + index
                before = missed._replace(
                    marker=missed.marker._replace(revision=revision),
                    events=missed.events[:index],
                )
                return Rebased(before.marker.after_append(), before, missed)
        return Rebased(None)


async def _pause() -> None:
    # Random, so that writers that wait for the same do not read at the same time.
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  no secret
