"""Memory feeder: finished invocations of the event log, for an ADK memory service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.session import Session

from mongo_session_service.changes.change import Change
from mongo_session_service.codec import documents
from mongo_session_service.codec.adk_session import to_session
from mongo_session_service.codec.record import COPIED_BY
from mongo_session_service.consumers.handler import handler_storage
from mongo_session_service.errors import InvalidInputError, StorageUnavailableError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import LogRange, read_log
from mongo_session_service.sessions.reads import SessionReads
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.tasks import uninterrupted

__all__ = ["remember"]

logger = logging.getLogger(__name__)

_ON_MONGODB: tuple[type, ...] = ()
"""ADK's memory service on MongoDB, if this release of ADK has it."""
with suppress(ImportError):
    from google.adk.integrations.mongodb import MongoDbMemoryService

    _ON_MONGODB = (MongoDbMemoryService,)

_EVENTS_PER_PAGE: Final = 8
"""Events read at once: many invocations have no more."""

_GAP: Final = 32
"""Events of others after which an invocation's message is the first event of it."""


def remember(memory_service: BaseMemoryService) -> Callable[[Change], Awaitable[None]]:
    """A handler for ``consumer.run`` that feeds what is finished to a memory service.

    ::

        async with service.consumer("memory", app_name="shop") as consumer:
            await consumer.run(remember(memory_service))

    Once the final response of an invocation is stored, its events from the user's
    message on are read from storage, through the consumer that runs the handler, and
    given to ``add_events_to_memory``. Later events of the invocation follow one by one.
    A memory service without that method gets the whole session by
    ``add_session_to_memory`` each time. After a crash the latest call may be repeated,
    with the same event ids. Sessions that are deleted or have expired meanwhile are
    left out, and so are the events that a fork has copied: they are remembered of the
    session where they were appended.

    When a session is deleted, so is its memory: by ``delete_session_memory(*, app_name,
    user_id, session_id)`` where the memory service has it, and in ADK's
    ``InMemoryMemoryService`` and ``MongoDbMemoryService``. Others keep it, with one
    warning in the log.

    Args:
        memory_service: Any memory service of ADK's interface.

    Raises:
        InvalidInputError: ``memory_service`` is not a ``BaseMemoryService``.
    """
    if not isinstance(memory_service, BaseMemoryService):
        raise InvalidInputError(
            "memory_service must be an instance of ADK's BaseMemoryService, not"
            f" {type(memory_service).__name__}."
        )
    return _MemoryFeeder(memory_service).handle


class _MemoryFeeder:
    """Adds events to one memory service, in batches that storage determines."""

    def __init__(self, memory: BaseMemoryService) -> None:
        self._memory: Any = memory
        self._has_warned = False

    async def handle(self, change: Change) -> None:
        key = change.session_key
        if key is None:
            return
        log = _SessionLog(handler_storage(), key)
        if change.kind in {"deleted", "redacted"}:
            await self._forget(key)
            # It may be the end of an earlier session of this id, or of an event.
            async for revision, event in log.events():
                await self._remember(log, revision, event)
        elif change.event and change.revision and change.copied_by != "fork":
            await self._remember(log, change.revision, change.event)

    async def _remember(self, log: _SessionLog, revision: int, event: Event) -> None:
        due = await log.events_due(revision, event)
        if not due:
            return
        try:
            await self._memory.add_events_to_memory(
                app_name=log.key.app_name,
                user_id=log.key.user_id,
                session_id=log.key.session_id,
                events=due,
            )
        except NotImplementedError:
            session = await log.session(event)
            if session is not None:
                await self._memory.add_session_to_memory(session)

    async def _forget(self, key: SessionKey) -> None:
        memory = self._memory
        if hasattr(memory, "delete_session_memory"):
            with suppress(NotImplementedError):
                await memory.delete_session_memory(**key.id)
                return
        if isinstance(memory, InMemoryMemoryService):
            emptied = Session(id=key.session_id, app_name=key[0], user_id=key[1])
            await memory.add_session_to_memory(emptied)
        elif isinstance(memory, _ON_MONGODB):
            # ADK has no method for it. In a thread, which no cancellation ends.
            memories = self._memory._memories()  # noqa: SLF001
            await uninterrupted(asyncio.to_thread(memories.delete_many, key.id))
        elif not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s cannot find memory by session: it keeps what it remembers of"
                " deleted sessions. Give it a method delete_session_memory(*, app_name,"
                " user_id, session_id).",
                type(memory).__name__,
            )


class _SessionLog:
    """The event log of a session, as a memory service is to get it."""

    def __init__(self, storage: Storage, key: SessionKey) -> None:
        self._storage = storage
        self.key = key

    async def events_due(self, revision: int, event: Event) -> list[Event]:
        """Return the events to add after one: its invocation, itself, or none.

        The oldest comes first. Nothing if the session is no longer stored.
        """
        is_ending = _ends_invocation(event)
        if _is_user_message(event) or not (is_ending or event.invocation_id):
            return []
        invocation: list[Event] = []
        is_begun, gap = False, 0
        async for each in self._events_back_from(revision, event):
            if each.invocation_id != event.invocation_id:
                gap += 1
                if is_begun and gap == _GAP:
                    break
                continue
            if invocation and _ends_invocation(each):
                return _events_after_response(invocation[::-1])
            is_begun, gap = is_begun or _is_user_message(each), 0
            if is_begun and not is_ending:
                return []
            invocation.append(each)
        return invocation[::-1] if is_ending else []

    async def _events_back_from(
        self, revision: int, event: Event
    ) -> AsyncIterator[Event]:
        """Yield the events from one back to the first, or to a copy, as of one time.

        Nothing if the session is not stored any more, or is a later one of the same id.
        """
        # Not before the change that is handled: a new primary may not know yet that it
        # is committed.
        as_of = await self._storage.latest_time(patient=True)
        wanted = LogRange(
            before=revision + 1, newest_first=True, page_events=_EVENTS_PER_PAGE
        )
        is_first = True
        with suppress(SessionNotFoundError):
            async for page in read_log(self._storage, self.key, wanted, as_of=as_of):
                if is_first and not (page and page[0]["event"].get("id") == event.id):
                    return
                is_first = False
                for each in page:
                    if each.get(COPIED_BY) == "fork":
                        return
                    yield documents.decode_event(each, self._storage.hooks)

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """Yield its own events with their revisions, if the session is stored."""
        wanted = LogRange(page_events=_EVENTS_PER_PAGE)
        with suppress(SessionNotFoundError):
            async for page in read_log(self._storage, self.key, wanted):
                for each in page:
                    if each.get(COPIED_BY) != "fork":
                        event = documents.decode_event(each, self._storage.hooks)
                        yield each["_id"]["revision"], event

    async def session(self, event: Event) -> Session | None:
        """Load the session with its own events; None if it is not stored any more."""
        reads = SessionReads(self._storage)
        stored = await reads.load_session(self.key)
        if stored is None:
            return None
        session = to_session(stored)
        if all(each.id != event.id for each in session.events):
            raise StorageUnavailableError(
                "The server does not know yet that the event is committed; try again."
            )
        log = queries.events_after(self.key, stored.record.begins)
        copies = {**log, COPIED_BY: "fork"}
        count = Query("events", copies, then=({"$count": "copies"},))
        (counts,) = await self._storage.read(count, patient=True)
        for each in counts:
            del session.events[: each["copies"]]
        return session


def _is_user_message(event: Event) -> bool:
    """True if the event is the user's own, and no response of a tool."""
    return event.author == "user" and not event.get_function_responses()


def _ends_invocation(event: Event) -> bool:
    """True if an invocation ends with it: a final response, not a state change."""
    has_content = event.content is not None and bool(event.content.parts)
    is_response = has_content or bool(event.error_code) or event.output is not None
    return event.author != "user" and is_response and event.is_final_response()


def _events_after_response(events: list[Event]) -> list[Event]:
    """Return what to hand over when an invocation goes on after a final response.

    Up to the user's next message each has followed by itself. Events without an
    invocation id follow nothing: they would all be of one invocation.
    """
    if not events[-1].invocation_id:
        return events
    begun = (n for n, each in enumerate(events) if _is_user_message(each))
    return events[next(begun, len(events) - 1) :]
