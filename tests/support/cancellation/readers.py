"""Calls of who is told of changes: cancelled, they miss nothing and hold nobody up."""

from __future__ import annotations

from typing import Any

from google.adk.sessions import Session

from mongo_session_service import Change, Consumer
from support.cancellation.world import Prepared, World, ids_of, new_event


async def watch(world: World) -> Prepared:
    session = await world.session()
    told: list[int | None] = []
    changes = world.service.watch(*ids_of(session).values(), after_revision=0)

    async def read() -> None:
        async with changes:
            await world.service.append_event(session, new_event())
            while len(told) < 2:
                change = await anext(changes)
                if change.kind == "appended":
                    told.append(change.revision)

    async def check() -> None:
        assert told == [1, 2][: len(told)]
        assert world.service.feed_stats().subscriptions == 1

    return read(), check


async def watch_on(world: World) -> Prepared:
    """A read that is cancelled: the next goes on."""
    session = await world.session()
    changes = world.service.watch(*ids_of(session).values(), after_revision=0)
    await changes.__aenter__()
    told: list[int | None] = []

    async def read() -> None:
        while len(told) < 1:
            change = await anext(changes)
            if change.kind == "appended":
                told.append(change.revision)

    async def check() -> None:
        await read()
        changes.close()
        assert told == [1]

    return read(), check


async def consume(world: World) -> Prepared:
    """From taking the name to letting it go."""
    session, name = await _due(world)
    told: list[int | None] = []
    committed: list[int | None] = []

    async def read() -> None:
        async with world.service.consumer(name) as consumer:
            told.append((await anext(consumer)).revision)
            await consumer.commit()
            committed.extend(told)

    async def check() -> None:
        assert told in ([], [1])
        following = await _following(world, session, name)
        if committed or not told:
            assert following == ([2] if committed else [1, 2])
        assert following in ([2], [1, 2])

    return read(), check


async def start_at_present(world: World) -> Prepared:
    """A new name, which is told what happens once it has been entered."""
    session = await world.session(events=1)
    name = world.new_id()

    async def begin() -> None:
        async with world.service.consumer(name, start="now"):
            pass

    async def check() -> None:
        await begin()
        assert await _following(world, session, name) == [2]

    return begin(), check


async def commit(world: World) -> Prepared:
    session, name = await _due(world)
    consumer = world.service.consumer(name)
    await anext(consumer)

    async def check() -> None:
        await consumer.commit()
        await consumer.close()
        assert await _following(world, session, name) == [2]

    return consumer.commit(), check


async def close(world: World) -> Prepared:
    return await _ended(world, Consumer.close)


async def end(world: World) -> Prepared:
    return await _ended(world, Consumer.end)


async def _ended(world: World, method: Any) -> Prepared:
    """The name is free, or the consumer goes on and lets go when it is asked again."""
    session, name = await _due(world)
    consumer = world.service.consumer(name)
    await anext(consumer)

    async def check() -> None:
        await consumer.close()
        assert await _following(world, session, name) == [1, 2]

    return method(consumer), check


async def run(world: World) -> Prepared:
    """What a handler writes in the checkpoint's transaction is there exactly once."""
    session, name = await _due(world)
    consumer = world.service.consumer(name)

    async def handle(change: Change, txn: Any) -> None:
        bills = txn.client[world.database]["bills"]
        bill = {"for": [change.session_id, change.revision]}
        await bills.insert_one(bill, session=txn)
        await consumer.close()

    async def check() -> None:
        again = world.service.consumer(name)

        async def handle_all(change: Change, txn: Any) -> None:
            nonlocal consumer
            consumer = again if change.revision == 2 else world.service.consumer(name)
            await handle(change, txn)

        await world.service.append_event(session, new_event())
        await again.run(handle_all, transactional=True)
        bills = world.client[world.database]["bills"]
        found = [
            each["for"][1]
            async for each in bills.find({"for": session.id}).sort("for", 1)
        ]
        assert found == [1, 2]

    return consumer.run(handle, transactional=True), check


async def dead_letters(world: World) -> Prepared:
    consumer = await _with_dead_letter(world)

    async def read() -> None:
        assert [each.attempts async for each in consumer.dead_letters()] == [1]

    return read(), read


async def replay_dead_letters(world: World) -> Prepared:
    """What was not handled to its end is a dead letter still."""
    consumer = await _with_dead_letter(world)
    handled: list[Change] = []

    async def check() -> None:
        left = [each async for each in consumer.dead_letters()]
        assert len(left) + len(handled) >= 1
        assert await consumer.replay_dead_letters(handled.append) == len(left)
        assert [each async for each in consumer.dead_letters()] == []

    return consumer.replay_dead_letters(handled.append), check


async def _due(world: World) -> tuple[Session, str]:
    """A name that is due the first event of a session."""
    session = await world.session(events=0)
    name = world.new_id()
    async with world.service.consumer(name, start="now"):
        await world.service.append_event(session, new_event())
    return session, name


async def _following(world: World, session: Session, name: str) -> list[int | None]:
    """What a name is told up to the next event of a session."""
    await world.service.append_event(session, new_event())
    told: list[int | None] = []
    async with world.service.consumer(name) as consumer:
        while not told or told[-1] != len(session.events):
            change = await anext(consumer)
            if change.kind == "appended":
                told.append(change.revision)
    return told


async def _with_dead_letter(world: World) -> Consumer:
    """A consumer whose handler has failed on an event."""
    _, name = await _due(world)
    consumer = world.service.consumer(name)

    async def fail(_: Change) -> None:
        await consumer.close()
        raise ValueError

    await consumer.run(fail, max_attempts=1)
    return consumer
