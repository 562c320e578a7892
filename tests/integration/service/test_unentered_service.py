"""A service that could not be entered, or is forgotten, leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.storage.loop_thread import thread_loop

NOWHERE = "mongodb://127.0.0.1:1/adk?replicaSet=rs0"
DESCRIPTORS = Path("/proc/self/fd")
PAUSES = [0, 0, 0.0005, 0.002, 0.01]
"""Seconds after which an entry is cancelled, one after the other."""


def opened() -> tuple[int, int, int]:
    """Tasks, threads and descriptors of this process."""
    tasks = [each for each in asyncio.all_tasks() if not each.done()]
    # An event loop keeps the threads in which it has looked up names.
    threads = [it for it in threading.enumerate() if not it.name.startswith("asyncio_")]
    return len(tasks), len(threads), len(list(DESCRIPTORS.iterdir()))


async def back_to(before: tuple[int, int, int]) -> None:
    """Wait until no more is open than before."""
    deadline = time.monotonic() + 30
    while any(now > was for now, was in zip(opened(), before, strict=True)):
        assert time.monotonic() < deadline, (opened(), before, asyncio.all_tasks())
        gc.collect()
        await asyncio.sleep(0.01)


# PyMongo leaves the socket of a cancelled connection to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("is_up", [True, False])
async def test_cancelled_entries_leave_nothing(
    mongodb_uri: str, database: str, *, is_up: bool
) -> None:
    """Wherever the cancellation arrives, also while MongoDB is away."""
    uri = mongodb_uri if is_up else NOWHERE

    async def enter() -> None:
        async with MongoSessionService(uri, database=database):
            pass

    before = opened()
    for pause in PAUSES * 4:
        entering = asyncio.create_task(enter())
        await asyncio.sleep(pause)
        entering.cancel()
        await asyncio.wait([entering])
    del entering  # whose traceback may have the socket of a cancelled connection
    await back_to(before)


async def test_failed_entries_leave_nothing() -> None:
    """Nobody has to close a service whose block did not run."""
    before = opened()
    for _ in range(5):
        with pytest.raises(StorageUnavailableError):
            async with MongoSessionService(NOWHERE + "&serverSelectionTimeoutMS=1"):
                pass
    await back_to(before)


async def test_forgotten_services_close_their_clients(
    mongodb_uri: str, database: str
) -> None:
    """Once nobody refers to one any more, in a process that goes on."""
    thread_loop()  # which stays
    before = opened()
    for uri in (mongodb_uri, NOWHERE + "&serverSelectionTimeoutMS=1") * 3:
        service = MongoSessionService(uri, database=database)
        with suppress(StorageUnavailableError):
            await service.list_sessions(app_name="app")
        del service
    await back_to(before)


async def test_a_cancelled_close_closes_the_client(
    mongodb_uri: str, database: str
) -> None:
    """Wherever the cancellation arrives: nobody could close it afterwards."""
    thread_loop()  # which stays
    before = opened()
    for steps in range(12):
        service = MongoSessionService(mongodb_uri, database=database)
        await service.list_sessions(app_name="app")
        closing = asyncio.create_task(service.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        del service, closing
    await back_to(before)
