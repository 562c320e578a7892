"""Cancelled at any point where it waits, no call leaves anything open or half done."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from pymongo import AsyncMongoClient, MongoClient
from support.cancel_points import cancelled_at
from support.cancellation.calls import CONSUMERS, FOLLOWERS, READS, WRITES
from support.cancellation.world import Case, World
from support.failpoints import open_transactions, victim_uri
from support.resource_checks import (
    PATIENCE,
    cursors,
    others_tasks,
    returned,
    tasks_over,
)

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits

pytestmark = [
    pytest.mark.filterwarnings(
        # PyMongo leaves a socket to the garbage collector if cancelled connecting.
        r"ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
    ),
    # So that few events take several steps.
    pytest.mark.limits(fork_step=1, removed_events=1, sweep_interval=math.inf),
]

ATTEMPTS = 10
"""Of a cursor to be left, where a server may begin a read that is given up already."""

Late = Callable[[int], bool]
"""Whether to cancel a point when its wait is over, not as it begins."""

at_every_point = pytest.mark.parametrize(
    ("late", "step"),
    [
        pytest.param(lambda point: point % 2 == 0, 18, id="alternating"),
        pytest.param(lambda _: False, 1, id="early", marks=pytest.mark.release),
        pytest.param(lambda _: True, 1, id="late", marks=pytest.mark.release),
    ],
)
"""At each 18th point, from another one each day; before a release at all of them."""


@pytest.fixture
async def world(
    mongodb_uri: str, database: str, limits: Limits
) -> AsyncIterator[World]:
    """A service whose client, feed and all else are in the test's own event loop."""
    async with (
        AsyncMongoClient(victim_uri(mongodb_uri)) as client,
        MongoSessionService(
            client=client, database=database, _limits=limits
        ) as service,
    ):
        rebasing = MongoSessionService(
            client=client, database=database, on_conflict="rebase", _limits=limits
        )
        yield World(service, rebasing, client)
        await service.close()
        await returned(client)
    gc.collect()  # so that the sockets of the warning go here


async def cancel_at_every_point(
    world: World, admin: MongoClient, case: Case, day: str, *, late: Late, step: int
) -> None:
    """Have a call cancelled where it waits, and check what there is afterwards."""
    strays: set[int] = set()
    first = 1 + zlib.crc32(f"{day} {case.what}".encode()) % step
    for point in itertools.count(first, step):
        for _ in range(ATTEMPTS):
            was_cancelled = await cancel(world, admin, case, point, late=late(point))
            left = cursors(admin, world.database) - strays
            if not left:
                break
            strays |= left
        assert not left, point
        if not was_cancelled:
            break
    assert point > case.least


async def cancel(
    world: World, admin: MongoClient, case: Case, point: int, *, late: bool
) -> bool:
    """Have a call cancelled at one point; whether it got that far."""
    call, check = await case.prepare(world)
    before = others_tasks()
    was_cancelled = await cancelled_at(call, point, late=late)
    await tasks_over(before)
    assert open_transactions(admin) == 0
    is_fed = world.service.feed_stats().is_running
    await returned(world.client, but=1 if is_fed else 0)
    async with asyncio.timeout(PATIENCE):
        await check()
    await tasks_over(before)
    return was_cancelled


GROUPS = [
    # What was written is done or not done, which can be told.
    pytest.param(WRITES, id="writes"),
    # A read leaves no cursor, however many replies it would take.
    pytest.param(
        READS, id="reads", marks=pytest.mark.limits(page_events=2, reply_documents=2)
    ),
    # Who goes on receives all that is left, once.
    pytest.param(FOLLOWERS, id="followers"),
    # Whoever waited for the end of a consumer's lease would wait too long.
    pytest.param(
        CONSUMERS, id="consumers", marks=pytest.mark.limits(lease_seconds=3 * PATIENCE)
    ),
]


@pytest.mark.long
@at_every_point
@pytest.mark.parametrize("cases", GROUPS)
async def test_a_call_cancelled_at_every_point(
    world: World,
    admin: MongoClient,
    subtests: pytest.Subtests,
    day: str,
    *,
    cases: list[Case],
    late: Late,
    step: int,
) -> None:
    """It is done or not done, leaves nothing open, and what comes next works."""
    async with AsyncExitStack() as stack:
        if cases is FOLLOWERS:  # the stream is open already
            await stack.enter_async_context(world.service.watch("nobody"))
        for case in cases:
            with subtests.test(case.what, how=case.prepare.__name__):
                await cancel_at_every_point(
                    world, admin, case, day, late=late, step=step
                )
