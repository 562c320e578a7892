"""Reading a consumer, as tests of it need to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session

from mongo_session_service import Change, Consumer, MongoSessionService
from support.patience import PATIENCE

APP, USER = "app", "user"

Told = tuple[str, int | None]


def told(changes: Iterable[Change]) -> list[Told]:
    """Which events these are: their sessions and revisions."""
    return [
        (str(each.session_id), each.revision)
        for each in changes
        if each.kind == "appended"
    ]


async def take(consumer: Consumer, count: int, *, commit: bool = False) -> list[Change]:
    """The next changes; the last is left uncommitted, unless all are to be."""
    changes: list[Change] = []
    async with asyncio.timeout(PATIENCE):
        while len(changes) < count:
            changes.append(await anext(consumer))
            if commit:
                await consumer.commit()
    return changes


async def run(consumer: Consumer, handler: Any, **options: Any) -> int:
    """Run it to its end; how many dead letters it has kept."""
    async with asyncio.timeout(PATIENCE):
        return await consumer.run(handler, **options)


async def begun(service: MongoSessionService) -> None:
    """Return when a consumer has its first checkpoint: what happens now is told."""
    async with asyncio.timeout(PATIENCE):
        # No signal comes from the server.
        while all(  # noqa: ASYNC110
            each.lag_seconds is None for each in await service.consumers()
        ):
            await asyncio.sleep(0.01)


async def create(service: MongoSessionService, session_id: str = "s") -> Session:
    return await service.create_session(
        app_name=APP, user_id=USER, session_id=session_id
    )


async def append(
    service: MongoSessionService, session: Session, count: int = 1
) -> None:
    for _ in range(count):
        delta = {"n": len(session.events)}
        event = Event(author="x", actions=EventActions(state_delta=delta))
        await service.append_event(session, event)
