"""What other tools wrote into the collections stops nobody, and is quoted nowhere."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from support.consumers import begun
from support.subscriptions import APP, ID, PATIENCE, SESSION, USER, Follower, new_event

from mongo_session_service import MongoSessionService, StorageError

BANG = "hunter2"
FOREIGN = {"app_name": "z", "user_id": "z", "session_id": "z"}
UNREADABLE: list[Any] = [{"%json": 5}, {"%json": BANG}, {"%json": b"\xff"}]
STAMPED = {"id": "e", "timestamp": 1.0}
SESSION_LIKE = {"revision": 0, "create_time": 1.0, "update_time": 1.0}

Write = Callable[[Database[Any]], object]


def _shared(value: Any) -> Write:
    def write(stored: Database[Any]) -> None:
        stored.app_states.insert_one({"_id": "z", "state": {"a": value}})
        stored.app_states.update_one({"_id": "z"}, {"$set": {"state.b": value}})

    return write


def _numbered(stored: Database[Any]) -> None:
    id_ = {"app_name": 5, "user_id": BANG}
    stored.user_states.insert_one({"_id": id_, "state": {"a": 1}})


def _with_a_bad_delta(stored: Database[Any]) -> None:
    event = {"id": "1", "actions": {"state_delta": [BANG]}}
    with stored.client.start_session() as txn, txn.start_transaction():
        document = {"_id": {**FOREIGN, "revision": 1}, "event": event}
        stored.events.insert_one(document, session=txn)


WRITES: list[Write] = [_numbered, _with_a_bad_delta, *map(_shared, UNREADABLE)]


@pytest.mark.parametrize("write", WRITES)
async def test_a_foreign_document_ends_no_other_subscription(
    service: MongoSessionService, database: str, admin: MongoClient, write: Write
) -> None:
    """One session's followers receive the next changes, whatever is beside it."""
    session = await service.create_session(**SESSION)
    async with (
        Follower(service.watch(APP, USER, ID)) as follower,
        Follower(service.watch()),
    ):
        write(admin[database])
        await service.append_event(session, new_event(n=1))
        await follower.reached(1)


@pytest.mark.parametrize("write", [_numbered, *map(_shared, UNREADABLE)])
async def test_unreadable_state_is_passed_over(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    write: Write,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Watchers and consumers of everything go on; a warning names no value."""
    session = await service.create_session(**SESSION)
    async with (
        Follower(service.watch()) as everything,
        service.consumer("c", start="now") as consumer,
        asyncio.timeout(PATIENCE),
    ):
        first = asyncio.ensure_future(anext(consumer))
        await begun(service)
        await service.append_event(session, new_event(n=1))
        assert (await first).kind == "appended"
        caplog.set_level(logging.WARNING)
        write(admin[database])
        await service.append_event(session, new_event(n=2))
        await everything.until(lambda: len(everything.told) == 2)
        assert (await anext(consumer)).revision == 2

    assert everything.kinds == ["appended"] * 2
    assert BANG not in caplog.text
    assert ("app_states" in caplog.text) is (write is not _numbered)


@pytest.mark.parametrize("bad", UNREADABLE)
async def test_an_unreadable_session_is_delivered_without_state(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    bad: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names it."""
    own = await service.create_session(**SESSION)
    async with (
        Follower(service.watch("z")) as reader,
        Follower(service.watch(APP)) as neighbour,
    ):
        document = {"_id": FOREIGN, "state": {"a": bad}, **SESSION_LIKE}
        admin[database].sessions.insert_one(document)
        await reader.until(lambda: reader.told)
        await service.append_event(own, new_event())
        await neighbour.until(lambda: neighbour.told)

    assert [(each.kind, each.state_delta) for each in reader.told] == [("created", {})]
    assert "session 'z'" in caplog.text
    assert BANG not in caplog.text


Read = Callable[[MongoSessionService], Awaitable[object]]


async def _events_of(service: MongoSessionService) -> None:
    async for _ in service.iter_events(**SESSION):
        pass


async def _watched(service: MongoSessionService) -> None:
    async with service.watch(APP, USER, ID) as changes:
        await anext(changes)


READS: dict[str, Read] = {
    "get_session": lambda service: service.get_session(**SESSION),
    "list_sessions": lambda service: service.list_sessions(app_name=APP),
    "find_sessions": lambda service: service.find_sessions(
        app_name=APP, with_state=True
    ),
    "watch": _watched,
}


def _set_session(**fields: Any) -> Write:
    return lambda stored: stored.sessions.update_one({"_id": SESSION}, {"$set": fields})


OF_SESSION: list[Write] = [
    *(_set_session(**{"state.a": bad}) for bad in UNREADABLE),
    _set_session(state=[BANG]),
    _set_session(update_time=BANG),
    lambda stored: stored.sessions.update_one({}, {"$unset": {"create_time": 1}}),
]


@pytest.mark.parametrize("revision", [BANG, None, 1.5, [BANG]])
async def test_what_is_damaged_can_be_removed(
    service: MongoSessionService, database: str, admin: MongoClient, revision: Any
) -> None:
    """Its events go with it, and so do others that have expired."""
    session = await service.create_session(**SESSION)
    await service.append_event(session, new_event(n=1))
    over = {"$set": {"expire_time": 1.0, "revision": revision}}
    admin[database].sessions.update_one({"_id": SESSION}, over)

    assert (await service.prune()).sessions == 1
    for name in ("sessions", "events"):
        assert not admin[database][name].count_documents({})


OF_SHARED: list[Write] = [
    lambda stored: stored.app_states.insert_one({"_id": APP, "state": [BANG]}),
    lambda stored: stored.app_states.insert_one({"_id": APP}),
    lambda stored: stored.user_states.insert_one(
        {
            "_id": {"app_name": APP, "user_id": USER},
            "state": {"a": {"%json": BANG}},
        }
    ),
]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        *((name, write) for name in READS for write in OF_SHARED),
        *((name, write) for name in ("get_session", "watch") for write in OF_SESSION),
    ],
)
async def test_an_error_of_a_read_names_the_unreadable_document(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    write: Write,
    name: str,
) -> None:
    """It is of this package, and holds no value."""
    await service.create_session(**SESSION)
    write(admin[database])

    with pytest.raises(StorageError) as caught:
        await READS[name](service)

    assert re.search(f"session '{ID}'|Session '{ID}'|app '{APP}'", str(caught.value))
    assert BANG not in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        BANG,
        {**STAMPED, "author": BANG, "actions": [BANG]},
        {**STAMPED, "author": BANG, "actions": {"state_delta": {"%json": BANG}}},
        {**STAMPED, "author": "x", "actions": {"state_delta": [BANG]}},
        {**STAMPED, "author": "x", "finish_reason": {"a": BANG}},
        {**STAMPED, "author": "x", "custom_metadata": {"a": {"%json": BANG}}},
    ],
)
async def test_unreadable_events_are_named(
    service: MongoSessionService, database: str, admin: MongoClient, event: Any
) -> None:
    """An event that cannot be read is named by its session and revision."""
    await service.create_session(**SESSION)
    document = {"_id": {**SESSION, "revision": 1}, "event": event, "wrapped": True}
    admin[database].events.insert_one(document)
    admin[database].sessions.update_one({"_id": SESSION}, {"$set": {"revision": 1}})

    reads = (
        READS["get_session"],
        _events_of,
        lambda service: service.get_session_at(**SESSION, revision=1),
        lambda service: service.fork_session(**SESSION, new_session_id="new"),
    )
    for read in reads:
        with pytest.raises(
            StorageError, match="session '(s|new)' at revision 1"
        ) as caught:
            await read(service)
        assert BANG not in str(caught.value)
