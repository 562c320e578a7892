"""Subscriptions in programs that fork, or end at awkward moments.

They run in processes of their own, for the driver then leaves sockets to the garbage
collector, which says so.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.patience import PATIENCE

PROGRAM = """
import asyncio, os, sys
from google.adk.events import Event
from mongo_session_service import MongoSessionService

service = MongoSessionService(sys.argv[1], database=sys.argv[2])
ids = {"app_name": "app", "user_id": "user"}

async def use(session_id):
    session = await service.create_session(**ids, session_id=session_id)
    async with service.watch(*ids.values(), session_id) as changes:
        await service.append_event(session, Event(author="x"))
        async with asyncio.timeout(60):
            told = [(await anext(changes)).kind for _ in range(2)]
    assert told == ["snapshot", "appended"], told
"""

FORKS = """
opened, told = asyncio.Event(), []

async def watch():
    async with service.watch() as changes:
        opened.set()
        async for each in changes:
            told.append(each)

async def fork():
    watching = asyncio.create_task(watch())
    await opened.wait()
    await use("before")
    while len(told) < 2:
        await asyncio.sleep(0.01)
    child = os.fork()
    if child == 0:  # as multiprocessing does, it leaves the parent's loop alone
        stats = service.feed_stats()
        assert not stats.is_running and stats.subscriptions == 0, stats
        asyncio.run(use("child"))
        sys.stderr.flush()
        os._exit(0)
    await use("parent")
    assert service.feed_stats().subscriptions >= 1
    await service.close()
    await watching
    return child

loop = asyncio.new_event_loop()
child = loop.run_until_complete(fork())
loop.run_until_complete(loop.shutdown_asyncgens())
loop.close()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

ENDS_WITHOUT_CLOSING = """
asyncio.run(use("one"))
"""

ENDS_WHILE_WATCHING = """
async def main():
    await use("one")
    changes = await service.watch().__aenter__()
    asyncio.create_task(anext(changes))
    await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "ending",
    [
        FORKS,
        ENDS_WITHOUT_CLOSING,
        ENDS_WHILE_WATCHING,
    ],
    ids=[
        "forks",
        "does-not-close",
        "watches-to-end",
    ],
)
def test_awkward_programs(mongodb_uri: str, database: str, ending: str) -> None:
    """Each gets what it is due, ends in time, and has nothing to complain of."""
    command = [sys.executable, "-c", PROGRAM + ending, mongodb_uri, database]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE
    )

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "rror" not in done.stderr
