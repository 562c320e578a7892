"""What is erased or redacted while it is being copied does not come back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from pymongo import MongoClient
from support.encryption_hooks import CANARY
from support.raw_search import traces_of
from support.subscriptions import until
from support.transfers import SKIP, exported, imported
from support.waiting import say

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.sessions.fork import Fork
from mongo_session_service.storage.statements import Update
from mongo_session_service.storage.transactions import Transaction
from mongo_session_service.transfer.importer import ImportTarget

USER = "to-be-erased@example.com"
ADA = {"app_name": "app", "user_id": USER}
KEY = {**ADA, "session_id": "s"}


async def store(service: MongoSessionService, *event_ids: str) -> None:
    """Append events, each with the canary in its text and in state."""
    session = await service.get_session(**KEY) or await service.create_session(**KEY)
    for event_id in event_ids:
        event = say(CANARY, "i")
        event.id = event_id
        event.actions.state_delta = {"own": CANARY, "user:u": CANARY}
        await service.append_event(session, event)


def left(admin: MongoClient, database: str) -> list[str]:
    return traces_of(CANARY, admin, database) + traces_of(USER, admin, database)


@pytest.mark.limits(fork_step=1)
@pytest.mark.parametrize("step", [1, 2])
async def test_an_erasure_ends_a_fork_that_is_being_made(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    """It waits until the server copies no more, and then removes what was copied."""
    await store(service, "e1", "e2")
    copy, erasing = Fork.copy_events, []

    async def copy_events(fork: Fork, after: int, last: int) -> None:
        if last == step:
            erasing.append(asyncio.create_task(service.delete_user(**ADA)))
            await until(lambda: not admin[database].sessions.find_one({"_id": KEY}))
        await copy(fork, after, last)
        # As a copy that the server began before: it comes after the source is gone.
        late = {**KEY, "session_id": "t", "revision": 9 + last}
        event = {"id": f"late {last}", "author": CANARY}
        admin[database].events.insert_one({"_id": late, "event": event})

    monkeypatch.setattr(Fork, "copy_events", copy_events)
    with pytest.raises(SessionNotFoundError):
        await service.fork_session(**KEY, new_session_id="t")
    (erased,) = await asyncio.gather(*erasing)
    assert erased.sessions == 1
    assert left(admin, database) == []


async def test_an_erasure_finds_a_fork_that_is_stored_beside_it(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its transaction still sees the source, and is committed after it is removed."""
    await store(service, "e1")
    write, erasing = Transaction.write, []

    async def write_late(tx: Transaction, *statements: Any) -> list[int]:
        new = [each.change for each in statements if isinstance(each, Update)]
        if new and "forked_from" in new[-1]:
            erasing.append(asyncio.create_task(service.delete_user(**ADA)))
            await until(lambda: not admin[database].sessions.find_one({"_id": KEY}))
        return await write(tx, *statements)

    monkeypatch.setattr(Transaction, "write", write_late)
    with suppress(SessionNotFoundError):  # it may be read before it is erased
        await service.fork_session(**KEY, new_session_id="t")
    (erased,) = await asyncio.gather(*erasing)
    assert erased.sessions == 2
    assert left(admin, database) == []


async def test_an_erasure_waits_for_the_fork_of_a_dead_process(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """The server may go on with its copy until the reservation expires."""
    await store(service, "e1")
    place = {**KEY, "session_id": "t"}
    expires = {"expire_time": service_time(admin) + 1.5, "steps": 0, "held_by": "x"}
    admin[database].sessions.insert_one({"_id": place, **expires})
    erasing = asyncio.create_task(service.delete_user(**ADA))
    await until(lambda: not admin[database].sessions.find_one({"_id": KEY}))
    late = {"_id": {**place, "revision": 1}, "event": {"x": CANARY}}
    admin[database].events.insert_one(late)
    await erasing
    assert left(admin, database) == []


def service_time(admin: MongoClient) -> float:
    return float(admin.admin.command("hello")["localTime"].timestamp())


async def test_an_import_does_not_store_again_what_is_erased_meanwhile(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its place is gone: it ends with an error that says so, and leaves no event."""
    await store(service, "e1")
    await exported(service, tmp_path / "all.jsonl")
    await service.delete_user(**ADA)
    reserve = ImportTarget._reserve  # noqa: SLF001  between two steps of it

    async def reserve_and_lose(target: ImportTarget, wanted: Any) -> None:
        await reserve(target, wanted)
        await service.delete_user(**ADA)

    monkeypatch.setattr(ImportTarget, "_reserve", reserve_and_lose)
    with pytest.raises(ConflictError, match="was removed meanwhile"):
        await imported(tmp_path / "all.jsonl", service)
    # Shared state of a batch is stored before its sessions.
    await service.delete_user(**ADA)
    assert left(admin, database) == []


@pytest.mark.parametrize("differs", [False, True], ids=["behind", "conflict"])
async def test_an_import_brings_nothing_back_that_is_redacted_meanwhile(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    differs: bool,
) -> None:
    """It is planned anew, and leaves the session alone."""
    await store(service, "e1")
    await exported(service, tmp_path / "all.jsonl")
    await store(service, "e2")
    await exported(service, tmp_path / "late.jsonl")
    await service.delete_user(**ADA)
    await imported(tmp_path / "all.jsonl", service)
    if differs:
        admin[database].events.update_one({}, {"$set": {"event.author": "other"}})
    write = ImportTarget.write

    async def redact_and_write(
        target: ImportTarget, sessions: Any, states: Any
    ) -> None:
        monkeypatch.setattr(ImportTarget, "write", write)
        await service.redact_events(**KEY, event_ids=["e1"], state=True)
        await write(target, sessions, states)

    monkeypatch.setattr(ImportTarget, "write", redact_and_write)
    moved = await imported(tmp_path / "late.jsonl", service, SKIP)
    assert moved.skipped == 1
    assert left_of_session(admin, database) == []


def left_of_session(admin: MongoClient, database: str) -> list[str]:
    found = traces_of(CANARY, admin, database)
    return [each for each in found if each in {"sessions", "events"}]
