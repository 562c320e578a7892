"""A session with a time to live lives as long as its turn, and then for that time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from support.conversations import runner_of
from support.one_session import IDS, authors, read
from support.scripted_model import said
from support.spoken_model import SpokenModel
from support.subscriptions import until

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits

OWNER = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}
TTL = 1.5
LIMITS = Limits(lease_renewal_seconds=0.1, sweep_rest=0)


@pytest.fixture
async def hasty(mongodb_uri: str, database: str) -> AsyncIterator[MongoSessionService]:
    """A service that renews turns often, and gives its sessions little time."""
    async with MongoSessionService(
        mongodb_uri, database=database, default_ttl=TTL, _limits=LIMITS
    ) as service:
        yield service


def expiry(admin: MongoClient[Any], database: str) -> float:
    found = admin[database].sessions.find_one({})
    return float(found["expire_time"]) if found else 0.0


async def outlast(admin: MongoClient[Any], database: str) -> None:
    """Wait until the session would have expired, but for two renewals."""
    first = expiry(admin, database)
    await until(lambda: expiry(admin, database) > first)
    second = expiry(admin, database)
    await until(lambda: expiry(admin, database) > second)


async def test_a_turn_renews_the_time_to_live(
    hasty: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """Of a turn without an agent, too; from its end on it counts again."""
    await hasty.create_session(**IDS)
    async with hasty.turn(**IDS):
        await outlast(admin, database)
        assert expiry(admin, database) > time.time() + TTL
    assert expiry(admin, database) < time.time() + TTL + 0.1
    await until(lambda: not admin[database].sessions.count_documents({}))


@pytest.mark.parametrize("is_paced", [True, False])
async def test_an_answer_that_takes_longer_is_stored(
    is_paced: bool,  # noqa: FBT001
    hasty: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
) -> None:
    """Of run_turn as of start_turn."""
    model = SpokenModel()
    await hasty.create_session(**IDS)
    runner = runner_of(hasty, model)

    async def answered() -> None:
        if is_paced:
            async for _ in hasty.run_turn(runner, **OWNER, new_message=said("hi")):
                pass
        else:
            started = await hasty.start_turn(runner, **OWNER, new_message=said("hi"))
            await started.result()

    running = asyncio.create_task(answered())
    await until(lambda: admin[database].events.count_documents({}))
    await outlast(admin, database)
    model.say("late")
    model.end_answer()
    await running
    assert authors(await read(hasty)) == ["user", "agent"]


async def test_a_date_of_expiry_stays_what_it_is(
    hasty: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """Also one that is set in the turn, in place of a time to live."""
    at = datetime.now(UTC) + timedelta(hours=1)
    await hasty.create_session(**IDS)
    sessions = admin[database].sessions
    async with hasty.turn(**IDS):
        await hasty.update_session(**IDS, expire_time=at)
        (first,) = sessions.distinct("turn.renewed_at")
        await until(lambda: sessions.distinct("turn.renewed_at") != [first])
        assert expiry(admin, database) == at.timestamp()
    assert expiry(admin, database) == at.timestamp()
    await hasty.update_session(**IDS, expire_time=None)
    async with hasty.turn(**IDS):
        (first,) = sessions.distinct("turn.renewed_at")
        await until(lambda: sessions.distinct("turn.renewed_at") != [first])
    assert "expire_time" not in (sessions.find_one({}) or {})


@pytest.mark.limits(lease_renewal_seconds=0.1)
@pytest.mark.parametrize("change", [{"ttl": "soon"}, {"expire_time": 1.0}])
async def test_a_turn_renews_nothing_but_what_lives_for_a_time(
    service: MongoSessionService,
    admin: MongoClient[Any],
    database: str,
    change: dict[str, Any],
) -> None:
    """It revives no expired session, and ends well beside values of another tool."""
    sessions = admin[database].sessions
    await service.create_session(**IDS, ttl=3600)
    async with service.turn(**IDS):
        sessions.update_one({}, {"$set": change})
        (first,) = sessions.distinct("turn.renewed_at")
        await until(lambda: sessions.distinct("turn.renewed_at") != [first])
    left = sessions.find_one({})
    assert left is not None
    assert left.items() >= change.items()
    assert left["turn"]["ended"]["status"] == "ended"
