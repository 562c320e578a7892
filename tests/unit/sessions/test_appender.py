"""Appends through a session in hand: who waits for room, and what is expected then."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from google.adk.events import Event
from google.adk.sessions import Session
from support.function_calls import responded
from support.writers import Database, Gate, until, writer_of

from mongo_session_service.codec.adk_session import mark, to_session
from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.codec.record import SessionRecord
from mongo_session_service.model.records import Marker, SessionKey
from mongo_session_service.sessions.appender import Appended, Appender
from mongo_session_service.testing import Limits


class Appends:
    """Appends of one event loop, with room for one; all are held up at a gate."""

    def __init__(self, *, is_rebasing: bool) -> None:
        self.gate = Gate()
        self.database = Database(self.gate.pass_through)
        connection: Any = SimpleNamespace(hooks=NO_HOOKS, limits=Limits())
        writer = writer_of(self.database, queued_writes=1)
        self._appender = Appender(connection, reads=None, writer=writer)  # type: ignore[arg-type]
        self._is_rebasing = is_rebasing

    async def start(self, session: Session, event: Event) -> asyncio.Task[Appended]:
        """Begin to append an event, as far as there is room."""
        key = SessionKey(session.app_name, session.user_id, session.id)
        append = self._appender.append(
            key, session, event, None, time.monotonic(), is_rebasing=self._is_rebasing
        )
        task = asyncio.ensure_future(append)
        await asyncio.wait([task], timeout=0)
        return task


def session_of(name: str) -> Session:
    key = SessionKey("app", "user", name)
    document = {"revision": 1, "create_time": 1.0, "update_time": 1.0}
    return to_session(StoredSession(SessionRecord(key, document), {}, []))


async def test_a_response_does_not_wait_for_room() -> None:
    """Late writers may be waiting for it, until they give up."""
    appends = Appends(is_rebasing=True)
    first = await appends.start(session_of("1"), Event(author="x", id="first"))
    await until(lambda: appends.gate.waiting == ["first"])
    plain = await appends.start(session_of("2"), Event(author="x", id="plain"))
    answer = responded("a").model_copy(update={"id": "answer"})
    response = await appends.start(session_of("3"), answer)
    await until(lambda: len(appends.gate.waiting) > 1)
    appends.gate.open()
    await asyncio.gather(first, plain, response)

    assert appends.gate.waiting == ["first", "answer", "plain"]


async def test_an_append_expects_the_revision_shown_once_there_is_room() -> None:
    """Another append through the same object may have ended meanwhile."""
    appends, session = Appends(is_rebasing=False), session_of("2")
    first = await appends.start(session_of("1"), Event(author="x", id="first"))
    await until(lambda: appends.gate.waiting == ["first"])
    second = await appends.start(session, Event(author="x", id="second"))
    mark(session, Marker(5, 1.0))
    appends.gate.open()
    await asyncio.gather(first, second)

    assert [each.expected.revision for each in appends.database.batches[1]] == [5]
