"""Readers that write down all that they received."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from google.adk.errors.session_not_found_error import SessionNotFoundError

from chaos.history import Journal, Key
from mongo_session_service import (
    Change,
    Consumer,
    HistoryLostError,
    LeaseLostError,
    MongoSessionService,
    SlowSubscriberError,
    StorageError,
    StorageUnavailableError,
)
from mongo_session_service.feed.subscription import Subscription

APPS = ("red", "blue")
USERS = 6
THE_END = Key("the", "very", "end")
"""A session whose first event is the last change of a run."""

_PAUSE = 0.2  # seconds
_ENDINGS = (SlowSubscriberError, StorageError, HistoryLostError)


def note(journal: Journal, reader: str, change: Change) -> None:
    """Write down what a reader received."""
    if change.kind == "state":
        return
    journal.write(
        to=reader,
        kind=change.kind,
        key=[change.app_name, change.user_id, change.session_id],
        revision=change.revision,
        event=change.event.id if change.event else None,
    )


def is_the_end(change: Change) -> bool:
    """True if it is the last one."""
    return change.kind == "appended" and change.session_key == THE_END


async def watch(service: MongoSessionService, journal: Journal, name: str) -> None:
    """Write down everything, until the end; begin again if that is interrupted."""
    for number in itertools.count():
        reader = f"{name} {number}"
        try:
            async with service.watch() as changes:
                journal.write(reader=reader, kind="watch", at=time.monotonic())
                async for change in changes:
                    note(journal, reader, change)
                    if is_the_end(change):
                        journal.write(ended=reader, why="end")
                        return
        except _ENDINGS as error:
            journal.write(ended=reader, why=repr(error))
            await asyncio.sleep(_PAUSE)


async def consume(
    service: MongoSessionService,
    journal: Journal,
    name: str,
    is_over: Callable[[], bool],
) -> None:
    """Consume everything, until it is over, or until the end."""
    for number in itertools.count():
        with contextlib.suppress(LeaseLostError, StorageUnavailableError):
            async with service.consumer(name.partition("@")[0]) as consumer:
                reader = f"{name} {number}"
                if await _consume(consumer, journal, reader, is_over):
                    return
        await asyncio.sleep(_PAUSE)


async def _consume(
    consumer: Consumer, journal: Journal, reader: str, is_over: Callable[[], bool]
) -> bool:
    """Consume while it can be; whether nothing more is wanted."""
    count = 0
    while not is_over():
        # A read that is cancelled loses nothing.
        try:
            async with asyncio.timeout(1):
                change = await anext(consumer)
        except TimeoutError:
            continue
        count += 1
        if count == 1:
            journal.write(reader=reader, kind="consume", at=time.monotonic())
        note(journal, reader, change)
        if count % 50 == 0 or is_the_end(change):
            await consumer.commit()
            journal.write(committed=reader)
        if is_the_end(change):
            return True
    return True


async def follow(
    service: MongoSessionService,
    journal: Journal,
    name: str,
    chance: random.Random,
    is_over: Callable[[], bool],
    ended: asyncio.Event,
) -> None:
    """Follow one session after the other for a while, and the last to the end."""
    for number in itertools.count():
        is_last = is_over()
        key = await _some_session(service, chance)
        if key is None and not is_last:
            await asyncio.sleep(_PAUSE)
        if key is not None:
            follower = _Follower(journal, f"{name} {number}")
            after = chance.choice([None, 0])
            with contextlib.suppress(SessionNotFoundError, *_ENDINGS):
                async with service.watch(*key, after_revision=after) as changes:
                    follower.begin()
                    if is_last:
                        await follower.read_to(changes, ended)
                    else:
                        await follower.read(changes, chance.uniform(1, 10))
        if is_last:
            return


async def _some_session(
    service: MongoSessionService, chance: random.Random
) -> Key | None:
    app, user = chance.choice(APPS), f"u{chance.randrange(USERS)}"
    with contextlib.suppress(StorageError):
        found = await service.list_sessions(app_name=app, user_id=user)
        if found.sessions:
            return Key(app, user, chance.choice(found.sessions[-5:]).id)
    return None


class _Follower:
    """Reads a session's subscription, and puts its state together."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._journal = journal
        self._name = name
        self._state: dict[str, Any] = {}

    def begin(self) -> None:
        """Write down that it received everything from now on."""
        self._journal.write(reader=self._name, kind="follow", at=time.monotonic())

    async def read(self, changes: Subscription, seconds: float) -> None:
        """Read for a while, or until it ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._read(changes)
        self._end("enough")

    async def read_to(self, changes: Subscription, ended: asyncio.Event) -> None:
        """Read until there is nothing more to come."""
        reading = asyncio.create_task(self._read(changes))
        await ended.wait()
        await asyncio.sleep(1)  # all of the feed's is in the inbox, and quickly read
        changes.close()
        await reading
        self._end("end")

    async def _read(self, changes: Subscription) -> None:
        async for change in changes:
            note(self._journal, self._name, change)
            delta = change.state_delta if change.state is None else change.state
            self._state |= delta

    def _end(self, why: str) -> None:
        self._journal.write(ended=self._name, why=why, state=self._state)
