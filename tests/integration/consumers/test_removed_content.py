"""What is redacted or erased while a consumer has it in hand, or is away."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from support.consumers import run
from support.encryption_hooks import CANARY
from support.raw_search import traces_of
from support.waiting import say

from mongo_session_service import Change, MongoSessionService

USER = "to-be-erased@example.com"
KEY = {"app_name": "app", "user_id": USER, "session_id": "s"}
MODES: dict[str, dict[str, Any]] = {
    "in order": {},
    "in a transaction": {"transactional": True},
    "at once": {"concurrency": 2},
}

pytestmark = [
    pytest.mark.limits(handler_retry_seconds=0.0, stream_await_seconds=0.05),
    pytest.mark.parametrize("mode", MODES),
]


async def removed(service: MongoSessionService, how: str, event_id: str) -> None:
    if how == "redacted":
        await service.redact_events(**KEY, event_ids=[event_id], state=True)
    else:
        await service.delete_user(app_name="app", user_id=USER)


async def store(service: MongoSessionService) -> str:
    session = await service.create_session(**KEY)
    event = say(CANARY, "i")
    event.actions.state_delta = {"user:card": CANARY, "own": CANARY}
    return (await service.append_event(session, event)).id


@pytest.mark.parametrize("how", ["redacted", "erased"])
async def test_what_is_removed_between_two_attempts_is_not_kept(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    how: str,
    mode: str,
) -> None:
    """The next attempt has the redacted form; what was erased is not handled again."""
    event_id = await store(service)
    told: list[str] = []

    async def handler(change: Change, *_: Any) -> None:
        if change.kind == "appended":
            told.append(str(change))
            if len(told) == 2:
                await removed(service, how, event_id)
            raise ValueError

    options = MODES[mode] | {"max_attempts": 4, "until_caught_up": True}
    kept = await run(service.consumer("c"), handler, **options)

    assert kept == (how == "redacted")
    assert [CANARY in each for each in told[:2]] == [True, True]
    assert [CANARY in each for each in told[2:]] == [False, False] * kept
    assert traces_of(CANARY, admin, database) == []
    if how == "erased":
        assert traces_of(USER, admin, database) == []


@pytest.mark.parametrize("how", ["redacted", "erased"])
async def test_what_was_removed_while_a_consumer_was_away_is_not_kept(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    how: str,
    mode: str,
) -> None:
    """It receives the change that it has missed, and fails; no letter has content."""
    consumer = service.consumer("c", start="now")
    async with consumer:
        pass
    await removed(service, how, await store(service))
    seen: list[str] = []

    async def handler(change: Change, *_: Any) -> None:
        seen.append(change.kind)
        if change.kind != "deleted":
            raise ValueError

    options = MODES[mode] | {"max_attempts": 1, "until_caught_up": True}
    await run(consumer, handler, **options)

    assert "appended" in seen
    assert traces_of(CANARY, admin, database) == []
    letters = [it async for it in consumer.dead_letters()]
    assert CANARY not in str([each.change for each in letters])
    if how == "erased":
        assert letters == []
        assert traces_of(USER, admin, database) == []
