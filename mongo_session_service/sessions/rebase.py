"""Rebase: appends of a second writer, on top of what others appended meanwhile."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.adk_session import bring_in, mark, marker_of
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import once_written
from mongo_session_service.model.records import (
    Append,
    Marker,
    SessionKey,
    StoredSession,
)
from mongo_session_service.sessions.group_commit import Caller, Committer, SessionCopy
from mongo_session_service.sessions.store import (
    STALE,
    SessionStore,
    find_event,
    not_found,
)


def is_outrun(seen: Iterable[Event], missed: Iterable[Event], event: Event) -> bool:
    """Whether another run of an event's turn was faster.

    Args:
        seen: The log as the event's writer has it.
        missed: What others have appended since.
        event: What was to come next.
    """
    missed = [*missed]
    if _answered([event]) & _answered(missed) - _long_running([*seen, *missed]):
        return True
    turn = event.invocation_id
    others = [each for each in missed if turn and each.invocation_id == turn]
    return bool(_called([event]) and _called(others))


def unanswered(missed: Iterable[Event], event: Event) -> set[str | None]:
    """The calls that others have made and that have to be responded to before."""
    missed = [*missed]
    open_calls = _called(missed) - _answered(missed) - _long_running(missed)
    return open_calls - _answered([event])


def is_response(event: Event) -> bool:
    """Whether others may be waiting for an event."""
    return bool(event.get_function_responses())


def _called(events: Iterable[Event]) -> set[str | None]:
    """The ids of the function calls in events; names, where they have none."""
    return {
        call.id or call.name for each in events for call in each.get_function_calls()
    }


def _answered(events: Iterable[Event]) -> set[str | None]:
    return {
        response.id or response.name
        for each in events
        for response in each.get_function_responses()
    }


def _long_running(events: Iterable[Event]) -> set[str | None]:
    return {id_ for each in events for id_ in each.long_running_tool_ids or ()}


RESPONSE_LIMIT: Final = 10.0
"""Seconds that an append waits for the responses to others' function calls, in all."""

ATTEMPTS: Final = 100
"""How often an append may be overtaken."""

_LONGEST_PAUSE: Final = 0.05  # seconds

_UNANSWERED: Final = (
    "After waiting for {:.0f} seconds there is still a function call of another writer"
    " with no response, and nothing comes between the two unseen. Reload the session"
    " with get_session() to append all the same. Nothing was stored."
)
_OUTRUN: Final = (
    "Another run of the same turn has called functions, or has responded to the same"
    " call: only one of them may go on. Reload the session with get_session(). Nothing"
    " was stored."
)


class Rebaser:
    """Repeats appends that storage was ahead of, in an event loop."""

    def __init__(
        self, connection: Connection, store: SessionStore, committer: Committer
    ) -> None:
        self._connection = connection
        self._store = store
        self._committer = committer
        self._lines: WeakValueDictionary[SessionKey, asyncio.Lock]
        self._lines = WeakValueDictionary()
        """Where the late writers of a session stand, who would overtake each other in
        turns else."""

    async def commit(self, append: Append, copy: SessionCopy) -> None:
        """Return when an event is stored, after all that its session has missed.

        The session is shown what it has missed together with the event, not before.

        Args:
            append: The event, encoded.
            copy: The caller's session, which is to show it.

        Raises:
            StaleSessionError: another run of the same turn was faster, function calls
                of other writers stay without response for ``RESPONSE_LIMIT``, whichever
                they are, others came before ``ATTEMPTS`` times, the event is a rewind,
                or the stored session is another of the same id.
            SessionNotFoundError: the session is not stored any more.
        """
        # One for all it may wait for: calls come and go where many write.
        deadline = time.monotonic() + RESPONSE_LIMIT
        await self._let_finish(append.key, copy, deadline)
        try:
            await self._committer.commit(Caller(append, copy))
        except StaleSessionError:
            if copy.event.actions.rewind_before_invocation_id:
                raise  # it was made for a log that has grown
            await self._commit_late(append, copy, deadline)
        if all(each.id != copy.event.id for each in reversed(copy.session.events)):
            await self._show_stored(append.key, copy)

    async def _let_finish(
        self, key: SessionKey, copy: SessionCopy, deadline: float
    ) -> None:
        """Wait for the response to a call that another turn has just made.

        If there is none for long, the caller, who has seen the call, need not wait.
        """
        last, event = copy.session.events[-1:], copy.event
        if not unanswered(last, event) or last[0].invocation_id == event.invocation_id:
            return
        age = max(platform_time.get_time() - last[0].timestamp, 0.0)
        while time.monotonic() < deadline - age:
            head = await self._store.load_head(key)
            if head.marker.revision != copy.expected().revision:
                return
            await _pause()

    async def _commit_late(
        self, append: Append, copy: SessionCopy, deadline: float
    ) -> None:
        session, event = copy.session, copy.event
        line = self._lines.setdefault(append.key, asyncio.Lock())
        async with AsyncExitStack() as standing_in_line:
            if not is_response(event):  # which is what the others may wait for
                with suppress(TimeoutError):  # who has waited so long goes by itself
                    async with asyncio.timeout(deadline - time.monotonic()):
                        await standing_in_line.enter_async_context(line)
            attempts = 0
            while attempts < ATTEMPTS:
                missed = await self._missed(append.key, copy)
                if missed and is_outrun(session.events, missed.events, event):
                    raise StaleSessionError(_OUTRUN)
                if missed and unanswered(missed.events, event):
                    if time.monotonic() > deadline:
                        raise StaleSessionError(_UNANSWERED.format(RESPONSE_LIMIT))
                else:
                    if missed and await self._try(append, copy, missed):
                        return
                    attempts += 1
                await _pause()
            raise StaleSessionError(STALE)

    async def _missed(self, key: SessionKey, copy: SessionCopy) -> StoredSession | None:
        """What is stored, with the events that a session has not seen.

        None if it was read while it was written, which happens without transactions.
        """
        base = await self._base(key, copy)
        stored = await self._store.load_session(key, after_revision=base.revision)
        if stored is None:
            raise not_found(key.session_id)
        if stored.marker.create_time != base.create_time:
            raise StaleSessionError(STALE)  # it is another of the same id
        is_whole = base.revision + len(stored.events) == stored.marker.revision
        return stored if is_whole else None

    async def _base(self, key: SessionKey, copy: SessionCopy) -> Marker:
        """What a session has seen."""
        session, expected = copy.session, copy.expected()
        if marker_of(session) is not None:
            return expected
        # Rebuilt from JSON perhaps: only its events can tell which session it is.
        last = session.events[-1].id if session.events else ""
        found = await find_event(self._connection, key, last)
        if found is None:
            raise StaleSessionError(STALE)
        return expected._replace(revision=found["_id"]["revision"])

    async def _try(
        self, append: Append, copy: SessionCopy, missed: StoredSession
    ) -> bool:
        """Append after what was missed, unless there is more by now."""
        caller = Caller(append, replace(copy, missed=missed))
        try:
            await self._committer.commit(caller)
        except StaleSessionError:
            return False
        return True

    async def _show_stored(self, key: SessionKey, copy: SessionCopy) -> None:
        """Show an event that was stored before, and what the session has missed."""
        session, event = copy.session, copy.event
        with once_written(), suppress(StaleSessionError, SessionNotFoundError):
            missed = await self._missed(key, copy)
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
    # Not in step with who waits for the same.
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311  no secret
