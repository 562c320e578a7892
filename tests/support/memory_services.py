"""Memory services that show what they were given, and how they are fed in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from google.adk.events import Event
from google.adk.memory import BaseMemoryService
from google.adk.memory.base_memory_service import SearchMemoryResponse
from google.adk.sessions import Session
from google.genai import types

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.memory import remember
from support.consumers import APP, PATIENCE, USER

Batch = list[str]
"""The texts of events, as they were given together."""


def said(author: str, text: str, turn: str = "", **fields: Any) -> Event:
    """An event of a turn with a text."""
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id=turn, content=content, **fields)


def called(turn: str, name: str = "tool") -> Event:
    """An event of a turn that calls a function, and so ends nothing."""
    part = types.Part.from_function_call(name=name, args={})
    content = types.Content(role="model", parts=[part])
    return Event(author="agent", invocation_id=turn, content=content)


def label(event: Event) -> str:
    """What an event says, or the function that it calls or responds to."""
    parts = event.content.parts if event.content and event.content.parts else []
    for part in parts:
        named = part.function_call or part.function_response
        return f"{named.name}()" if named else str(part.text)
    return "-"


class Sessions(BaseMemoryService):
    """A memory service that takes whole sessions only."""

    def __init__(self) -> None:
        self.given: list[tuple[str, Batch]] = []
        """The session's id and the events of each call."""

    async def add_session_to_memory(self, session: Session) -> None:
        self.given.append((session.id, [label(each) for each in session.events]))

    async def search_memory(self, **_: str) -> SearchMemoryResponse:
        raise AssertionError


class Turns(Sessions):
    """A memory service that takes turns, and finds memory by session."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        """How many of the next calls fail."""

    async def add_events_to_memory(
        self, *, events: Sequence[Event], session_id: str | None = None, **_: Any
    ) -> None:
        self._fail()
        self.given.append((str(session_id), [label(each) for each in events]))

    async def delete_session_memory(self, *, session_id: str, **_: str) -> None:
        self._fail()
        self.given = [each for each in self.given if each[0] != session_id]

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("The memory service is away.")

    @property
    def batches(self) -> list[Batch]:
        return [events for _, events in self.given]


async def append_all(
    service: MongoSessionService, *events: Event, session_id: str = "s"
) -> Session:
    """Append events to a session, which is created if need be."""
    key = {"app_name": APP, "user_id": USER, "session_id": session_id}
    session = await service.get_session(**key) or await service.create_session(**key)
    for event in events:
        await service.append_event(session, event)
    return session


async def feed(
    service: MongoSessionService, memory: BaseMemoryService, **options: Any
) -> None:
    """Run a feeder named ``memory`` on all that there is, and end it."""
    handler = remember(memory)
    # After all others in the log as well.
    last = await service.create_session(app_name=APP, user_id="~")
    await service.append_event(last, Event(author="user"))
    consumer = service.consumer("memory", app_name=APP)

    async def handle(change: Change) -> None:
        await handler(change)
        if change.session_id == last.id and change.kind == "appended":
            await consumer.close()

    async with asyncio.timeout(PATIENCE):
        await consumer.run(handle, **options)
