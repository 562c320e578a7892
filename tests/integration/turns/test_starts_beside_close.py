"""Turns that are started while the service is closed: counted, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from support.cancel_points import disturbed_at
from support.conversations import start
from support.one_session import IDS
from support.spoken_model import SpokenModel

from mongo_session_service import (
    MongoSessionService,
    MongoSessionServiceError,
    RunningTurn,
)
from mongo_session_service.testing import Limits

EVERY = 150
"""More points than a start has."""

LIMITS = Limits(abort_seconds=0.01)


some_or_every = pytest.mark.parametrize(
    "points",
    [
        pytest.param(range(1, EVERY, 15), id="some"),
        pytest.param(range(1, EVERY), id="every", marks=pytest.mark.release),
    ],
)


class Outcomes:
    """What became of starts beside the close of a service."""

    def __init__(self, service: MongoSessionService) -> None:
        self._service = service
        self.refused = self.stopped = 0

    async def check(self, starting: Awaitable[RunningTurn]) -> None:
        """Wait for a start of a service that is closed: nothing of it goes on."""
        (outcome,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(outcome, RunningTurn):
            assert outcome.is_done
            self.stopped += 1
        else:
            assert isinstance(outcome, MongoSessionServiceError)
            assert "closed" in outcome.message
            self.refused += 1
        assert await self._service.find_turns() == []


@some_or_every
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_start_is_counted_or_refused_wherever_it_is(
    mongodb_uri: str,
    database: str,
    service: MongoSessionService,
    points: range,
    *,
    is_open: bool,
) -> None:
    """When the service is closed: of its first call, or of a later one."""
    await service.create_session(**IDS)
    outcomes = Outcomes(service)
    loop = asyncio.get_running_loop()
    for point in points:
        closed = MongoSessionService(mongodb_uri, database=database, _limits=LIMITS)
        if is_open:
            await closed.ping()
        starting: asyncio.Future[RunningTurn] = loop.create_future()
        closing: list[asyncio.Task[None]] = []

        async def begin(
            it: MongoSessionService = closed,
            ends: asyncio.Future[RunningTurn] = starting,
        ) -> None:
            try:
                ends.set_result(await start(it, SpokenModel()))
            except MongoSessionServiceError as error:
                ends.set_exception(error)

        def close(_: object, it: MongoSessionService = closed) -> None:
            closing.append(loop.create_task(it.close(grace=0)))  # noqa: B023

        got_there = await disturbed_at(begin(), point, close)
        await (closing[0] if got_there else closed.close(grace=0))
        await outcomes.check(starting)
        assert not [*closed._backends.opened]  # noqa: SLF001  no client is left
        if not got_there:
            break
    assert outcomes.refused
    assert outcomes.stopped


@some_or_every
async def test_a_start_is_refused_wherever_a_close_is(
    mongodb_uri: str, database: str, service: MongoSessionService, points: range
) -> None:
    """Also if the turn of the session runs, and the start waits for its end."""
    await service.create_session(**IDS)
    outcomes = Outcomes(service)
    loop = asyncio.get_running_loop()
    for point in points:
        closed = MongoSessionService(mongodb_uri, database=database, _limits=LIMITS)
        await start(closed, SpokenModel())  # which never answers
        starting: list[asyncio.Task[RunningTurn]] = []

        def begin(_: object, it: MongoSessionService = closed) -> None:
            starting.append(loop.create_task(start(it, SpokenModel())))  # noqa: B023

        got_there = await disturbed_at(closed.close(grace=0), point, begin)
        if not got_there:
            break
        await outcomes.check(starting[0])
        assert not [*closed._backends.opened]  # noqa: SLF001
    assert outcomes.refused
    assert not outcomes.stopped
