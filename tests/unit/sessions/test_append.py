"""Appends through a session in hand: what is expected once there is room."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from google.adk.events import Event
from google.adk.sessions import Session
from support.writers import Database, Gate, until, writer_of

from mongo_session_service.codec.adk_session import mark, to_session
from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.codec.record import SessionRecord
from mongo_session_service.model.records import Marker, SessionKey
from mongo_session_service.sessions.append import Appended, Appender
from mongo_session_service.testing import Limits


class Appends:
    """Appends of one event loop, with room for one; all are held up at a gate."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.database = Database(self.gate.pass_through)
        connection: Any = SimpleNamespace(hooks=NO_HOOKS, limits=Limits())
        writer = writer_of(self.database, queued_writes=1)
        self._appender = Appender(connection, reads=None, writer=writer)  # type: ignore[arg-type]

    async def start(self, session: Session, event: Event) -> asyncio.Task[Appended]:
        """Begin to append an event, as far as there is room."""
        key = SessionKey(session.app_name, session.user_id, session.id)
        append = self._appender.append(
            key, session, event, None, time.monotonic(), on_conflict="raise"
        )
        task = asyncio.ensure_future(append)
        await asyncio.wait([task], timeout=0)
        return task


def session_of(name: str) -> Session:
    key = SessionKey("app", "user", name)
    document = {"revision": 1, "create_time": 1.0, "update_time": 1.0}
    return to_session(StoredSession(SessionRecord(key, document), {}, []))


async def test_an_append_expects_the_revision_shown_once_there_is_room() -> None:
    """Another append through the same object may have ended meanwhile."""
    appends, session = Appends(), session_of("2")
    first = await appends.start(session_of("1"), Event(author="x", id="first"))
    await until(lambda: appends.gate.waiting == ["first"])
    second = await appends.start(session, Event(author="x", id="second"))
    mark(session, Marker(5, 1.0))
    appends.gate.open()
    await asyncio.gather(first, second)

    assert [each.expected.revision for each in appends.database.batches[1]] == [5]
