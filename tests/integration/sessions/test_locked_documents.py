"""Documents that another writer's open transaction has locked hold up nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from support.failpoints import open_transactions

from mongo_session_service import MongoSessionService, StorageUnavailableError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import writer
from mongo_session_service.storage.tasks import backoff

OWNER = {"app_name": "app", "user_id": "user"}
AT_ONCE = 20.0
"""Seconds within which what is not locked is stored, on a busy machine as well."""


@contextmanager
def locked(database: Any, **ids: Iterable[Any]) -> Iterator[None]:
    """Hold documents in an open transaction, by collection and ``_id``."""
    with database.client.start_session() as txn:
        txn.start_transaction()
        for collection, those in ids.items():
            for id_ in those:
                where, change = {"_id": id_}, {"$set": {"locked": True}}
                database[collection].update_one(where, change, upsert=True, session=txn)
        yield
        with suppress(PyMongoError):
            txn.abort_transaction()


async def create(service: MongoSessionService, count: int) -> list[Session]:
    return [await service.create_session(**OWNER) for _ in range(count)]


def ids(sessions: Iterable[Session]) -> list[dict[str, str]]:
    return [SessionKey(**OWNER, session_id=each.id).id for each in sessions]


def append(
    service: MongoSessionService, session: Session, **delta: Any
) -> asyncio.Future[Event]:
    event = Event(author="x", actions=EventActions(state_delta=delta))
    return asyncio.ensure_future(service.append_event(session, event))


async def texts(service: MongoSessionService, session: Session) -> list[str]:
    """The ids of the events that are stored."""
    stored = await service.get_session(**OWNER, session_id=session.id)
    assert stored is not None
    return [each.id for each in stored.events]


@pytest.mark.parametrize("count", [1, 3, 20])
async def test_locked_sessions_delay_no_others(
    service: MongoSessionService, admin: MongoClient, database: str, count: int
) -> None:
    """Appends to other sessions go on, those that shared a batch with them as well."""
    sessions = await create(service, count + 20)
    stuck, free = sessions[:count], sessions[count:]
    with locked(admin[database], sessions=ids(stuck)):
        waiting = [append(service, each) for each in stuck]
        async with asyncio.timeout(AT_ONCE):
            for _ in range(3):
                await asyncio.gather(*(append(service, each) for each in free))
        assert not any(each.done() for each in waiting)
    async with asyncio.timeout(AT_ONCE):
        stored = await asyncio.gather(*waiting)

    for session, event in zip(stuck, stored, strict=True):
        assert await texts(service, session) == [event.id]
    assert open_transactions(admin) == 0


async def test_a_locked_session_keeps_its_order(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """What is appended to it meanwhile is stored afterwards, each append once."""
    session, other = await create(service, 2)
    with locked(admin[database], sessions=ids([session])):
        waiting = []
        for _ in range(5):
            waiting.append(append(service, session))
            async with asyncio.timeout(AT_ONCE):
                await append(service, other)
    async with asyncio.timeout(AT_ONCE):
        events = await asyncio.gather(*waiting)

    assert await texts(service, session) == [each.id for each in events]
    assert [each.id for each in session.events] == [each.id for each in events]


@pytest.mark.parametrize(
    ("collection", "id_", "prefix"),
    [("app_states", "app", "app:"), ("user_states", OWNER, "user:")],
)
async def test_locked_shared_state_delays_only_appends_that_set_it(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    collection: str,
    id_: Any,
    prefix: str,
) -> None:
    """Others go on, unless an earlier append to their session waits."""
    sessions = await create(service, 12)
    setters, free = sessions[:6], sessions[6:]
    with locked(admin[database], **{collection: [id_]}):
        waiting = [append(service, it, **{f"{prefix}{it.id}": 1}) for it in setters]
        late = append(service, setters[0])
        async with asyncio.timeout(AT_ONCE):
            for _ in range(3):
                await asyncio.gather(*(append(service, it, n=1) for it in free))
        assert not any(each.done() for each in [*waiting, late])
    async with asyncio.timeout(AT_ONCE):
        first, *_ = await asyncio.gather(*waiting, late)

    assert await texts(service, setters[0]) == [first.id, late.result().id]
    state = await service.get_user_state(**OWNER)
    assert len(state) == (6 if prefix == "user:" else 0)


async def test_ten_locked_sessions_are_given_up_together(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Each append ends after the URI's limit, however many wait; nothing is stored."""
    uri = f"{mongodb_uri}&timeoutMS=1500"
    async with MongoSessionService(uri, database=database) as service:
        stuck = await create(service, 10)
        with locked(admin[database], sessions=ids(stuck)):
            began = time.monotonic()
            appends = [append(service, each) for each in stuck]
            errors = await asyncio.gather(*appends, return_exceptions=True)
            taken = time.monotonic() - began
        assert {type(each) for each in errors} == {StorageUnavailableError}
        # An attempt that is under way when the time is over ends without a reason.
        assert any("has locked" in str(each) for each in errors)
        assert 1.4 < taken < 5
        assert not any([await texts(service, each) for each in stuck])
        await asyncio.gather(*(append(service, each) for each in stuck))


async def test_a_lock_that_others_take_again_and_again_is_tried_often(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who rested longer than others would lose a key that all of an app set."""
    pauses: list[float] = []
    has_tried = asyncio.Event()

    def noted(*args: Any, **limits: Any) -> float:
        pauses.append(backoff(*args, **limits))
        if len(pauses) == 10:
            has_tried.set()
        return pauses[-1]

    monkeypatch.setattr(writer, "backoff", noted)
    (session,) = await create(service, 1)
    with locked(admin[database], app_states=["app"]):
        waiting = append(service, session, **{"app:hot": 1})
        await has_tried.wait()
    await waiting
    assert max(pauses) <= 0.05


async def test_a_cancelled_append_does_not_wait_for_the_lock(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """It ends at once, and is not stored later; the next one is."""
    session, other = await create(service, 2)
    with locked(admin[database], sessions=ids([session])):
        waiting = append(service, session)
        await append(service, other)
        waiting.cancel()
        async with asyncio.timeout(AT_ONCE):
            await asyncio.wait([waiting])
        assert waiting.cancelled()
        following = append(service, session)
        await append(service, other)
        assert not following.done()
    async with asyncio.timeout(AT_ONCE):
        event = await following

    assert await texts(service, session) == [event.id]


async def test_new_sessions_that_wait_for_a_lock_delay_no_others(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Sessions that another writer is creating as well, one of them asked for twice."""
    (free,) = await create(service, 1)
    names = ["one", "two", "three", "one"]
    with admin.start_session() as txn:
        txn.start_transaction()
        for name in names[:3]:
            (id_,) = ids([Session(id=name, appName="app", userId="user")])
            admin[database].sessions.insert_one({"_id": id_}, session=txn)
        waiting = []
        for name in names:
            new = service.create_session(**OWNER, session_id=name)
            waiting.append(asyncio.ensure_future(new))
            await texts(service, free)  # by then it has begun, alone
            async with asyncio.timeout(AT_ONCE):
                await append(service, free)
                await create(service, 1)
        assert not any(each.done() for each in waiting)
        txn.abort_transaction()
    async with asyncio.timeout(AT_ONCE):
        *stored, again = await asyncio.gather(*waiting, return_exceptions=True)

    assert [each.id for each in stored] == names[:3]
    assert isinstance(again, AlreadyExistsError)
