"""Replay: copying sessions into any ``BaseSessionService``, by its public methods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from mongo_session_service.errors import ConflictError, TransferError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import records

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
    source: records.Source,
    service: BaseSessionService,
    selection: records.Selection = records.EVERYTHING,
    *,
    on_conflict: Literal["fail", "skip", "replace"] = "fail",
    on_problem: Callable[[records.Problem], None] | None = None,
) -> HandedOver:
    """Copy the selected sessions of an open source into another session service.

    Sessions keep their ids, events and state. The public methods cannot set creation
    times, update times of sessions without events, titles, labels and times to live.
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
    taker = _Taker(service, on_conflict)
    async with aclosing(source.read(selection)) as items:
        async for item in items:
            match item:
                case records.Problem():
                    if on_problem is None:
                        raise TransferError(f"Cannot be handed over: {item}.")
                    on_problem(item)
                case records.SharedState():
                    taker.states.append(item)
                case records.SessionHeader():
                    await taker.begin(item)
                case Event():
                    await taker.append(item)
    await taker.give_states()
    return taker.given


class _Taker:
    def __init__(self, service: BaseSessionService, on_conflict: str) -> None:
        self.given = HandedOver()
        self.states: list[records.SharedState] = []
        self._service = service
        self._on_conflict = on_conflict
        self._session: Session | None = None
        self._state: dict[str, Any] = {}
        self._known: list[Event] = []
        self._agreed = 0
        """How many of the known events equal the source's so far."""

    async def begin(self, header: records.SessionHeader) -> None:
        """Load a session, or create it with its final state."""
        self._state = dict(header.state)
        self._agreed = 0
        self._session = await self._service.get_session(**header.key.id)
        if self._session is None:
            self._known = []
            self._session = await self._create(header.key)
            self.given.sessions += 1
        else:
            self._known = list(self._session.events)
            self.given.known += 1

    async def _create(self, key: SessionKey) -> Session:
        return await self._service.create_session(**key.id, state=dict(self._state))

    async def append(self, event: Event) -> None:
        """Append an event, unless the session has it."""
        session = self._session
        if session is None:
            return
        if self._agreed < len(self._known):
            if self._known[self._agreed].id == event.id:
                self._agreed += 1
                return
            session = await self._replaced(session)
            if session is None:
                return
        await self._service.append_event(session, event)
        self.given.events += 1

    async def _replaced(self, session: Session) -> Session | None:
        """Recreate a session with the events that agree; None if it is skipped."""
        key = SessionKey(session.app_name, session.user_id, session.id)
        if self._on_conflict == "fail":
            message = f"The service has other events of {records.named(key)}."
            raise ConflictError(message)
        if self._on_conflict == "skip":
            self._session = None
            self.given.skipped += 1
            return None
        agreed, self._known = self._known[: self._agreed], []
        await self._service.delete_session(**key.id)
        self._session = recreated = await self._create(key)
        for event in agreed:
            await self._service.append_event(recreated, event)
        self.given.replaced += 1
        return recreated

    async def give_states(self) -> None:
        """Set shared state, at the end: replayed events set it in another order.

        Only ``create_session`` sets state without an event, so a temporary session is
        created and deleted.
        """
        for shared in self.states:
            prefix = State.APP_PREFIX if shared.user_id is None else State.USER_PREFIX
            owner = {
                "app_name": shared.app_name,
                "user_id": shared.user_id or _SCRATCH,
                "session_id": _SCRATCH,
            }
            state = {prefix + key: value for key, value in shared.state.items()}
            await self._service.create_session(**owner, state=state)
            await self._service.delete_session(**owner)
