"""An erased user's id is nowhere any more, whatever was under way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from bson.timestamp import Timestamp
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.consumers import run, take
from support.failpoints import VICTIM
from support.long_sessions import left_in, store_long_session
from support.raw_search import traces_of
from support.subscriptions import new_event, until

from mongo_session_service import Change, Erased, MongoSessionService, StorageError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import ServiceSource, move

APP, OTHER = "app-to-be-erased", "another-app"
ALICE, BOB = "alice@example.com", "bob@example.com"


def traces(admin: MongoClient[Any], database: str, id_: str = ALICE) -> list[str]:
    return traces_of(id_, admin, database)


pytestmark = pytest.mark.limits(stream_await_seconds=0.05)
small_steps = pytest.mark.limits(removed_events=10)


async def fill(
    service: MongoSessionService, user_id: str, *names: str, app_name: str = APP
) -> None:
    for name in names:
        session = await service.create_session(
            app_name=app_name, user_id=user_id, session_id=name, state={"initial": 1}
        )
        for number in range(3):
            event = new_event(user_id, n=number, user_n=number, app_n=number)
            await service.append_event(session, event)


def told(changes: list[Change], user_id: str = BOB) -> list[tuple[Any, ...]]:
    return [
        (each.kind, each.session_id, each.revision)
        for each in changes
        if each.user_id == user_id and each.kind != "state"
    ]


async def erase(service: MongoSessionService, id_: str) -> Erased:
    """Alice, or the app with her in it."""
    if id_ == ALICE:
        return await service.delete_user(app_name=APP, user_id=ALICE)
    return await service.delete_app(app_name=APP)


@pytest.mark.parametrize("erased_id", [ALICE, APP])
@small_steps
async def test_no_collection_names_an_erased_user(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    erased_id: str,
) -> None:
    """Neither sessions nor imports, leftovers or notes hold the name."""
    old = InMemorySessionService()
    shared = {"user:k": 1, "app:k": 1}
    await old.create_session(app_name=APP, user_id=ALICE, state=shared)
    await move(ServiceSource(old, [APP]), service)
    await store_long_session(
        service, admin, database, SessionKey(APP, ALICE, "long"), 35
    )
    orphan = SessionKey(APP, ALICE, "orphan").event_id(7)
    admin[database].events.insert_one({"_id": orphan, "event": {"id": "e"}})
    claim = SessionKey(APP, ALICE, "claim").id
    admin[database].sessions.insert_one({"_id": claim, "expire_time": 1e12})
    bobs_app = APP if erased_id == ALICE else OTHER

    async def fail(change: Change) -> None:
        if change.user_id == ALICE:
            raise ValueError("no")

    async with service.consumer("c") as consumer, service.consumer("d") as other:
        running = asyncio.create_task(consumer.run(fail, max_attempts=1))
        await fill(service, BOB, "b1", app_name=bobs_app)
        await fill(service, ALICE, "a1", "a2")
        await take(other, 3, commit=True)
        letters = admin[database].dead_letters
        await until(lambda: letters.count_documents({}) >= 35 + 6)
        await consumer.end()
        await running
        assert {"sessions", "events", "user_states", "imports", "dead_letters"} <= set(
            traces(admin, database, erased_id)
        )

        erased = await erase(service, erased_id)

    assert traces(admin, database, erased_id) == []
    assert (erased.sessions, erased.events) == (4, 35 + 6 + 1)
    assert (erased.user_states, erased.app_states) == (1, erased_id == APP)
    assert erased.dead_letters >= 35 + 6
    assert left_in(admin, database) == {"sessions": 1, "events": 3}
    state = await service.get_user_state(app_name=bobs_app, user_id=BOB)
    assert state == {"n": 2}


@pytest.mark.parametrize("erased_id", [ALICE, APP])
@pytest.mark.parametrize(("saved", "unsaved"), [(0, 1), (0, 5), (2, 3), (4, 1), (4, 6)])
async def test_a_reader_of_an_erased_log_saves_its_id_no_more(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    saved: int,
    unsaved: int,
    erased_id: str,
) -> None:
    """Nor one that comes after it; both miss nothing else."""
    await fill(service, "al", "a1", app_name="a")
    await fill(service, ALICE, "a1", "a2")
    await fill(service, BOB, "b1", app_name="b")
    async with service.consumer("c") as consumer:
        changes = await take(consumer, saved, commit=True)
        await take(consumer, unsaved)
        await erase(service, erased_id)
        await consumer.commit()
        assert traces(admin, database, erased_id) == []
    async with service.consumer("c") as consumer:
        while not told(changes)[2:]:
            changes += await take(consumer, 1, commit=True)
            assert traces(admin, database, erased_id) == []
    for user, name in (("al", "a1"), (BOB, "b1")):
        assert told(changes, user) == [("appended", name, n) for n in (1, 2, 3)]
    assert "appended" not in {each[0] for each in told(changes[saved:], ALICE)}


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_reader_that_comes_to_an_erased_user_later_passes_over_it(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    *,
    is_kept: bool,
) -> None:
    """It had begun before, whether it stays or dies."""
    await fill(service, "al", "a1")
    await fill(service, ALICE, "a1", "a2")
    await fill(service, BOB, "b1")
    consumer = service.consumer("c")
    changes = await take(consumer, 2, commit=True)
    if not is_kept:
        await consumer.close()
    await service.delete_user(app_name=APP, user_id=ALICE)
    while not told(changes)[2:]:
        changes += await take(consumer, 1, commit=True)
        assert traces(admin, database) == []
    await consumer.close()
    assert traces(admin, database) == []


@pytest.mark.parametrize("saved", [0, 4])
async def test_a_handler_in_transactions_misses_nothing_by_an_erasure(
    service: MongoSessionService, database: str, admin: MongoClient[Any], saved: int
) -> None:
    """What it does of an erased log, while it is erased, is not committed."""
    await fill(service, ALICE, "a1", "a2")
    await fill(service, BOB, "b1")
    has_come, may_go_on = asyncio.Event(), asyncio.Event()

    async def handle(change: Change, txn: Any) -> None:
        done = {"_id": f"{change.session_id} {change.revision}"}
        if change.kind == "appended":
            await txn.client[database].done.insert_one(done, session=txn)
        has_come.set()
        await may_go_on.wait()

    async with service.consumer("c", app_name=APP) as consumer:
        await take(consumer, saved, commit=True)
        options = {"transactional": True, "until_caught_up": True}
        running = asyncio.create_task(run(consumer, handle, **options))
        await has_come.wait()
        await service.delete_user(app_name=APP, user_id=ALICE)
        may_go_on.set()
        await running
    done = [each["_id"] for each in admin[database].done.find({}, sort=[("_id", 1)])]
    assert done == ["b1 1", "b1 2", "b1 3"]
    assert traces(admin, database) == []


async def test_no_checkpoint_of_the_stream_names_a_user(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """A consumer that resumes amid a transaction receives everything once."""
    sessions = [
        await service.create_session(app_name=APP, user_id=user, session_id=str(n))
        for n, user in enumerate((ALICE, BOB) * 4)
    ]
    changes: list[Change] = []
    async with service.consumer("c", start="now"):
        pass
    await asyncio.gather(
        *(service.append_event(each, new_event(app_n=1, user_n=1)) for each in sessions)
    )
    await service.delete_user(app_name=APP, user_id=ALICE)
    for number in range(8 + 4):
        async with service.consumer("c") as consumer:
            changes += await take(consumer, 1, commit=True)
        named = traces(admin, database) + traces(admin, database, BOB)
        assert "checkpoints" not in named, number

    appended = [each.session_id for each in changes if each.kind == "appended"]
    deleted = [each.session_id for each in changes if each.kind == "deleted"]
    assert sorted(appended) == [str(n) for n in range(8)]
    assert sorted(deleted) == ["0", "2", "4", "6"]
    assert traces(admin, database) == []


@pytest.mark.limits(replay_page_events=2)
@pytest.mark.daily(6)
@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("read", range(1, 10))
async def test_a_replay_continues_after_an_erased_user(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    read: int,
    *,
    is_long: bool,
) -> None:
    """Its checkpoint is cleared wherever it stood; others' events are delivered."""
    for user in ("al", ALICE, BOB):
        await fill(service, user, "s")
    async with service.consumer("c") as consumer:
        changes = await take(consumer, read, commit=True)

    erased = await service.delete_user(app_name=APP, user_id=ALICE)

    assert traces(admin, database) == []
    assert erased.checkpoints == (3 < read <= 6)
    await fill(service, "az", "new")
    if is_long:  # MongoDB has forgotten the time it reads at
        long_ago = {"$set": {"position.reached": Timestamp(1, 1)}}
        admin[database].checkpoints.update_one({}, long_ago)
    async with service.consumer("c") as consumer:
        while not (told(changes, "az")[3:] and told(changes)[2:]):
            changes += await take(consumer, 1, commit=True)
    for user in ("al", BOB):
        assert told(changes, user) == [("appended", "s", n) for n in (1, 2, 3)]
    assert sorted(told(changes, "az")) == [
        *(("appended", "new", n) for n in (1, 2, 3)),
        ("created", "new", 0),
    ]


@pytest.mark.parametrize("erased_id", [ALICE, APP])
@small_steps
async def test_an_interrupted_erasure_is_gone_on_with(
    victim: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    erased_id: str,
) -> None:
    """Wherever it fails, the next call goes on; in the end nothing is left."""
    await store_long_session(
        victim, admin, database, SessionKey(APP, ALICE, "long"), 25
    )
    await fill(victim, ALICE, "a1", "a2")
    point = {"configureFailPoint": "failCommand"}
    commands = ["find", "delete", "update", "insert", "commitTransaction"]
    failure = {"failCommands": commands, "errorCode": 2, "appName": VICTIM}
    failed, is_done = 0, False
    while not is_done:
        admin.admin.command({**point, "mode": {"skip": failed}, "data": failure})
        try:
            erased = await erase(victim, erased_id)
            is_done = True
        except StorageError:
            failed += 1
        finally:
            admin.admin.command({**point, "mode": "off"})

    assert failed > 5
    assert traces(admin, database, erased_id) == []
    assert (erased.sessions, erased.events) == (0, 0)


async def test_a_user_who_writes_during_their_erasure_can_be_erased_again(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """What is created meanwhile is whole or gone; the second time, all is gone."""
    stop = asyncio.Event()

    async def write(name: str) -> None:
        for number in range(1000):
            session = await service.create_session(
                app_name=APP, user_id=ALICE, session_id=f"{name}{number}"
            )
            with suppress(SessionNotFoundError):
                for _ in range(3):
                    await service.append_event(session, new_event(user_n=1))
            if stop.is_set():
                return

    await fill(service, ALICE, "first")
    writers = [asyncio.create_task(write(name)) for name in "xyz"]
    for _ in range(3):
        await service.delete_user(app_name=APP, user_id=ALICE)
    stop.set()
    await asyncio.gather(*writers)

    left = admin[database].sessions.find()
    assert {each["revision"] for each in left} <= {3}
    there = left_in(admin, database)
    assert there["events"] == 3 * there["sessions"]
    await service.delete_user(app_name=APP, user_id=ALICE)
    assert traces(admin, database) == []


async def test_an_apps_consumers_go_with_it(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Those of all apps stay, and name it no more."""
    app = "app-to-be-erased"
    await service.create_session(app_name="other", user_id=BOB)
    session = await service.create_session(app_name=app, user_id=ALICE)
    await service.append_event(session, Event(author="x"))
    for name, of in (("its", app), ("all", None)):
        async with service.consumer(name, app_name=of) as consumer:
            await take(consumer, 1, commit=True)

    erased = await service.delete_app(app_name=app)

    assert erased == Erased(1, 1, 0, 0, 0, 2)
    assert [each.name for each in await service.consumers()] == ["all"]
    assert traces(admin, database) == traces(admin, database, app) == []
