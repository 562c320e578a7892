"""Rebase: a late writer's append, repeated on top of what others have appended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import chain
from typing import Final
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.adk_session import bring_in, mark, marker_of
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import once_written
from mongo_session_service.errors import session_not_found_error, stale_session_error
from mongo_session_service.model import records
from mongo_session_service.sessions import store as storage
from mongo_session_service.sessions.batches import Caller, SessionCopy
from mongo_session_service.sessions.group_commit import Committer


def is_outrun(seen: Iterable[Event], missed: Iterable[Event], event: Event) -> bool:
    """Whether a concurrent run of an event's turn has overtaken it.

    Args:
        seen: The log as the event's writer has read it.
        missed: What others have appended since.
        event: The event that its writer appends.
    """
    missed = [*missed]
    if _answered([event]) & _answered(missed) - _long_running([*seen, *missed]):
        return True
    turn = event.invocation_id
    others = [each for each in missed if turn and each.invocation_id == turn]
    return bool(_called([event]) and _called(others))


def unanswered(missed: Iterable[Event], event: Event) -> set[str | None]:
    """The function calls of other writers whose responses must precede an event."""
    missed = [*missed]
    open_calls = _called(missed) - _answered(missed) - _long_running(missed)
    return open_calls - _answered([event])


def is_response(event: Event) -> bool:
    """Whether an event responds to a function call, which others may wait for."""
    return bool(event.get_function_responses())


def _called(events: Iterable[Event]) -> set[str | None]:
    """The ids of the function calls in events; names, where they have none."""
    calls = chain.from_iterable(each.get_function_calls() for each in events)
    return {each.id or each.name for each in calls}


def _answered(events: Iterable[Event]) -> set[str | None]:
    responses = chain.from_iterable(each.get_function_responses() for each in events)
    return {each.id or each.name for each in responses}


def _long_running(events: Iterable[Event]) -> set[str | None]:
    return {id_ for each in events for id_ in each.long_running_tool_ids or ()}


RESPONSE_LIMIT: Final = 10.0
"""Seconds in total that an append waits for responses to other function calls."""

ATTEMPTS: Final = 100
"""How often another writer may append first."""

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


class Rebaser:
    """Repeats the stale appends of one event loop."""

    def __init__(
        self, connection: Connection, store: storage.SessionStore, committer: Committer
    ) -> None:
        self._connection = connection
        self._store = store
        self._committer = committer
        self._locks: WeakValueDictionary[records.SessionKey, asyncio.Lock]
        self._locks = WeakValueDictionary()
        """One per session: its late writers would keep overtaking each other."""

    async def commit(self, append: records.Append, copy: SessionCopy) -> None:
        """Store an event after all events that its session has missed.

        The caller's session shows what it has missed together with the event, not
        earlier.

        Args:
            append: The event, encoded.
            copy: The caller's session, which shows the event afterwards.

        Raises:
            StaleSessionError: a concurrent run of the same turn was faster, function
                calls of other writers had no response for ``RESPONSE_LIMIT``, other
                writers came first ``ATTEMPTS`` times, the event is a rewind, or the
                stored session is a later one of the same id.
            SessionNotFoundError: the session is no longer stored.
        """
        # One deadline for all calls: with many writers there are always new ones.
        deadline = time.monotonic() + min(RESPONSE_LIMIT, self._committer.left(copy))
        await self._let_finish(append.key, copy, deadline)
        try:
            await self._committer.commit(Caller(append, copy))
        except StaleSessionError:
            if copy.event.actions.rewind_before_invocation_id:
                raise  # it was computed from a log that has grown
            await self._commit_late(append, copy, deadline)
        if all(each.id != copy.event.id for each in reversed(copy.session.events)):
            await self._show_stored(append.key, copy)

    async def _let_finish(
        self, key: records.SessionKey, copy: SessionCopy, deadline: float
    ) -> None:
        """Wait for the response to a function call that another turn has just made.

        The caller has seen the call, and so waits only while the call is recent.
        """
        last, event = copy.session.events[-1:], copy.event
        if not unanswered(last, event) or last[0].invocation_id == event.invocation_id:
            return
        age = max(platform_time.get_time() - last[0].timestamp, 0.0)
        while time.monotonic() < deadline - age:
            head = await self._committer.reading(copy, self._store.load_head(key))
            if head.marker.revision != copy.expected().revision:
                return
            await _pause()

    async def _commit_late(
        self, append: records.Append, copy: SessionCopy, deadline: float
    ) -> None:
        session, event = copy.session, copy.event
        lock = self._locks.setdefault(append.key, asyncio.Lock())
        async with AsyncExitStack() as held:
            if not is_response(event):  # the lock's holder may wait for a response
                with suppress(TimeoutError):  # after the deadline it needs no lock
                    async with asyncio.timeout(deadline - time.monotonic()):
                        await held.enter_async_context(lock)
            attempts = 0
            while attempts < ATTEMPTS:
                missing = self._missed(append.key, copy)
                missed = await self._committer.reading(copy, missing)
                if missed and is_outrun(session.events, missed.events, event):
                    raise StaleSessionError(_OUTRUN)
                if missed and unanswered(missed.events, event):
                    if time.monotonic() > deadline:
                        waited = time.monotonic() - copy.started
                        raise StaleSessionError(_UNANSWERED.format(waited))
                else:
                    if missed and await self._try(append, copy, missed):
                        return
                    attempts += 1
                await _pause()
            raise stale_session_error(append.key.session_id)

    async def _missed(
        self, key: records.SessionKey, copy: SessionCopy
    ) -> records.StoredSession | None:
        """The stored session, with the events that its copy has not seen.

        None if an append was half visible, which happens without transactions.
        """
        base = await self._base(key, copy)
        stored = await self._store.load_session(key, after_revision=base.revision)
        if stored is None:
            raise session_not_found_error(key.session_id)
        if stored.marker.create_time != base.create_time:
            raise stale_session_error(
                key.session_id, base.describe_change(stored.marker)
            )
        if base.revision < stored.log_begins:  # what it has missed was trimmed
            raise stale_session_error(
                key.session_id, base.describe_change(stored.marker)
            )
        is_whole = base.revision + len(stored.events) == stored.marker.revision
        return stored if is_whole else None

    async def _base(self, key: records.SessionKey, copy: SessionCopy) -> records.Marker:
        """The marker of what a copy has seen."""
        session, expected = copy.session, copy.expected()
        if marker_of(session) is not None:
            return expected
        # Perhaps rebuilt from JSON: only its last event tells what it has seen.
        last = session.events[-1].id if session.events else ""
        found = await storage.find_event_document(self._connection, key, last)
        if found is None:
            raise stale_session_error(key.session_id)
        return expected._replace(revision=found["_id"]["revision"])

    async def _try(
        self, append: records.Append, copy: SessionCopy, missed: records.StoredSession
    ) -> bool:
        """records.Append after what was missed; False if others have appended again."""
        caller = Caller(append, replace(copy, missed=missed))
        try:
            await self._committer.commit(caller)
        except StaleSessionError:
            return False
        return True

    async def _show_stored(self, key: records.SessionKey, copy: SessionCopy) -> None:
        """Show an event that an earlier attempt stored, and what was missed."""
        session, event = copy.session, copy.event
        with once_written(), suppress(StaleSessionError, SessionNotFoundError):
            missing = self._missed(key, copy)
            missed = await self._committer.reading(copy, missing)
            ids = [each.id for each in missed.events] if missed else []
            if missed is None or event.id not in ids:
                return
            index = ids.index(event.id)
            revision = missed.marker.revision - len(ids) + index
            before = missed._replace(
                marker=missed.marker._replace(revision=revision),
                events=missed.events[:index],
            )
            bring_in(session, before)
            await copy.show(before.marker.next())
            bring_in(session, missed)
            mark(session, missed.marker)
            session.last_update_time = missed.update_time


async def _pause() -> None:
    # Random, so that writers that wait for the same do not read at the same time.
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  no secret
