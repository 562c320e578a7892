"""A call ends with its own time limit, whatever those before it wait for."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from mongo_session_service.errors import StorageUnavailableError
from mongo_session_service.model.records import Append, Marker, Planned, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions.batch import LockedError
from mongo_session_service.sessions.batches import Caller
from mongo_session_service.sessions.group_commit import (
    MAX_BATCHES,
    MAX_RETRIED,
    Committer,
)

LIMIT = 60.0
SOON = 0.2
PATIENCE = 20.0


class Store:
    """Sessions are locked, until the server answers nothing any more."""

    def __init__(self) -> None:
        self.is_silent = False
        self.held = asyncio.Semaphore(0)

    async def commit_batch(self, _: list[Planned], **__: Any) -> None:
        """Refuse them, or do not answer."""
        if self.is_silent:
            self.held.release()
            await asyncio.Event().wait()
        raise LockedError(3)


def caller(name: str, left: float) -> Caller:
    started = time.monotonic() - LIMIT + left
    copy = SimpleNamespace(
        started=started, place=None, session=name, expected=lambda: Marker(0, 1.0)
    )
    delta = ScopedState(app={}, user={}, session={})
    key = SessionKey("app", "user", name)
    append = Append(key, 1.0, {}, False, False, delta, b"")  # noqa: FBT003
    return Caller(append, copy)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_locked", [True, False])
async def test_a_call_ends_while_all_others_hang(*, is_locked: bool) -> None:
    """It waits in a lane, or for a batch, and began before those that hang."""
    store = Store()
    connection = SimpleNamespace(
        patience=LIMIT, database=SimpleNamespace(name="database")
    )
    writer = Committer(connection, store, together=True)  # type: ignore[arg-type]

    def start(name: str, left: float = LIMIT) -> asyncio.Task[None]:
        return asyncio.ensure_future(writer.commit(caller(name, left)))

    store.is_silent = not is_locked
    hanging = []
    for number in range(MAX_RETRIED if is_locked else MAX_BATCHES):
        hanging.append(start(str(number)))
        if not is_locked:
            await store.held.acquire()
    late = start("late", SOON)
    await asyncio.wait([late], timeout=0)
    store.is_silent = True
    with pytest.raises(StorageUnavailableError):
        await asyncio.wait_for(asyncio.shield(late), PATIENCE)

    assert not any(each.done() for each in hanging)
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()
