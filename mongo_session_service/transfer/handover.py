"""Replay: copying sessions into any ``BaseSessionService``, by its public methods."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Literal

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.model.metadata import with_title
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import MongoSessionService
from mongo_session_service.transfer.sources import (
    EVERYTHING,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    Source,
    session_text,
)

_SCRATCH: Final = "mongo-session-service-handover"


@dataclass(slots=True)
class HandedOver:
    """The result of a replay."""

    sessions: int = 0
    events: int = 0
    known: int = 0
    """Sessions that it had; missing events were appended."""
    skipped: int = 0
    """Sessions with other events in the service; not changed."""
    replaced: int = 0
    """Known sessions that had other events."""


async def hand_over(
    source: Source,
    service: BaseSessionService,
    selection: Selection = EVERYTHING,
    *,
    on_conflict: Literal["fail", "skip", "replace"] = "fail",
    on_problem: Callable[[Problem], None] | None = None,
) -> HandedOver:
    """Copy the selected sessions of an open source into another session service.

    Sessions keep their ids, events and state. The public methods cannot set creation
    times, update times of sessions without events, labels and times to live. A title
    is a session's display name, until an event of it sets another.
    Events that the service has are not appended again, so the call may be repeated.

    Args:
        source: Where the sessions are.
        service: The target.
        selection: Which sessions to copy.
        on_conflict: What to do if the service has other events under a session's id.
        on_problem: Called with what is left out; by default that is an error.

    Raises:
        ConflictError: there is a conflict, and ``on_conflict`` is ``fail``.
        TransferError: something cannot be read.
    """
    replay = _Replay(service, on_conflict)
    async with aclosing(source.read(selection)) as items:
        async for item in items:
            match item:
                case Problem():
                    if on_problem is None:
                        raise TransferError(f"Cannot be handed over: {item}.")
                    on_problem(item)
                case SharedState():
                    replay.states.append(item)
                case SessionHeader():
                    await replay.begin_session(item)
                case Event():
                    await replay.append(item)
    await replay.set_shared_states()
    return replay.counts


@dataclass(slots=True)
class _Replay:
    service: BaseSessionService
    on_conflict: str
    counts: HandedOver = field(default_factory=HandedOver)
    states: list[SharedState] = field(default_factory=list)
    header: SessionHeader = field(init=False)
    session: Session | None = None
    """The session that is being copied; None if it is skipped."""
    known: list[Event] = field(default_factory=list)
    """The events that it had."""
    matched: int = 0
    """How many of them equal the source's so far."""

    async def begin_session(self, header: SessionHeader) -> None:
        """Load a session, or create it with its final state."""
        self.header, self.known, self.matched = header, [], 0
        self.session = await self.service.get_session(**header.key.id)
        if self.session is None:
            self.session = await self._create(header)
            self.counts.sessions += 1
        else:
            self.known = list(self.session.events)
            self.counts.known += 1

    async def _create(self, header: SessionHeader) -> Session:
        title = header.details.title if header.details else None
        state = with_title(dict(header.state), title)
        ours = self.service
        if isinstance(ours, MongoSessionService):  # no default_ttl for what is moved
            return await ours.create_session(**header.key.id, state=state, ttl=math.inf)
        return await self.service.create_session(**header.key.id, state=state)

    async def append(self, event: Event) -> None:
        """Append an event, unless the session has it."""
        if self.session and self.matched < len(self.known):
            if self.known[self.matched].id == event.id:
                self.matched += 1
                return
            await self._replace()
        if self.session:
            await self.service.append_event(self.session, event)
            self.counts.events += 1

    async def _replace(self) -> None:
        """Recreate the session with the events that agree, or skip it."""
        if self.on_conflict == "fail":
            where = session_text(self.header.key)
            raise ConflictError(f"The service has other events of {where}.")
        if self.on_conflict == "skip":
            self.session = None
            self.counts.skipped += 1
            return
        matched, self.known = self.known[: self.matched], []
        await self.service.delete_session(**self.header.key.id)
        self.session = await self._create(self.header)
        for event in matched:
            await self.service.append_event(self.session, event)
        self.counts.replaced += 1

    async def set_shared_states(self) -> None:
        """Set shared state, at the end: replayed events set it in another order.

        Only ``create_session`` sets state without an event, so a temporary session is
        created and deleted.
        """
        for shared in self.states:
            prefix = State.APP_PREFIX if shared.user_id is None else State.USER_PREFIX
            owner = SessionKey(shared.app_name, shared.user_id or _SCRATCH, _SCRATCH).id
            state = {prefix + key: value for key, value in shared.state.items()}
            await self.service.create_session(**owner, state=state)
            await self.service.delete_session(**owner)
