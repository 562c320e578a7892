"""A consumer goes on where its name has committed, whoever reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from pymongo import MongoClient
from support.consumers import APP, PATIENCE, append, create, take, told

from mongo_session_service import (
    ConfigurationError,
    InvalidInputError,
    MongoSessionService,
    StorageError,
)


async def test_a_new_name_begins_with_the_log(service: MongoSessionService) -> None:
    """Every event ever appended is delivered first, then what happens from now on."""
    for name in ("one", "two"):
        await append(service, await create(service, name), 2)

    async with service.consumer("c") as consumer:
        replayed = await take(consumer, 4)
        three = await create(service, "three")
        await append(service, three)
        live = await take(consumer, 2)

    assert told(replayed) == [("one", 1), ("one", 2), ("two", 1), ("two", 2)]
    assert [(each.kind, each.session_id) for each in live] == [
        ("created", "three"),
        ("appended", "three"),
    ]
    assert live[1].event == three.events[0]
    assert live[1].state_delta == {"n": 0}


async def test_a_new_name_may_begin_now(service: MongoSessionService) -> None:
    """Events appended before it began are not delivered."""
    session = await create(service)
    await append(service, session, 2)

    async with service.consumer("c", start="now") as consumer:
        await append(service, session)

        assert told(await take(consumer, 1)) == [("s", 3)]


async def test_committed_changes_are_not_delivered_again(
    service: MongoSessionService,
) -> None:
    """Another reader, of a higher epoch, gets what follows the last commit."""
    session = await create(service)
    await append(service, session, 5)

    for epoch, first in ((1, 1), (2, 3)):
        async with service.consumer("c") as consumer:
            assert told(await take(consumer, 2, commit=True)) == [
                ("s", first),
                ("s", first + 1),
            ]
            assert told(await take(consumer, 1)) == [("s", first + 2)]
            assert (await service.consumers())[0].epoch == epoch


async def test_uncommitted_changes_are_delivered_again(
    service: MongoSessionService,
) -> None:
    """After the replay, too, a reader begins after the last commit."""
    session = await create(service)
    async with service.consumer("c") as consumer:
        reading = asyncio.create_task(take(consumer, 1, commit=True))
        await append(service, session, 5)
        await reading
        assert told(await take(consumer, 2)) == [("s", 2), ("s", 3)]
    async with service.consumer("c") as consumer:
        await take(consumer, 2)
        await consumer.commit()
        assert told(await take(consumer, 1)) == [("s", 4)]
    async with service.consumer("c") as consumer:
        assert told(await take(consumer, 2)) == [("s", 4), ("s", 5)]


async def test_an_apps_checkpoint_is_no_other_apps(
    service: MongoSessionService,
) -> None:
    """A name that was begun for one app is refused for another, and for all."""
    await append(service, await create(service))
    async with service.consumer("c", app_name=APP) as consumer:
        await take(consumer, 1, commit=True)

    for app_name in (None, "other"):
        with pytest.raises(ConfigurationError, match="for app 'app'"):
            await anext(service.consumer("c", app_name=app_name))


async def test_a_cancelled_reader_loses_no_change(service: MongoSessionService) -> None:
    """Reading with deadlines shorter than any answer delivers each change once."""
    session = await create(service)
    writing = asyncio.create_task(append(service, session, 100))
    changes = []

    async with service.consumer("c") as consumer, asyncio.timeout(PATIENCE):
        while len(told(changes)) < 100:
            try:
                async with asyncio.timeout(0.001):
                    changes.append(await anext(consumer))
            except TimeoutError:
                pass
    await writing

    assert told(changes) == [("s", number) for number in range(1, 101)]


@pytest.mark.limits(consumer_idle_save_seconds=0.0)
async def test_the_position_of_an_idle_stream_is_saved(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """While nothing happens, the checkpoint follows what happens elsewhere."""
    checkpoints = admin[database].checkpoints
    async with service.consumer("c") as consumer:
        reading = asyncio.create_task(anext(consumer))
        tokens = set()
        async with asyncio.timeout(PATIENCE):
            while len(tokens) < 3:
                admin[database].unrelated.insert_one({})
                checkpoint = checkpoints.find_one({"_id": "c"})
                position = checkpoint and checkpoint["position"]
                if position and isinstance(position["start"], dict):
                    tokens.add(position["start"]["_data"])
                await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.limits(consumer_idle_save_seconds=0.0)
async def test_an_idle_stream_saves_no_position_beyond_an_uncommitted_change(
    service: MongoSessionService,
) -> None:
    """No token is saved that lies behind a change which waits for its commit."""
    session = await create(service)
    async with service.consumer("c") as consumer:
        await append(service, session)
        await take(consumer, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await anext(consumer)
    async with service.consumer("c") as consumer:
        assert told(await take(consumer, 1)) == [("s", 1)]


async def test_status_lists_readers_lag_and_dead_letters(
    service: MongoSessionService,
) -> None:
    """Every consumer has its row."""
    await append(service, await create(service), 2)
    idle = service.consumer("idle")
    await take(idle, 1, commit=True)
    await idle.close()
    async with service.consumer("busy", app_name=APP) as busy:
        await take(busy, 1, commit=True)

        one, other = await service.consumers()
        ages = service.feed_stats().checkpoint_ages

    assert (one.name, one.app_name, one.is_active) == ("busy", APP, True)
    assert (other.name, other.app_name, other.is_active) == ("idle", None, False)
    assert one.owner is not None
    assert other.owner is None
    assert (one.is_replaying, one.epoch, one.dead_letters) == (True, 1, 0)
    assert one.lag_seconds is not None
    assert 0 <= one.lag_seconds < PATIENCE
    assert one.checkpoint_age_seconds is not None
    assert 0 <= one.checkpoint_age_seconds < PATIENCE
    assert list(ages) == ["busy"]


async def test_wrong_arguments_are_refused(service: MongoSessionService) -> None:
    """What names no consumer is refused before anything is stored."""
    wrong: list[dict[str, Any]] = [
        {"name": ""},
        {"name": 1},
        {"name": "c", "app_name": ""},
        {"name": "c", "start": "yesterday"},
        {"name": "c", "on_history_lost": "ignore"},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInputError):
            service.consumer(arguments.pop("name"), **arguments)
    with pytest.raises(InvalidInputError):
        await service.consumer("c").run(print, max_attempts=0)
    for options, says in (
        ({"transactional": True, "concurrency": 2}, "concurrency must be 1"),
        ({"concurrency": 0}, "concurrency must be a number"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            await service.consumer("c").run(lambda *_: None, **options)
    with pytest.raises(InvalidInputError, match="until_caught_up must be"):
        await service.consumer("c").run(print, until_caught_up=1)  # type: ignore[arg-type]

    assert await service.consumers() == []


async def test_consumers_need_transactions(mongodb_uri: str, database: str) -> None:
    """A service without transactions says why it has no consumers."""
    async with MongoSessionService(
        mongodb_uri, database=database, transactions=False
    ) as service:
        with pytest.raises(ConfigurationError, match="transactions"):
            await anext(service.consumer("c"))


async def test_a_consumer_goes_on_within_a_transaction(
    service: MongoSessionService,
) -> None:
    """No state is delivered that events have set already, wherever it goes on."""
    sessions = [await create(service, str(number)) for number in range(3)]
    async with service.consumer("c", start="now"):
        pass
    event = EventActions(state_delta={"app:k": 1, "user:k": 1, "k": 1})
    await asyncio.gather(
        *(
            service.append_event(each, Event(author="x", actions=event))
            for each in sessions
        )
    )
    for number in range(3):
        async with service.consumer("c", start="now") as consumer:
            (change,) = await take(consumer, 1, commit=True)
            assert (change.kind, change.session_id) == ("appended", str(number))

    await append(service, sessions[0])
    async with service.consumer("c") as consumer:
        assert told(await take(consumer, 1)) == [("0", 2)]


async def test_a_change_that_cannot_be_decoded_is_passed(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Reading it raises, once; the next read continues after it, and may commit."""

    def choosy(value: Any, _: object) -> Any:
        if "bad" in repr(value):
            raise ValueError
        return value

    session = await create(service)
    for author in ("x", "bad", "y"):
        await service.append_event(session, Event(author=author))
    async with (
        MongoSessionService(
            mongodb_uri, database=database, before_store=choosy, after_load=choosy
        ) as reader,
        reader.consumer("c") as consumer,
    ):
        await take(consumer, 1, commit=True)
        with pytest.raises(StorageError, match="ValueError for an event"):
            await take(consumer, 1)
        assert told(await take(consumer, 1, commit=True)) == [("s", 3)]
