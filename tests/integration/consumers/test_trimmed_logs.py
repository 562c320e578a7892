"""Consumers that replay logs of which a part was trimmed."""

from __future__ import annotations

from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from support.consumers import APP, USER, append, create, run, take

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.sessions import trim

S = {"app_name": APP, "user_id": USER, "session_id": "s"}


def briefly(changes: list[Change]) -> list[tuple[Any, ...]]:
    return [(each.kind, each.session_id, each.revision) for each in changes]


async def test_a_replay_begins_with_the_state_as_of_the_cut(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a session with no events left, or with some that are yet to go."""
    for name, count in (("a", 2), ("s", 5), ("t", 3), ("u", 4)):
        await append(service, await create(service, name), count)
    await service.trim_session(**S, keep_last=2)
    await service.trim_session(**{**S, "session_id": "t"}, before_revision=4)

    async def interrupted(*_: Any) -> int:
        return 0

    monkeypatch.setattr(trim, "remove_trimmed", interrupted)
    await service.trim_session(**{**S, "session_id": "u"}, keep_last=1)

    async with service.consumer("c") as consumer:
        changes = await take(consumer, 8)

    assert briefly(changes) == [
        ("appended", "a", 1),
        ("appended", "a", 2),
        ("snapshot", "s", 3),
        ("appended", "s", 4),
        ("appended", "s", 5),
        ("snapshot", "t", 3),
        ("snapshot", "u", 3),
        ("appended", "u", 4),
    ]
    assert [each.state for each in changes if each.kind == "snapshot"] == [
        {"n": 2},
        {"n": 2},
        {"n": 2},
    ]


@pytest.mark.parametrize(("cut", "follows"), [(4, ("snapshot", "s", 4)), (1, None)])
async def test_a_log_that_is_trimmed_during_its_replay(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    cut: int,
    follows: tuple[Any, ...] | None,
) -> None:
    """A reader that was away for long is given what it can be given no other way."""
    await append(service, await create(service), 6)
    async with service.consumer("c") as consumer:
        await take(consumer, 2, commit=True)
    await service.trim_session(**S, before_revision=cut + 1)
    long_ago = {"$set": {"position.reached": Timestamp(1, 1)}}
    admin[database].checkpoints.update_one({"_id": "c"}, long_ago)
    rest = [("appended", "s", each) for each in range(max(cut, 2) + 1, 7)]

    async with service.consumer("c") as consumer:
        expected = [*([follows] if follows else []), *rest]
        changes = await take(consumer, len(expected), commit=True)

    assert briefly(changes) == expected


async def test_a_snapshot_whose_handler_fails(service: MongoSessionService) -> None:
    """It is kept as a dead letter, and can be replayed."""
    await append(service, await create(service), 3)
    await service.trim_session(**S, keep_last=1)
    handled: list[Change] = []

    async def fails(change: Change) -> None:
        handled.append(change)
        if len(handled) == 2:
            await consumer.close()
        elif change.kind == "snapshot":
            raise ValueError

    consumer = service.consumer("c")
    await run(consumer, fails, max_attempts=1)
    async with service.consumer("c") as consumer:
        (letter,) = [each async for each in consumer.dead_letters()]
        replayed: list[Change] = []
        assert await consumer.replay_dead_letters(replayed.append) == 1

    assert briefly([letter.change, *replayed]) == [("snapshot", "s", 2)] * 2
    assert replayed == handled[:1]
    assert replayed[0].state == {"n": 1}
