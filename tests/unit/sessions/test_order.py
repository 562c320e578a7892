"""Appends of one session are stored in their order, whatever becomes of their batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from mongo_session_service.errors import StorageUnavailableError
from mongo_session_service.model.records import Append, Marker, Planned, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions.batch import LockedError, RefusedError
from mongo_session_service.sessions.batches import Caller
from mongo_session_service.sessions.group_commit import Committer

LIMIT = 60.0


class Copy:
    """A caller's copy of a session."""

    def __init__(self, name: str) -> None:
        self.key = SessionKey("app", "user", name)
        self.marker = Marker(0, 1.0)
        self.session = self
        self.started = time.monotonic()
        self.place = None

    def expected(self) -> Marker:
        """What it is at."""
        return self.marker

    async def show(self, marker: Marker) -> None:
        """Note what is stored."""
        self.marker = marker


class Store:
    """Notes which events are stored; ``meet`` decides which transactions fail."""

    def __init__(self, meet: Callable[[list[str]], Any]) -> None:
        self.stored: list[str] = []
        self.is_app_locked = False
        self._meet = meet

    async def commit_batch(self, planned: list[Planned], **_: float) -> None:
        """Store them, unless the app's state is locked."""
        names = [each.write.event["id"] for each in planned]  # type: ignore[union-attr]
        if self.is_app_locked and any(each.write.delta.app for each in planned):
            raise LockedError(1)
        await self._meet(names)
        self.stored += names


def committer(store: Store) -> Committer:
    connection = SimpleNamespace(
        patience=LIMIT, database=SimpleNamespace(name="database")
    )
    return Committer(connection, store, together=True)  # type: ignore[arg-type]


def caller(copy: Copy, event_id: str, **app: Any) -> Caller:
    event, delta = {"id": event_id}, ScopedState(app=app, user={}, session={})
    append = Append(copy.key, 1.0, event, False, False, delta, b"")  # noqa: FBT003
    return Caller(append, copy)  # type: ignore[arg-type]


def start(writer: Committer, callers: Iterable[Caller]) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(writer.commit(each)) for each in callers]


async def test_an_append_to_a_lane_stays_behind_one_that_is_not_begun() -> None:
    """The second of two appends sets locked state, and the first waits for a batch."""
    gate, held = asyncio.Event(), asyncio.Semaphore(0)

    async def meet(names: list[str]) -> None:
        if names[0].startswith("slow"):
            held.release()
            await gate.wait()

    store = Store(meet)
    writer, session = committer(store), Copy("session")
    store.is_app_locked = True
    locked = start(writer, [caller(Copy("locked"), "locked", it=1)])
    slow = []
    for name in ("slow 1", "slow 2"):  # as many batches as there may be
        slow += start(writer, [caller(Copy(name), name)])
        await held.acquire()
    both = start(writer, [caller(session, "1"), caller(session, "2", it=1)])
    await asyncio.wait(both, timeout=0)
    store.is_app_locked = False
    await asyncio.wait_for(*locked, LIMIT)
    gate.set()
    await asyncio.wait_for(asyncio.gather(*slow, *both), LIMIT)

    assert [each for each in store.stored if each in ("1", "2")] == ["1", "2"]


async def test_an_append_that_is_tried_again_is_not_overtaken() -> None:
    """One half of a batch ends with the time of a call, and is tried again."""
    late, session = caller(Copy("late"), "late"), Copy("session")

    async def meet(names: list[str]) -> None:
        if len(names) > 2:
            raise RefusedError
        if "late" in names:
            late.started -= 2 * LIMIT
            raise StorageUnavailableError("too late")

    store = Store(meet)
    others = [caller(session, "1"), caller(session, "2"), caller(Copy("x"), "x")]
    calls = start(committer(store), [late, *others])
    _, *answers = await asyncio.wait_for(
        asyncio.gather(*calls, return_exceptions=True), LIMIT
    )

    assert answers == [None, None, None]
    assert [each for each in store.stored if each != "x"] == ["1", "2"]
