"""Consumers that are closed, and dead letters, that are out of the ordinary."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pymongo import MongoClient, UpdateOne
from support.consumers import APP, PATIENCE, append, begun, create, run, take, told
from support.failpoints import failing, is_at
from support.subscriptions import SESSION, until

from mongo_session_service import Change, LeaseLostError, MongoSessionService


async def test_closing_the_service_lets_a_handler_finish(
    service: MongoSessionService,
) -> None:
    """The change at hand is committed, the run ends, and the name is free at once."""
    await append(service, await create(service))
    consumer = service.consumer("c")
    started = asyncio.Event()

    async def handler(_: Change) -> None:
        started.set()
        await asyncio.sleep(0.3)

    running = asyncio.create_task(consumer.run(handler))
    await started.wait()
    await service.close()

    assert running.done() or await running is None
    [status] = await service.consumers()
    assert not status.is_active
    session = await service.get_session(**SESSION)
    assert session is not None
    await append(service, session)
    async with service.consumer("c") as other:
        assert told(await take(other, 1)) == [("s", 2)]


async def test_a_consumer_that_waits_for_its_name_can_be_closed(
    service: MongoSessionService,
) -> None:
    """It ends when it, or the service, is closed, and so does the one that has it."""
    await create(service)
    holder, first, second = (service.consumer("c") for _ in range(3))
    holding = asyncio.create_task(anext(holder))
    await begun(service)
    waiting = [asyncio.create_task(each.run(print)) for each in (first, second)]
    await asyncio.sleep(0.2)

    async with asyncio.timeout(PATIENCE):
        await first.close()
        await waiting[0]
        assert not waiting[1].done()
        await service.close()
        await waiting[1]
        with pytest.raises(StopAsyncIteration):
            await holding
    assert not (await service.consumers())[0].is_active


async def bury(service: MongoSessionService, error: Exception, last: int) -> None:
    """Have all changes up to a revision become dead letters."""
    consumer = service.consumer("c")

    async def handler(change: Change) -> None:
        if change.revision == last:
            await consumer.close()
        raise error

    await run(consumer, handler, max_attempts=1)


async def test_two_replays_of_a_dead_letter_handle_it_once(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """With transactions, the second finds it gone and leaves nothing behind."""
    await append(service, await create(service))
    await bury(service, ValueError(), last=1)
    meeting = asyncio.Barrier(2)

    async def replay() -> int:
        calls = 0

        async def handler(_: Change, txn: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                await meeting.wait()
            await txn.client[database].bills.insert_one({}, session=txn)

        consumer = service.consumer("c")
        return await consumer.replay_dead_letters(handler, transactional=True)

    handled = await asyncio.gather(replay(), replay())

    assert sorted(handled) == [0, 1]
    assert admin[database].bills.count_documents({}) == 1


async def test_dead_letters_of_different_changes_are_all_kept(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Of shared state, and of a session's name that is used again."""
    session = await create(service)
    consumer = service.consumer("c")

    def handler(_: Change) -> None:
        raise ValueError

    running = asyncio.create_task(consumer.run(handler, max_attempts=1))
    await begun(service)
    updates = [
        UpdateOne({"_id": APP}, {"$set": {f"state.k{number}": 1}}, upsert=True)
        for number in range(20)
    ]
    admin[database].app_states.bulk_write(updates)
    letters = admin[database].dead_letters
    # Two of each: appended, deleted, created. Of what is gone already there is none.
    appended, created = {"_id.kind": "appended"}, {"_id.kind": "created"}
    for number in range(1, 3):
        await append(service, session)
        await until(lambda n=number: letters.count_documents(appended) == n)
        await service.delete_session(**SESSION)
        session = await create(service)
        await until(lambda n=number: letters.count_documents(created) == n)
    of_state = [it async for it in consumer.dead_letters() if it.id["kind"] == "state"]
    state = {f"app:k{number}": 1 for number in range(20)}
    assert of_state
    assert all(each.change.state_delta == state for each in of_state)
    assert letters.count_documents({"_id.kind": "appended"}) == 2
    await consumer.close()
    await running


async def test_a_replay_passes_over_foreign_documents(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A strange document in the log does not stop its consumers."""
    await append(service, await create(service))
    admin[database].events.insert_many(
        [{"_id": {"x": 1}}, {"_id": {**SESSION, "revision": "x"}, "event": {}}]
    )
    async with service.consumer("c") as consumer:
        assert told(await take(consumer, 1)) == [("s", 1)]


async def test_consumers_may_be_made_while_the_service_closes(
    service: MongoSessionService,
) -> None:
    """Closing goes on to its end, whoever comes meanwhile."""
    await create(service)
    consumers = [service.consumer(f"c{number}") for number in range(3)]
    reading = [asyncio.create_task(anext(each)) for each in consumers]
    await asyncio.sleep(0.5)

    async def make() -> None:
        for number in range(50):
            consumers.append(service.consumer(f"d{number}"))
            await asyncio.sleep(0)

    await asyncio.gather(service.close(), make())
    await asyncio.gather(*reading, return_exceptions=True)


async def test_a_commit_after_closing_is_refused(
    service: MongoSessionService,
) -> None:
    """Its change is delivered again elsewhere."""
    await append(service, await create(service))
    consumer = service.consumer("c")
    await take(consumer, 1)
    await consumer.close()

    with pytest.raises(LeaseLostError, match="closed"):
        await consumer.commit()


@pytest.mark.limits(handler_retry_seconds=60.0)
async def test_closing_waits_for_no_further_attempt(
    service: MongoSessionService,
) -> None:
    """A handler that keeps failing is not called again; its change comes again."""
    await append(service, await create(service))
    failed = asyncio.Event()

    def handler(_: Change) -> None:
        failed.set()
        raise ValueError

    running = asyncio.create_task(service.consumer("c").run(handler))
    await failed.wait()
    async with asyncio.timeout(PATIENCE):
        await service.close()
        await running

    async with service.consumer("c") as other:
        assert told(await take(other, 1)) == [("s", 1)]
        assert [each async for each in other.dead_letters()] == []


@pytest.mark.limits(lease_seconds=0.5)
async def test_closing_waits_for_no_server_that_does_not_answer(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """Whoever was about to take the name gives up as soon as it might have expired."""
    await create(victim)
    silent = {"blockConnection": True, "blockTimeMS": 2_000}
    with failing(admin, "findAndModify", **silent) as hit:
        consumer = victim.consumer("c")
        reading = asyncio.create_task(anext(consumer))
        await asyncio.to_thread(hit)
        async with asyncio.timeout(PATIENCE):
            await consumer.close()
            assert is_at(admin, "findAndModify")
            with pytest.raises(StopAsyncIteration):
                await reading


async def test_a_read_that_comes_back_while_the_name_is_released_ends_the_run(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """A run that is closed ends; it does not say that another reader has taken over."""
    await create(victim)
    consumer = victim.consumer("c")
    running = asyncio.create_task(consumer.run(print))
    await begun(victim)
    slow = {"blockConnection": True, "blockTimeMS": 2_000}  # a read takes one second
    with failing(admin, "findAndModify", **slow):
        await consumer.close()
    async with asyncio.timeout(PATIENCE):
        await running


async def test_a_dead_letter_is_not_repeated_onto_a_later_session(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Only its deletion is, of all that was changed in the session before."""
    consumer = service.consumer("c", updates=True)

    def fail(_: Change) -> None:
        raise ValueError

    letters = admin[database].dead_letters
    running = asyncio.create_task(consumer.run(fail, max_attempts=1))
    await begun(service)
    session = await create(service)
    await append(service, session)
    await service.update_session(**SESSION, title="former")
    await until(lambda: letters.count_documents({}) == 3)
    await service.delete_session(**SESSION)
    await until(lambda: letters.count_documents({}) == 4)
    await consumer.end()
    await running
    await append(service, await create(service))
    await service.update_session(**SESSION, title="later")

    repeated: list[str] = []
    again = service.consumer("c")
    assert await again.replay_dead_letters(lambda it: repeated.append(it.kind)) == 1
    assert repeated == ["deleted"]
    assert letters.count_documents({}) == 0


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_session_made_anew_is_handled_like_another(
    service: MongoSessionService, *, transactional: bool
) -> None:
    """Its revisions begin again; each reader goes on after the change before."""
    async with service.consumer("c", start="now"):
        pass
    ids = []
    for _ in range(3):
        session = await create(service)
        await append(service, session)
        ids.append(session.events[0].id)
        await service.delete_session(**SESSION)

    handled: list[tuple[str, str | None]] = []
    for _ in range(9):
        consumer = service.consumer("c")

        async def handler(change: Change, *_: Any) -> None:
            handled.append((change.kind, change.event and change.event.id))
            await consumer.close()  # noqa: B023  called in this pass

        await run(consumer, handler, transactional=transactional)
    one = [[("created", None), ("appended", it), ("deleted", None)] for it in ids]
    assert handled == [*one[0], *one[1], *one[2]]
