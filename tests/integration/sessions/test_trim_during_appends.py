"""Trims that others come in between of, or that come in between of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions
from pymongo import MongoClient
from support.long_sessions import left_in
from support.subscriptions import SESSION as IDS
from support.subscriptions import new_event

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.sessions import event_log, fork
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.transactions import Transaction


async def fill(service: MongoSessionService, count: int = 6) -> Any:
    session = await service.create_session(**IDS)
    for number in range(1, count + 1):
        await service.append_event(session, new_event(n=number))
    return session


async def revisions(service: MongoSessionService) -> list[int]:
    return [revision async for revision, _ in service.iter_events(**IDS)]


async def test_a_fork_notices_that_the_log_was_cut(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Events may be missing in its copy, so it fails, and leaves nothing."""
    await fill(service)
    copy_log = fork.Fork.copy_log

    async def trimmed_meanwhile(self: fork.Fork) -> None:
        await copy_log(self)
        await service.trim_session(**IDS, keep_last=2)

    monkeypatch.setattr(fork.Fork, "copy_log", trimmed_meanwhile)
    with pytest.raises(StorageUnavailableError, match="trimmed or redacted during"):
        await service.fork_session(**IDS)

    # Two events, and the state as of the cut beside them.
    assert left_in(admin, database) == {"sessions": 1, "events": 3}


async def test_a_rewind_that_comes_while_the_log_is_read(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it undoes is not parted from it: the cut is looked for again."""
    session = await service.create_session(**IDS)
    for turn in "abcd":
        await service.append_event(session, Event(author="x", invocation_id=turn))
    rewind = EventActions(rewind_before_invocation_id="b")
    state_at, reads = event_log.state_at, 0

    async def rewound_meanwhile(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            event = Event(author="user", invocation_id="r", actions=rewind)
            await service.append_event(session, event)
        return await state_at(*args, **options)

    monkeypatch.setattr(event_log, "state_at", rewound_meanwhile)

    assert await service.trim_session(**IDS, before_revision=4) == 1
    assert reads == 2
    assert await revisions(service) == [2, 3, 4, 5]


async def test_appends_and_trims_at_once(service: MongoSessionService) -> None:
    """Neither holds the other up, nor loses anything."""
    session = await fill(service, 20)

    async def keep_trimming() -> int:
        return sum([await service.trim_session(**IDS, keep_last=9) for _ in range(4)])

    appending = [service.append_event(session, new_event()) for _ in range(40)]
    *_, one, other = await asyncio.gather(*appending, keep_trimming(), keep_trimming())

    removed = one + other + await service.trim_session(**IDS, keep_last=5)
    assert removed == 55
    assert await revisions(service) == [56, 57, 58, 59, 60]
    stored = await service.get_session(**IDS)
    assert stored is not None
    assert stored.events == session.events[-5:]
    assert stored.state == session.state


async def test_the_steps_of_a_trim_do_not_conflict_with_appends(
    service: MongoSessionService,
    second: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one in each of them, between what it reads and what it removes."""
    await fill(service)
    find, late = Transaction.find, 0

    async def find_late(tx: Transaction, query: Query) -> Any:
        nonlocal late
        found = await find(tx, query)
        if query.collection == "events" and query.fields == ("_id",):
            late += 1
            await second.append(**IDS, event=new_event())
        return found

    monkeypatch.setattr(Transaction, "find", find_late)
    assert await service.trim_session(**IDS, keep_last=2) == 4
    assert late == 1


async def test_a_late_append_that_missed_trimmed_events_is_stale(
    second: MongoSessionService,
) -> None:
    """It cannot be shown what it missed, so its append is stale, at once."""
    late = await second.create_session(**IDS)
    early = await second.get_session(**IDS)
    assert early is not None
    for _ in range(4):
        await second.append_event(early, new_event())
    await second.trim_session(**IDS, keep_last=2)

    with pytest.raises(StaleSessionError, match="from revision 0 to 4"):
        await second.append_event(late, new_event())
