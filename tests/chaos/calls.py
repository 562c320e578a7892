"""Calls of the service that write down what they ask and what they are answered."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pymongo
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig

from chaos.history import Journal, Key, Operation
from mongo_session_service import (
    MongoSessionService,
    StorageError,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from mongo_session_service.codec.adk_session import marker_of

LATEST = 10
"""Events that a read asks for."""
_PAUSE = 0.05  # seconds before what failed is tried again
_REFUSALS = (
    StaleSessionError,
    SessionNotFoundError,
    AlreadyExistsError,
    StorageError,
)


def ids(key: Key) -> dict[str, str]:
    """A session's ids as the service takes them."""
    return {"app_name": key.app, "user_id": key.user, "session_id": key.session}


class Calls:
    """One client of a service, which has its own random course."""

    def __init__(
        self,
        service: MongoSessionService,
        journal: Journal,
        loop: str,
        name: str,
        chance: random.Random,
    ) -> None:
        self._service = service
        self._journal = journal
        self._loop = loop
        self._name = name
        self._chance = chance
        self._numbers = itertools.count()

    async def create(
        self, key: Key, delta: dict[str, Any], *, is_owner: bool
    ) -> Session | None:
        """Create a session; None if it was not, or if nobody knows."""
        call = self._begin("create", key, is_owner=is_owner)
        call.delta = {"born": call.name, **dict.fromkeys(delta, call.name)}
        self._journal.call(call)
        session: Session | None = None
        async with self._answered(call):
            session = await self._service.create_session(
                **ids(key), state=dict(call.delta)
            )
        if call.outcome == "unknown":
            # Another will show whether it was stored: it is not for sure otherwise.
            return None
        return session

    async def append(
        self, session: Session, delta: dict[str, Any], *, is_owner: bool = False
    ) -> bool:
        """Append an event, again and again while nobody knows; whether it is stored."""
        key = Key(session.app_name, session.user_id, session.id)
        call = self._begin("append", key, is_owner=is_owner)
        call.born = str(session.state["born"])
        call.delta = {"last": call.name, **dict.fromkeys(delta, call.name)}
        self._journal.call(call)
        event = Event(
            id=call.name, author="x", actions=EventActions(state_delta=call.delta)
        )
        while True:
            async with self._answered(call, lambda: _shows(session, event)):
                await self._service.append_event(session, event)
            if call.outcome != "unknown":
                return call.outcome == "ok"
            await asyncio.sleep(_PAUSE)

    async def get(self, key: Key) -> Session | None:
        """Read a session with its latest events."""
        call = self._begin("get", key)
        self._journal.call(call)
        session: Session | None = None

        def found() -> dict[str, Any]:
            if session is None:
                return {}
            return {
                "born": session.state.get("born"),
                "revision": _revision(session),
                "state": session.state,
                "events": [event.id for event in session.events],
            }

        async with self._answered(call, found):
            session = await self._service.get_session(
                **ids(key), config=GetSessionConfig(num_recent_events=LATEST)
            )
        return session

    async def delete(self, key: Key) -> None:
        call = self._begin("delete", key)
        self._journal.call(call)
        async with self._answered(call):
            await self._service.delete_session(**ids(key))

    async def look(self, key: Key) -> None:
        """Do what reads and leaves nothing to be checked but that it returns."""
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: self._service.get_user_state(app_name=key.app, user_id=key.user),
            lambda: self._service.list_sessions(app_name=key.app, user_id=key.user),
        ]
        call = self._begin("look", key)
        self._journal.call(call)
        async with self._answered(call):
            await self._chance.choice(reads)()

    def _begin(self, kind: str, key: Key, *, is_owner: bool = False) -> Operation:
        name = f"{self._name}-{next(self._numbers)}"
        start = time.monotonic()
        return Operation(name, self._loop, kind, key, start, is_owner=is_owner)

    @asynccontextmanager
    async def _answered(
        self,
        call: Operation,
        found: Callable[[], dict[str, Any]] = dict,
    ) -> AsyncIterator[None]:
        """Write down how a call ends, which is interrupted now and then."""
        outcome, error, said = "ok", "", {}
        try:
            async with self._interrupted():
                yield
        except UnknownOutcomeError as unknown:
            outcome, error = "unknown", type(unknown).__name__
        except _REFUSALS as refusal:
            outcome, error = "failed", type(refusal).__name__
            said = {"said": str(refusal)}
            if isinstance(refusal, StorageUnavailableError):
                await asyncio.sleep(_PAUSE)
        except TimeoutError:
            # An append's session tells; of all else nobody knows.
            outcome, error = "unknown", "TimeoutError"
            if call.kind == "append":
                outcome = "ok" if found() else "failed"
        answer = found() if outcome == "ok" else said
        call.outcome = outcome
        self._journal.answer(call.name, outcome, error, **answer)

    @asynccontextmanager
    async def _interrupted(self) -> AsyncIterator[None]:
        """Cancel what is done meanwhile, or give it a deadline, now and then."""
        soon = self._chance.expovariate(100)
        match self._chance.random():
            case each if each < 0.02:
                async with asyncio.timeout(soon):
                    yield
            case each if each < 0.03:
                with pymongo.timeout(max(soon, 0.001)):
                    yield
            case _:
                yield


def _revision(session: Session) -> int:
    marker = marker_of(session)
    return -1 if marker is None else marker.revision


def _shows(session: Session, event: Event) -> dict[str, Any]:
    """A session's answer about an event; empty if it does not have it."""
    is_there = any(each.id == event.id for each in session.events[-1:])
    return {"revision": _revision(session)} if is_there else {}
