"""Reading ahead: a source is read and encoded while what was read before is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.hooks import Hooks

from .batches import Batch, Gathering
from .moved import Moved
from .records import Item, Selection, SessionHeader, Source


async def _unexpired(
    source: Source, selection: Selection, moved: Moved
) -> AsyncGenerator[Item]:
    """What is read, counted, without the sessions that have expired."""
    has_expired = False
    async with aclosing(source.read(selection)) as items:
        async for item in items:
            moved.read += isinstance(item, Event)
            if isinstance(item, SessionHeader):
                has_expired = item.has_expired(platform_time.get_time())
                moved.expired += has_expired
            if not (has_expired and isinstance(item, SessionHeader | Event)):
                yield item


async def read_ahead(
    source: Source, selection: Selection, hooks: Hooks, moved: Moved
) -> AsyncGenerator[Batch]:
    """A source's batches, encoded, the next being read while one is in use.

    Args:
        source: What to read; it is open.
        selection: Which sessions.
        hooks: The application's, to encode with.
        moved: Told how many events were read, and sessions left out.
    """
    queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(maxsize=1)

    async def read() -> None:
        gathering = Gathering(hooks)
        async with aclosing(_unexpired(source, selection, moved)) as items:
            async for item in items:
                for batch in gathering.add(item):
                    await queue.put(batch)
        for batch in gathering.end():
            await queue.put(batch)

    async def read_to_the_end() -> None:
        try:
            await read()
        except Exception as error:  # noqa: BLE001  raised where it is awaited
            await queue.put(error)
        else:
            await queue.put(None)

    reading = asyncio.create_task(read_to_the_end())
    try:
        while (batch := await queue.get()) is not None:
            if isinstance(batch, Exception):
                raise batch
            yield batch
    finally:
        reading.cancel()
        await asyncio.wait([reading])
