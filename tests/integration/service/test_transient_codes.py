"""A server that turns a command away for a moment is asked again, by every method."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.monitoring import (
    CommandStartedEvent,
)
from support.cancellation.calls import CONSUMERS, FOLLOWERS, READS, WRITES
from support.cancellation.world import Case, World
from support.command_log import QuietListener
from support.daily_sample import ALL, in_turn
from support.failpoints import failing, victim_uri
from support.resource_checks import PATIENCE

from mongo_session_service import MongoSessionService
from mongo_session_service.storage.failures import TRANSIENT_CODES
from mongo_session_service.testing import Limits

pytestmark = [
    pytest.mark.limits(
        fork_step=1, removed_events=1, sweep_interval=math.inf, page_events=2
    )
]

TEMPORARILY_UNAVAILABLE = 365
CASES = [*FOLLOWERS, *WRITES, *READS, *CONSUMERS]
LEFT_ALONE = {"hello", "ping", "endSessions", "abortTransaction", "killCursors"}
"""Commands whose failure the driver does not report, or that ask for nothing stored."""


class CommandNames(QuietListener):
    """Keeps the names of the commands that a client sends."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.seen.append(event.command_name)

    @contextmanager
    def during(self) -> Iterator[set[str]]:
        """Collect the names that are sent within the block."""
        begin, names = len(self.seen), set[str]()
        yield names
        names.update(self.seen[begin:])


@pytest.fixture
def names() -> CommandNames:
    return CommandNames()


@pytest.fixture
async def world(
    mongodb_uri: str, database: str, limits: Limits, names: CommandNames
) -> AsyncIterator[World]:
    """A service whose commands may fail, and are listed."""
    async with (
        AsyncMongoClient(victim_uri(mongodb_uri), event_listeners=[names]) as client,
        MongoSessionService(
            client=client, database=database, _limits=limits
        ) as service,
    ):
        rebasing = MongoSessionService(
            client=client, database=database, on_conflict="rebase", _limits=limits
        )
        yield World(service, rebasing, client)
        await service.close()
    gc.collect()


async def answer_each_command_once(
    world: World, admin: MongoClient, names: CommandNames, case: Case, code: int
) -> None:
    """Call a method once for each command it sends, which fails once with a code."""
    call, check = await case.prepare(world)
    with names.during() as sent:
        await call
    await check()
    for command in sorted(sent - LEFT_ALONE):
        call, check = await case.prepare(world)
        async with asyncio.timeout(PATIENCE):
            with failing(admin, command, times=1, errorCode=code):
                await call
        await check()


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [
        TEMPORARILY_UNAVAILABLE,
        *(
            pytest.param(code, marks=pytest.mark.release)
            for code in sorted(TRANSIENT_CODES - {TEMPORARILY_UNAVAILABLE})
        ),
    ],
)
async def test_each_command_of_each_method_is_turned_away_once(
    world: World,
    admin: MongoClient,
    names: CommandNames,
    subtests: pytest.Subtests,
    day: str,
    code: int,
) -> None:
    """No caller notices, and what they asked for is done once."""
    chosen = in_turn(day, (each.prepare.__name__ for each in CASES))
    if code == TEMPORARILY_UNAVAILABLE and day != ALL:
        chosen = chosen[::2]
    async with world.service.watch("nobody"):
        for case in CASES:
            if case.prepare.__name__ not in chosen:
                continue
            with subtests.test(case.what, how=case.prepare.__name__):
                await answer_each_command_once(world, admin, names, case, code)
