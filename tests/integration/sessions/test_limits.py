"""What is too large, too long, too deep or too much is said so, or simply works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from pymongo import MongoClient
from support.consumers import take
from support.subscriptions import Follower

from mongo_session_service import (
    Change,
    DocumentTooLargeError,
    InvalidInputError,
    MongoSessionService,
)

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}
MB = 1_000_000
LONGEST = "ä" * 2048


def setting(**delta: Any) -> Event:
    """An event whose delta has these keys, spelt ``app_x`` for ``app:x``."""
    prefixed = {
        key.replace("app_", "app:").replace("user_", "user:"): value
        for key, value in delta.items()
    }
    return Event(id="e", author="x", actions=EventActions(state_delta=prefixed))


async def test_the_longest_ids_work_everywhere(service: MongoSessionService) -> None:
    """Ids of 4,096 bytes are stored, listed, watched, consumed and deleted."""
    ids = dict.fromkeys(IDS, LONGEST)
    event = Event(id=LONGEST, author="x")
    session = await service.create_session(**ids, state={"user:k": 1, "app:k": 2})

    async with (
        Follower(service.watch(**ids)) as follower,
        service.consumer(LONGEST, app_name=LONGEST) as consumer,
    ):
        await service.append_event(session, event)
        await follower.reached(1)
        assert [each.event for each in await take(consumer, 1)] == [event]
        await consumer.commit()
        assert [each.name for each in await service.consumers()] == [LONGEST]

    assert await service.get_session(**ids) == session
    assert len((await service.list_sessions(app_name=LONGEST)).sessions) == 1
    await service.delete_session(**ids)
    assert await service.get_session(**ids) is None


async def test_longer_ids_are_refused(service: MongoSessionService) -> None:
    """One byte more, in any id or name, is refused with the limit."""
    session = await service.create_session(**IDS)
    too_long = LONGEST + "x"

    for name in IDS:
        with pytest.raises(InvalidInputError, match=f"{name} has 4097 bytes.*4096"):
            await service.create_session(**IDS | {name: too_long})
        assert await service.get_session(**IDS | {name: too_long}) is None
    with pytest.raises(InvalidInputError, match="event's id has 4097"):
        await service.append_event(session, Event(id=too_long, author="x"))
    with pytest.raises(InvalidInputError, match="name has 4097"):
        service.consumer(too_long)

    assert await service.get_session(**IDS) == session


async def test_state_keys_have_a_longest_length(service: MongoSessionService) -> None:
    """A key of 4,096 awkward characters is stored; one more is refused by name."""
    session = await service.create_session(**IDS, state={"." * 4096: 1})

    with pytest.raises(InvalidInputError, match=r"State key '\$\$.*4097.*4096") as told:
        await service.append_event(session, setting(**{"$" * 4097: 1}))

    assert len(str(told.value)) < 300
    assert await service.get_session(**IDS) == session


@pytest.mark.parametrize(
    ("prefix", "owner"), [("", "session 's'"), ("user_", "user 'u"), ("app_", "app 'a")]
)
async def test_state_that_outgrows_its_document_is_refused(
    service: MongoSessionService, prefix: str, owner: str
) -> None:
    """The error names whose state, the event and the key; others are not concerned."""
    session = await service.create_session(**IDS)
    other = await service.create_session(**IDS | {"session_id": "other"})
    await service.append_event(session, setting(**{f"{prefix}a": "x" * 15 * MB}))
    before = await service.get_session(**IDS)
    event = setting(small=1, **{f"{prefix}b": "x" * 2 * MB})
    event.id = "one more"

    refused, stored = await asyncio.gather(
        service.append_event(session, event),
        service.append_event(other, setting(k=1)),
        return_exceptions=True,
    )

    assert isinstance(refused, DocumentTooLargeError)
    for name in (owner, "'one more'", "'b'", "artifact"):
        assert name in str(refused)
    assert "xxx" not in str(refused)
    assert isinstance(stored, Event)
    assert await service.get_session(**IDS) == before == session


async def test_a_state_of_the_last_megabyte_goes_along(
    service: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """It is trimmed and forked; where no byte is left, the error says how to go on."""
    session = await service.create_session(**IDS)

    async def fill(**delta: str) -> None:
        event = setting(**delta)
        event.id = f"e{len(session.events)}"
        await service.append_event(session, event)

    await fill(a="x" * 15 * MB)
    await fill(b="x" * (16 * 2**20 - 15 * MB - 4000))
    await fill(c="x")
    assert await service.trim_session(**IDS, keep_last=1) == 2
    forked = await service.fork_session(**IDS)
    assert forked.state == session.state

    left = {"$subtract": [16 * 2**20, {"$bsonSize": "$$ROOT"}]}
    one = {"$match": {"_id.session_id": session.id}}
    stages = [one, {"$project": {"bytes": left}}]
    (found,) = admin[database].sessions.aggregate(stages)
    await fill(c="x" * (found["bytes"] - 60))
    for call in (
        service.fork_session(**IDS),
        service.update_session(**IDS, title="x" * 100),
    ):
        with pytest.raises(DocumentTooLargeError, match="to None"):
            await call


async def test_keys_that_grow_when_escaped_are_refused(
    service: MongoSessionService,
) -> None:
    """State that exceeds a document once its keys are escaped is too large."""
    session = await service.create_session(**IDS)
    delta = {"$" * 4000 + str(number): 1 for number in range(2000)}

    with pytest.raises(DocumentTooLargeError, match="session 's'"):
        await service.append_event(session, setting(**delta))

    assert await service.get_session(**IDS) == session


async def test_the_largest_event_is_read_delivered_and_kept_as_a_dead_letter(
    service: MongoSessionService,
) -> None:
    """An event of 15.49 MB reaches subscribers and handlers, and can be buried."""
    session = await service.create_session(**IDS)
    event = Event(author="x", custom_metadata={"blob": "x" * 15_490_000})
    consumer = service.consumer("c", app_name="app")
    failed = asyncio.Event()

    async def handler(_: Change) -> None:
        failed.set()
        raise ValueError("x" * 5000)

    async with Follower(service.watch(**IDS)) as follower:
        await service.append_event(session, event)
        await follower.reached(1)
    running = asyncio.create_task(consumer.run(handler, max_attempts=1))
    await failed.wait()
    await consumer.close()
    await running

    assert follower.told[-1].event == event
    assert [each.change.event async for each in consumer.dead_letters()] == [event]
    assert await service.get_session(**IDS) == session
