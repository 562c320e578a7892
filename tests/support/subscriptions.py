"""Following subscriptions, and asking the server what they cost."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from google.adk.events import Event, EventActions
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.changes.change import Change
from mongo_session_service.feed.subscription import Subscription
from support.patience import PATIENCE

APP, USER, ID = "app", "user", "s"
IDS = {"app_name": APP, "user_id": USER}
SESSION = {**IDS, "session_id": ID}


def new_event(author: str = "x", /, **delta: Any) -> Event:
    """An event with this delta, its keys spelt ``app_x`` for ``app:x``."""
    prefixed = {
        key.replace("app_", "app:").replace("user_", "user:"): value
        for key, value in delta.items()
    }
    return Event(author=author, actions=EventActions(state_delta=prefixed))


class Follower:
    """Reads a subscription in a task of its own, and keeps all it is told.

    ::

        async with Follower(service.watch(...)) as follower:
            await follower.until(lambda: len(follower.told) == 3)
    """

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.told: list[Change] = []
        self.state: dict[str, Any] = {}
        """What snapshot and deltas come to; of use for a session."""
        self.error: Exception | None = None
        self.has_ended = False
        self._moved = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.subscription.__aenter__()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.subscription.close()
        async with asyncio.timeout(PATIENCE):
            await self._task

    async def _read(self) -> None:
        try:
            async for change in self.subscription:
                self.told.append(change)
                self.state |= (
                    change.state_delta if change.state is None else change.state
                )
                self._moved.set()
        except Exception as error:  # noqa: BLE001  to be looked at
            self.error = error
        self.has_ended = True
        self._moved.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Read until it holds; fails if that takes long, or the subscription ends."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    assert not self.has_ended, f"ended with {self.error!r}"
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise AssertionError(f"stuck after {self.summary[-20:]}") from None

    async def ended(self) -> Exception | None:
        await self.until(lambda: self.has_ended)
        return self.error

    async def reached(self, revision: int) -> None:
        """Read until the session is told to be there."""
        await self.until(lambda: (self.subscription.last_revision or 0) >= revision)

    @property
    def summary(self) -> list[tuple[str, int | None]]:
        return [(change.kind, change.revision) for change in self.told]

    @property
    def kinds(self) -> list[str]:
        return [change.kind for change in self.told]

    @property
    def gone(self) -> list[str | None]:
        """The sessions that it was told the end of."""
        return [each.session_id for each in self.told if each.kind == "deleted"]

    @property
    def revisions(self) -> dict[str, list[int]]:
        """Of the changes appended, by session."""
        by_session = defaultdict(list)
        for change in self.told:
            if change.kind == "appended":
                assert change.event is not None
                assert change.revision is not None
                by_session["/".join(change.session_key or "")].append(change.revision)
        return dict(by_session)


async def stored_state(
    service: MongoSessionService, session_id: str = ID
) -> dict[str, Any]:
    """The session's merged state as ``get_session`` shows it."""
    session = await service.get_session(**IDS, session_id=session_id)
    assert session is not None
    return dict(session.state)


async def until(condition: Callable[[], object]) -> None:
    """Return once it holds, of which nobody tells; fails if that takes long."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


def change_streams(admin: MongoClient, database: str, named: str = "") -> set[int]:
    """The ids of the server's cursors that read changes of a database.

    Of these, only those whose pipelines name a collection, if one is given.
    """
    stages = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"cursor.originatingCommand": {"$exists": True}}},
    ]
    cursors = [each["cursor"] for each in admin.admin.aggregate(stages)]
    return {
        cursor["cursorId"]
        for cursor in cursors
        if cursor["originatingCommand"]["$db"] == database
        and "$changeStream" in cursor["originatingCommand"]["pipeline"][0]
        and named in str(cursor["originatingCommand"]["pipeline"])
    }
