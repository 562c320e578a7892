"""What subscribers and consumers receive of new titles, labels and expiry times."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.subscriptions import APP, ID, SESSION, USER, Follower, new_event

from mongo_session_service import Change, MongoSessionService

NAMED = {"__session_metadata__": {"displayName": "There"}}


def details(change: Change) -> tuple[Any, ...]:
    assert change.kind == "updated"
    assert change.session_key == tuple(SESSION.values())
    assert (change.revision, change.event, change.state_delta) == (None, None, {})
    return change.title, change.labels, change.expire_time


@pytest.mark.parametrize("scope", [(), (APP,), (APP, USER), (APP, USER, ID)])
async def test_new_details_are_received(
    service: MongoSessionService, scope: tuple[str, ...]
) -> None:
    """Each update brings all details; a rename by an append follows its event."""
    session = await service.create_session(**SESSION, title="A", labels={"l": "1"})
    async with Follower(service.watch(*scope)) as follower:
        await service.update_session(**SESSION, title="B")
        await service.update_session(**SESSION, labels=None)
        updated = await service.update_session(**SESSION, title=None, ttl=5000)
        await service.append_event(session, new_event(k=1))
        await service.append_event(session, new_event(**NAMED))
        await service.update_session(**SESSION, ttl=None)
        await follower.until(lambda: follower.kinds.count("updated") == 5)

    told = [each for each in follower.told if each.kind != "snapshot"]
    assert [each.kind for each in told] == [
        *("updated", "updated", "updated", "appended", "appended", "updated"),
        "updated",
    ]
    first, second, third, plain, _, renamed, last = told
    assert details(first) == ("B", {"l": "1"}, None)
    assert details(second) == ("B", {}, None)
    assert details(third) == (None, {}, updated.expire_time)
    assert details(renamed)[:2] == details(last)[:2] == ("There", {})
    assert (renamed.expire_time or 0) >= (updated.expire_time or 0)
    assert last.expire_time is None
    assert (plain.title, plain.labels, plain.expire_time) == (None, None, None)
    shown = json.loads(first.json_text)
    assert (shown["title"], shown["labels"]) == ("B", {"l": "1"})
    assert not {"title", "labels", "expire_time"} & json.loads(plain.json_text).keys()


async def test_a_returning_subscriber_receives_new_details(
    service: MongoSessionService,
) -> None:
    """It gets the title that it has missed."""
    await service.create_session(**SESSION)
    await service.update_session(**SESSION, title="B")

    async with service.watch(APP, USER, ID, after_revision=0) as changes:
        assert details(await anext(changes)) == ("B", {}, None)


async def test_a_returning_subscriber_receives_the_removal_of_a_title(
    service: MongoSessionService,
) -> None:
    """A subscriber that had seen it would go on to show it."""
    await service.create_session(**SESSION, title="A")
    await service.update_session(**SESSION, title=None)

    async with service.watch(**SESSION, after_revision=0) as changes:
        change = await anext(changes)

    assert (change.kind, change.title) == ("updated", None)


async def test_consumers_receive_updates_on_request(
    service: MongoSessionService,
) -> None:
    """A handler gets them with ``updates`` only, and again from its dead letters."""
    received: dict[str, list[str]] = {"with": [], "without": []}
    replayed: list[Change] = []
    done = asyncio.Event()

    def handle(name: str, change: Change) -> None:
        received[name].append(change.kind)
        done.set() if change.kind == "deleted" else None
        if change.kind == "updated":
            raise ValueError(change.title)

    for name, kinds in (
        ("without", ["created", "deleted"]),
        ("with", ["created", "updated", "updated", "deleted"]),
    ):
        done.clear()
        async with service.consumer(
            name, start="now", updates=name == "with"
        ) as consumer:
            running = asyncio.create_task(
                consumer.run(
                    lambda change, name=name: handle(name, change), max_attempts=1
                )
            )
            await service.create_session(**SESSION, title="A")
            await service.update_session(**SESSION, title="B", labels={"l": "1"})
            await service.update_session(**SESSION, title=None)
            async with asyncio.timeout(60):
                # No signal comes from the server.
                while name == "with" and len(replayed) < 2:
                    letters = [each async for each in consumer.dead_letters()]
                    replayed = [each.change for each in letters]
                await service.delete_session(**SESSION)
                await done.wait()
            await consumer.close()
            await running
            assert received[name] == kinds

    assert [details(each) for each in replayed] == [(None, {"l": "1"}, None)] * 2
