"""Replays, and what becomes of history that is lost."""

from __future__ import annotations

import asyncio
import random

import pytest
from bson.timestamp import Timestamp
from google.adk.sessions import Session
from pymongo import MongoClient
from support.consumers import APP, PATIENCE, USER, append, begun, create, take, told
from support.failpoints import failing

from mongo_session_service import (
    Change,
    HistoryLostError,
    LeaseLostError,
    MongoSessionService,
)
from mongo_session_service.consumers.checkpoint import OnHistoryLost


async def be_away(service: MongoSessionService) -> Session:
    """Have a session of which consumer "c" has committed 4 of 5 events, all live."""
    session = await create(service)
    async with service.consumer("c", start="now") as consumer:
        reading = asyncio.create_task(take(consumer, 4, commit=True))
        await begun(service)
        await append(service, session, 4)
        await reading
    await append(service, session)
    return session


async def test_lost_history_is_an_error(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """A consumer that missed changes says so, and stays where it was."""
    await be_away(victim)

    async with victim.consumer("c") as consumer:
        with (
            failing(admin, "aggregate", times=1, errorCode=286),
            pytest.raises(HistoryLostError),
        ):
            await take(consumer, 1)
    async with victim.consumer("c") as consumer:
        assert told(await take(consumer, 1)) == [("s", 5)]


async def test_lost_history_can_be_replayed(
    victim: MongoSessionService, admin: MongoClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole log is delivered again, and what follows, with a warning."""
    session = await be_away(victim)

    async with victim.consumer("c", on_history_lost="replay") as consumer:
        with failing(admin, "aggregate", times=1, errorCode=286):
            changes = await take(consumer, 5)
        await append(victim, session)
        changes += await take(consumer, 1)

    assert told(changes) == [("s", number) for number in range(1, 7)]
    assert "on_history_lost: replay" in caplog.text


async def test_lost_history_can_be_skipped(
    victim: MongoSessionService, admin: MongoClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Changes from now on are delivered, with a warning."""
    session = await be_away(victim)

    async with victim.consumer("c", on_history_lost="skip") as consumer:
        with failing(admin, "aggregate", times=1, errorCode=286) as wait_until_hit:
            reading = asyncio.create_task(take(consumer, 1))
            await asyncio.to_thread(wait_until_hit)
        while not reading.done():
            await append(victim, session)
        [(_, revision)] = told(await reading)

    assert revision is not None
    assert revision > 5
    assert "on_history_lost: skip" in caplog.text


@pytest.mark.parametrize("option", ["replay", "skip"])
async def test_a_reader_survives_a_dropped_database(
    option: OnHistoryLost,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """What is stored after the drop is delivered, and committed, by the same reader."""
    await append(service, await create(service))
    async with service.consumer("c", on_history_lost=option) as consumer:
        await take(consumer, 1, commit=True)
        reading = asyncio.create_task(take(consumer, 1, commit=True))
        admin.drop_database(database)
        await begun(service)
        await append(service, await create(service, "new"))
        [change] = await reading
        assert change.session_id == "new"

    assert (await service.consumers())[0].app_name is None


async def drop(admin: MongoClient, database: str, what: str) -> None:
    """Drop a collection, and return when its name is free."""
    await asyncio.to_thread(admin[database].drop_collection, what)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    ("option", "expected"), [("replay", [1, 2, 1, 2, 3]), ("skip", [1, 2, 4])]
)
async def test_a_dropped_checkpoint_is_replayed_or_skipped(
    option: OnHistoryLost,
    expected: list[int],
    transactional: bool,  # noqa: FBT001
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """A reader whose checkpoint is gone starts again, as its option says."""
    session = await create(service)
    await append(service, session, 3)
    revisions: list[int | None] = []
    is_dropped = asyncio.Event()

    async def handler(change: Change, *_: object) -> None:
        revisions.append(change.revision)
        if revisions == [1, 2]:
            await drop(admin, database, "checkpoints")
            await consumer.commit()
            is_dropped.set()
        if revisions == expected:
            await consumer.close()

    consumer = service.consumer("c", on_history_lost=option)
    running = asyncio.create_task(
        consumer.run(handler, transactional=transactional, max_attempts=1)
    )
    async with asyncio.timeout(PATIENCE):
        await is_dropped.wait()
        await begun(service)
        if option == "skip":
            await append(service, session)
        await running
    assert revisions == expected


async def test_a_dropped_lease_is_free(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Another reader takes over, and the one that held it commits nothing more."""
    await append(service, await create(service), 3)
    async with service.consumer("c") as first, service.consumer("c") as second:
        await take(first, 1, commit=True)
        await take(first, 1)
        await drop(admin, database, "leases")
        assert told(await take(second, 1)) == [("s", 2)]
        with pytest.raises(LeaseLostError):
            await first.commit()
        await second.commit()


async def test_a_checkpoint_belongs_to_one_log(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A collection of the same name that is another one is not read on in."""
    session = await create(service)
    await append(service, session)
    async with service.consumer("c") as consumer:
        await take(consumer, 1, commit=True)
    admin[database].events.rename("old")
    admin[database].events.insert_many(admin[database].old.find())

    with pytest.raises(HistoryLostError, match="not the one"):
        await anext(service.consumer("c"))
    async with service.consumer("c", on_history_lost="replay") as consumer:
        assert told(await take(consumer, 1)) == [("s", 1)]


def forget_its_time(admin: MongoClient, database: str) -> None:
    """Have a replay read on at a time that MongoDB does not know any more."""
    replaying = {"_id": "c", "position.is_replaying": True}
    long_ago = {"$set": {"position.reached": Timestamp(1, 1)}}
    admin[database].checkpoints.update_one(replaying, long_ago)


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.limits(replay_page_events=7)
async def test_a_replay_meets_the_stream_without_gap_or_repetition(
    service: MongoSessionService, admin: MongoClient, database: str, *, is_long: bool
) -> None:
    """While sessions grow anywhere in the log, each event is delivered exactly once."""
    sessions = [await create(service, name) for name in ("a", "ä", "b", "Z", "z")]
    for session in sessions:
        await append(service, session, 10)

    async def write() -> None:
        order = random.Random(5)  # noqa: S311  not for secrets
        for _ in range(100):
            await append(service, order.choice(sessions))

    writing = asyncio.create_task(write())
    changes: list[tuple[str, int | None]] = []
    async with asyncio.timeout(PATIENCE):
        while len(changes) < 150:
            # Readers come and go, and each commits what it has got.
            async with service.consumer("c") as consumer:
                for _ in range(20):
                    changes += told(await take(consumer, 1, commit=True))
                    if len(changes) == 150:
                        break
            if is_long:
                forget_its_time(admin, database)
    await writing

    assert sorted(changes) == sorted(
        (session.id, number)
        for session in sessions
        for number in range(1, len(session.events) + 1)
    )
    for session in sessions:
        own = [revision for name, revision in changes if name == session.id]
        assert own == sorted(own)


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.limits(replay_page_events=2)
async def test_a_session_made_anew_amid_its_replay_comes_in_order(
    service: MongoSessionService, admin: MongoClient, database: str, *, is_long: bool
) -> None:
    """The old one comes as it was, if MongoDB still knows; its end, and the new one."""
    await append(service, await create(service, "a"), 3)
    await append(service, await create(service, "b"))
    async with service.consumer("c") as consumer:
        changes = await take(consumer, 1, commit=True)
    await service.delete_session(app_name=APP, user_id=USER, session_id="a")
    await append(service, await create(service, "a"), 5)
    if is_long:
        forget_its_time(admin, database)
    async with service.consumer("c") as consumer:
        changes += await take(consumer, 8 if is_long else 10)

    anew = [
        ("deleted", "a", None),
        ("created", "a", 0),
        *(("appended", "a", number) for number in (1, 2, 3, 4, 5)),
    ]
    rest = [*(("appended", "a", number) for number in (2, 3)), ("appended", "b", 1)]
    assert [(each.kind, each.session_id, each.revision) for each in changes] == [
        ("appended", "a", 1),
        *([*anew, rest[-1]] if is_long else [*rest, *anew]),
    ]
